"""MLflow as a mirror of Records and Scores. Delete it, and the next `mirror` rebuilds it.

    mirror     makes MLflow equal to the run directories; the only writer to it
    runs       the runs that MLflow should have, and the Markdown on the page of each
    content    the content of one run, the points that MLflow lacks, and marks of those it has
    names      names and texts as MLflow allows them
    store      the MLflow store: its address, its errors in sentences, its searches page by page
    links      the addresses of runs, for pages that link to them
    server     an mlflow server to look at it, for as long as the dashboard runs

One experiment a spec and scale. In it one run a cell, and one run called `summary` that holds the
spec and the report. A run is found by its tag `orch.key`.
"""

from orchestrator.tracking.mirror import MirrorReport as MirrorReport
from orchestrator.tracking.mirror import mirror as mirror
