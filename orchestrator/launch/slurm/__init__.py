"""Launching on a SLURM cluster. See ../README.md for the life of an attempt and its crashes.

On the machine that submits:

    submit          cells to job arrays, exactly once; reconciling cut submissions; cancelling
    submissions     the events and files of each array, and the claim that says which one may run
    script          the batch script of one array, and what its jobs ask for
    poll            the scheduler's report on attempts that have no exit record
    scheduler       SLURM's commands, job states, and messages as sentences (messages.toml)
    cluster         partitions, nodes, limits and rights, for `orch doctor` and `orch init`

In the job:

    task            one element of an array: the program that a job runs
    lease           at most one attempt of a cell writes
"""
