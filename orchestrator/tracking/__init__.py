"""MLflow as a mirror of Records and Scores. Delete it, and the next `mirror` rebuilds it.

    mirror     makes what MLflow holds equal to what the run directories say; the only writer
    runs       which runs there should be, and the Markdown on the page of each
    content    what one run holds, and its marks: how far, with which hash
    names      names and texts as MLflow allows them
    secrets    hiding of passwords, keys and tokens
    store      the MLflow store: its address, its errors in sentences, its searches page by page
    views      ready views of the runs, and the links in notes
    server     an mlflow server to look at it, for as long as the dashboard runs
    keeper     ends that server with the dashboard, also after kill -9

One experiment a spec and scale. In it one run a cell, below a parent run for the study it first
belongs to, and one run called `summary` that holds the spec and the report. A run is found by its
tag `orch.key`.
"""

from orchestrator.tracking.mirror import MirrorReport as MirrorReport
from orchestrator.tracking.mirror import mirror as mirror
