"""Launching as Ray Jobs, on a Ray that is running. See ../README.md for the life of an attempt.

On the machine that submits:

    server          the job server's HTTP API, by the standard library: orch does not import ray
    look            the state of attempts that were submitted, by the run directory and the server
    submit          cells and evaluations to jobs, exactly once; cancelling

In the job:

    task            the program of a job: it trains one cell, or scores one
"""
