"""The MLflow runs of trials."""

from collections.abc import Collection

from orchestrator.rundir import RunFolder
from orchestrator.tracking.store import connected, store_of

_PAGE = 1000


def links(folder: RunFolder, uri: str | None, cells: Collection[str]) -> dict[str, str]:
    """Cell id -> id of its MLflow run, for those that are mirrored.

    Raises EnvironmentFault if MLflow does not answer.
    """
    found: dict[str, str] = {}
    with connected(store_of(folder, uri)) as client:
        experiment = client.get_experiment_by_name(folder.experiment)
        token = None
        while experiment is not None:
            page = client.search_runs(
                [experiment.experiment_id], max_results=_PAGE, page_token=token
            )
            for run in page:
                cell = run.data.tags.get("orch.cell_id", "")
                if cell in cells:
                    found[cell] = run.info.run_id
            token = page.token
            if not token:
                break
    return found
