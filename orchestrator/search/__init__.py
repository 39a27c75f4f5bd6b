"""Search for the best β of each configuration with Optuna. Each trial consists of ordinary cells.

block       the `tune` block: range, objective and budget; their form for Optuna
design      a search for each configuration of a study; the cells of a β
journal     the files of a search in the shared folder, and which controller is alive
controller  asks Optuna for trials, follows and prunes them, reports their results; never waits
local       drives a controller on this machine: workers, and a thread that scores
slurm       drives a controller on a cluster: jobs that train and score, the controller as a job
results     results of searches: trials, the best, contests; all searches of a folder
optimum     the recommended β: the optimum of a smooth curve through all trials
section     the report of searches

Only functions of this package import Optuna and scikit-learn, and only when called.
"""
