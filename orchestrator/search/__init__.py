"""Search over the fields of a spec with Optuna, each trial being ordinary cells.

block       the `tune` block: what is searched, for what, at which cost; as Optuna takes it
design      a block becomes searches; a search turns proposals into cells; an open trial
journal     what is remembered on the shared folder, and which controller is alive
controller  asks, follows, prunes and tells; never waits
pruning     when a trial ends before its cells do
local       drives a controller on this machine: workers, and a thread that scores
slurm       drives a controller on a cluster: jobs that train and score, the controller as a job
results     what was found: trials, the best, brackets, contests; every search of an experiment
optimum     where a smooth curve through all trials has its optimum
section     the report of searches

Only functions of this package import Optuna, and only when called.
"""
