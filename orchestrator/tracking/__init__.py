"""MLflow as a mirror of Records and Scores. Delete it, and the next `mirror` rebuilds it.

    mirror     makes what MLflow holds equal to what the run directories say; the only writer
    runs       which MLflow runs there should be, from Records and Scores
    content    what one run holds, and its marks: how far, with which hash
    describe   the Markdown a person reads on a run's page
    names      names and texts as MLflow allows them
    secrets    what must not be written down
    store      which MLflow: its address, its errors in sentences
    views      ready views of the runs, and the links in notes
    dataset    which data a cell was trained on
    evaluated  which checkpoints were evaluated; models  makes them outputs of their runs
    pruned     which cells were removed, so that their runs are too
    server     an mlflow server to look at it, for as long as the dashboard runs (keeper.py ends it)
    mark       a note beside the run directories that nothing changed, which saves asking MLflow

One experiment a spec and scale. In it one run a cell, below a parent run for the study it first
belongs to, and one run called `summary` that holds the spec and the report. A run is found by its
tag `orch.key`.

Why collecting twice changes nothing: timestamps come from the metrics file; the tag
`orch.ingesting` says, before any point is logged, up to which step and with which hash points may
be there; `orch.ingested` says the same once they are, and only later points are logged again.
MLflow cannot take back a point. A cell that was resumed from an earlier checkpoint keeps its run
all the same (mirror_resume); where its history is another one (its directory was removed and it was
trained anew, its scores were made anew), the run is deleted and made anew.
"""

from orchestrator.tracking.mirror import MirrorReport as MirrorReport
from orchestrator.tracking.mirror import mirror as mirror
