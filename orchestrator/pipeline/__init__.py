"""The pipeline: train what is missing, then collect, evaluate, mirror, compare and report.

Each stage after training begins from the run directories, so each can be called again alone.

    stages      each stage after training; and `run`, which trains and then calls them in order
    training    trains the missing cells, on this machine or with jobs of a cluster
    search      the steps of `orch tune`
    completion  the mark that nothing has changed since the last run
    messages    sentences for the person at the terminal

Messages for a person go to standard error by `messages.say`; results are returned.
"""
