"""Runs that orch did not launch: read from their loggers, kept beside an experiment's cells.

    path or address --open_source--> LoggedRun --store--> runs/<experiment>/imported/<name>/
    that folder --read_imported--> ImportedRun: canonical metrics, and what its KL term optimises

`readers` reads loggers; `origin` derives library and KL; `names` knows what a library's
logged names mean.

An imported run is in no interval and in no claim: how it was trained is known only as far as its
settings say.
"""
