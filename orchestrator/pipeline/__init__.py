"""The line as a whole: train what is missing, then collect, evaluate, mirror, compare and report.

Each stage after training begins from the run directories, so each can be called again alone. What a
person should read goes to standard error by `messages.say`; results are returned.
"""
