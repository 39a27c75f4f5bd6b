"""Search over the fields of a spec with Optuna. Each trial consists of ordinary cells.

block       the `tune` block: space, objectives and budget; their form for Optuna
design      a block becomes searches; a search turns proposals into cells; open trials
journal     the files of a search in the shared folder, and which controller is alive
controller  asks Optuna for trials, follows and prunes them, reports their results; never waits
pruning     trials that end before their cells do
local       drives a controller on this machine: workers, and a thread that scores
slurm       drives a controller on a cluster: jobs that train and score, the controller as a job
results     results of searches: trials, the best, brackets, contests; all searches of a folder
optimum     the optimum of a smooth curve through all trials
section     the report of searches

Only functions of this package import Optuna, and only when called.
"""
