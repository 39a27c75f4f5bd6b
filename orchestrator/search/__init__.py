"""Search over the fields of a spec with Optuna, each trial being ordinary cells.

language    the `tune` block: what is searched, for what, at which cost
space       ranges and choices
objective   a metric, or a weighted sum of metrics
design      a block becomes searches; a search turns parameters into cells
journal     what is remembered on the shared folder, and by whom it may be changed
controller  asks, follows, prunes and tells; never waits
early       when a trial ends before its cells do
reuse       the grid's results as first trials
confirm     what is chosen once more, on fresh seeds
metrics     which metrics cells will have
launching   what a cell's state means, by who launches it
scorer      evaluation beside the controller; jobs: by jobs of a cluster
here        a search on this machine
there       a search on a cluster; detach: its controller as a job
results     what was found; fit: where a smooth curve has its optimum; section: told to a reviewer
known       every search of an experiment, read back

Only functions of this package import Optuna, and only when called.
"""
