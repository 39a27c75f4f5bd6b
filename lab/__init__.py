"""The laboratory: what measures KL terms, exactly and in the libraries' own functions.

Nothing of the line (spec, launch, evaluate, report) imports it; what it measured is kept as data.
"""
