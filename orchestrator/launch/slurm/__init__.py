"""Launching on a SLURM cluster. See ../README.md for the life of an attempt and its crashes.

On the machine that submits:

    submit          cells to job arrays, exactly once; reconciling cut submissions; cancelling
    submissions     the ledger's events of each array, and the files of each
    script          the batch script of one array
    poll            the scheduler's report on attempts that have no exit record
    scheduler       SLURM's commands and job states
    messages        SLURM's messages as sentences (messages.toml)
    cluster         partitions, nodes, limits and rights, for `orch doctor` and `orch init`

In the job:

    task            one element of an array: the program that a job runs
    lease           at most one attempt of a cell writes
    work_stealing   jobs of embedded cells train further cells of their array
"""
