"""Evaluated checkpoints in MLflow's list of models, each an output of its cell's run."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from orchestrator.identity import digest
from orchestrator.tracking.content import KEY, LoggedModel
from orchestrator.tracking.store import every

MODEL_DIGEST = "orch.digest"


class Models:
    """The models of one experiment.

    Each is an external model of MLflow 3: it has tags, params and metrics, and its weights are not
    copied. A model is identified by its tag `orch.key` and its source run. It is `READY` once its
    metrics are logged. A model that is not ready, or has wrong scores, is deleted and made again.
    MLflow is asked once for all of them, when they are first needed.
    """

    def __init__(self, client: Any, experiment_id: str):
        self._client, self._experiment_id = client, experiment_id
        self._by_run: dict[str, dict[str, Any]] | None = None

    def has(self, run: Any, wanted: Sequence[LoggedModel]) -> bool:
        """Return True if a run has all these models, and they are ready."""
        known = self._of(run) if wanted else {}
        every = [(known.get(model.key), model) for model in wanted]
        return all(
            _is_finished(mirrored, model) and _has_tags(mirrored, model)
            for mirrored, model in every
        )

    def link(self, run: Any, wanted: Sequence[LoggedModel]) -> dict[int, str]:
        """Make missing models outputs of the run. Set the tags of the others, and replace wrong
        ones.

        Return train step -> id of each model that has no metrics yet. The caller logs them, then
        calls `finish`.
        """
        known = self._of(run) if wanted else {}
        waiting: dict[int, str] = {}
        for model in wanted:
            logged = known.get(model.key)
            if logged is not None and _is_finished(logged, model):
                if not _has_tags(logged, model):
                    self._client.set_logged_model_tags(logged.model_id, dict(model.tags))
                continue
            if logged is not None:
                self._client.delete_logged_model(logged.model_id)
            created = self._client.create_logged_model(
                self._experiment_id,
                model.name,
                run.info.run_id,
                {**model.tags, MODEL_DIGEST: _model_digest(model)},
                dict(model.params),
                "checkpoint",
            )
            waiting[model.step] = str(created.model_id)
        if waiting:
            from mlflow.entities import LoggedModelOutput

            outputs = [LoggedModelOutput(id_, step) for step, id_ in waiting.items()]
            self._client.log_outputs(run.info.run_id, outputs)
        return waiting

    def finish(self, run: Any, waiting: Iterable[str]) -> None:
        """Mark models whose metrics are all logged as ready."""
        for id_ in waiting:
            model = self._client.finalize_logged_model(id_, "READY")
            self._all().setdefault(run.info.run_id, {})[model.tags[KEY]] = model

    def tidy(self, run_ids: Collection[str]) -> None:
        """Delete the models whose run is gone."""
        for run_id, models in self._all().items():
            for model in models.values() if run_id not in run_ids else ():
                self._client.delete_logged_model(model.model_id)

    def _of(self, run: Any) -> Mapping[str, Any]:
        return self._all().get(run.info.run_id, {})

    def _all(self) -> dict[str, dict[str, Any]]:
        """Return run id -> key -> model."""
        if self._by_run is None:
            self._by_run = {}
            for model in every(self._client.search_logged_models, self._experiment_id):
                if key := model.tags.get(KEY):
                    self._by_run.setdefault(model.source_run_id, {})[key] = model
        return self._by_run


def _is_finished(logged: Any, wanted: LoggedModel) -> bool:
    if logged is None or str(logged.status) != "READY":
        return False
    return bool(logged.tags.get(MODEL_DIGEST) == _model_digest(wanted))


def _has_tags(logged: Any, wanted: LoggedModel) -> bool:
    return all(logged.tags.get(name) == value for name, value in wanted.tags.items())


def _model_digest(model: LoggedModel) -> str:
    """Return the hash of a model's content without its tags, which a person can change in
    MLflow."""
    return digest(model._replace(tags={}))
