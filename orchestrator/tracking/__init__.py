"""MLflow as a mirror of Records and Scores. Delete it, and the next `mirror` rebuilds it.

    mirror     makes MLflow equal to the run directories; the only writer to it
    runs       the runs that MLflow should have, and the Markdown on the page of each
    content    the content of one run, and its marks: its last step and its hash
    names      names and texts as MLflow allows them
    store      the MLflow store: its address, its errors in sentences, its searches page by page
    mark       mirror.json: what a store held after the last mirror, and the lock on it
    points     the points that a run lacks
    views      the view of the runs, and the links in notes
    server     an mlflow server to look at it, for as long as the dashboard runs

One experiment a spec and scale. In it one run a cell, and one run called `summary` that holds the
spec and the report. A run is found by its tag `orch.key`.
"""

from orchestrator.tracking.mirror import MirrorReport as MirrorReport
from orchestrator.tracking.mirror import mirror as mirror
