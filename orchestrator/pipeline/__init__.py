"""The pipeline: train what is missing, then collect, evaluate, mirror, compare and report.

Each stage after training begins from the run directories, so each can be called again alone.
Messages for a person go to standard error by `messages.say`; results are returned.
"""
