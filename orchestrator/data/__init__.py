"""Prompts, prepared once and shared by every cell that trains on them.

    orch data prepare math          from the Hub, a file or a generator to <data>/<name>-<hash>/
    source      rows of a data set, checked against the known facts on it
    generate    Countdown problems
    prepared    the folder of prepared prompts: written, checked, linked into a launch

A plan reads `data/...` in its own folder. `prepared.link` makes that a link when the cell is
launched, so no machine's path enters a cell or a translation.
"""
