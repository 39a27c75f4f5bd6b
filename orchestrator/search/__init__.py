"""Search for the best β of each configuration with Optuna. Each trial consists of ordinary cells.

block    the `tune` block: range, objective and budget; their form for Optuna
design   a search for each configuration of a study; the cells of a β
journal  the files of a search in the shared folder, and which process writes them
loop     asks Optuna, calls `run`, tells Optuna
results  results of searches: trials, the best, contests
section  the report of searches

Only functions of this package import Optuna, and only when called.
"""
