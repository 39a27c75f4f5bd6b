"""Evaluated checkpoints in MLflow's list of models, each an output of its cell's run.

An external model of MLflow 3: it has tags, params and metrics, and its weights stay where they are.
A model is known by its tag `orch.key` and its source run. It is `READY` once its metrics are there;
one that is not, or has other scores than it should, is deleted and made anew.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from orchestrator.fingerprint import digest
from orchestrator.tracking.content import Model

KEY, DIGEST = "orch.key", "orch.digest"
_TYPE = "checkpoint"
_PAGE = 1000


class Models:
    """The models of one experiment. Asked for once, when first needed."""

    def __init__(self, client: Any, experiment_id: str):
        self._client, self._experiment_id = client, experiment_id
        self._found: dict[str, dict[str, Any]] | None = None

    def has(self, run: Any, wanted: Sequence[Model]) -> bool:
        """Whether a run has these models, finished."""
        known = self._of(run) if wanted else {}
        every = [(known.get(model.key), model) for model in wanted]
        return all(_is(found, model) and _has_tags(found, model) for found, model in every)

    def link(self, run: Any, wanted: Sequence[Model]) -> dict[int, str]:
        """Makes what is missing an output of the run; train step -> id of each model that waits for
        its metrics, and is then to be finished."""
        known = self._of(run) if wanted else {}
        waiting = {}
        for model in wanted:
            found = known.get(model.key)
            if found is not None and _is(found, model):
                if not _has_tags(found, model):
                    self._client.set_logged_model_tags(found.model_id, dict(model.tags))
                continue
            if found is not None:
                self._client.delete_logged_model(found.model_id)
            waiting[model.step] = self._make(run.info.run_id, model)
        if waiting:
            from mlflow.entities import LoggedModelOutput

            outputs = [LoggedModelOutput(id_, step) for step, id_ in waiting.items()]
            self._client.log_outputs(run.info.run_id, outputs)
        return waiting

    def finish(self, waiting: Iterable[str]) -> None:
        """Says of models that all of them is there."""
        for id_ in waiting:
            self._client.finalize_logged_model(id_, "READY")

    def tidy(self, run_ids: Collection[str]) -> None:
        """Deletes the models whose run is gone."""
        for run_id, models in self._all().items():
            for model in models.values() if run_id not in run_ids else ():
                self._client.delete_logged_model(model.model_id)

    def _make(self, run_id: str, model: Model) -> str:
        tags = {**model.tags, DIGEST: _digest(model)}
        found = self._client.create_logged_model(
            self._experiment_id, model.name, run_id, tags, dict(model.params), _TYPE
        )
        return str(found.model_id)

    def _of(self, run: Any) -> Mapping[str, Any]:
        return self._all().get(run.info.run_id, {})

    def _all(self) -> dict[str, dict[str, Any]]:
        """Run id -> key -> model."""
        if self._found is None:
            self._found, token = {}, None
            while True:
                page = self._client.search_logged_models(
                    [self._experiment_id], max_results=_PAGE, page_token=token
                )
                for found in page:
                    if key := found.tags.get(KEY):
                        self._found.setdefault(found.source_run_id, {})[key] = found
                token = page.token
                if not token:
                    break
        return self._found


def _is(found: Any, wanted: Model) -> bool:
    if found is None or str(found.status) != "READY":
        return False
    return bool(found.tags.get(DIGEST) == _digest(wanted))


def _has_tags(found: Any, wanted: Model) -> bool:
    return all(found.tags.get(name) == value for name, value in wanted.tags.items())


def _digest(model: Model) -> str:
    """Of all but its tags, which MLflow can change."""
    return digest(model._replace(tags={}))
