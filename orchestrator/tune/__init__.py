"""Search over the fields of a spec with Optuna, each trial being ordinary cells.

language    the `tune` block: what is searched, for what, at which cost
space       ranges and choices
objective   a metric, or a weighted sum of metrics
design      a block becomes searches; a search turns parameters into cells
journal     what is remembered on the shared folder, and by whom it may be changed
controller  asks, follows, prunes and tells; never waits
early       when a trial ends before its cells do
reuse       the grid's results as first trials
confirm     the best once more, on fresh seeds
scorer      evaluation beside the controller
here        a search on this machine
results     what was found; section: told to a reviewer

Only functions of this package import Optuna, and only when called.
"""
