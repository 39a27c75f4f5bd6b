"""Launching on a SLURM cluster, from a login node that may go away at any time.

    options    what a site file says: `site.options`
    submit     cells as job arrays, each exactly once
    reconcile  submissions that were cut short: what the scheduler knows of them
    book       what the ledger says of submissions
    scheduler  SLURM's commands: argv lists, deadlines, sentences
    script     the batch script, by submitit
    poll       the state of a cell whose worker has not written how it ended
    words      SLURM's states in orch's words
    control    cancel, and what may be tried again by itself
    wait       `orch run --wait`
    task       what runs in a job: one element of an array
    score      what runs in an evaluation job: export, then every missing score
    requeue    a job that puts itself back into the queue
    evaluations  how evaluation jobs stand, and which go again
    lease      at most one attempt of a cell writes, also where file locks do not reach

A cell is submitted by making its next attempt, with the name of the submission in it, before the
scheduler is asked. Whatever starts under another name finds that the attempt is not its own, and
ends.
"""
