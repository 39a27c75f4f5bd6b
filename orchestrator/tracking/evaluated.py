"""Which checkpoints were evaluated, as MLflow's models: what each is and where it lies."""

import re
from collections.abc import Iterable
from pathlib import Path

from orchestrator.fields import text_of
from orchestrator.fingerprint import digest
from orchestrator.tracking.content import Model, safe_params, safe_tags
from orchestrator.types import Record, Score

_FORBIDDEN = re.compile(r"[/:.%\"'\s]")
_MAX_NAME = 400


def evaluated(record: Record, scores: Iterable[Score]) -> tuple[Model, ...]:
    """One model for each train step that has scores, in order."""
    lies = {checkpoint.step: checkpoint.path for checkpoint in record.checkpoints}
    at: dict[int, list[Score]] = {}
    for score in scores:
        at.setdefault(score.step, []).append(score)
    return tuple(_model(record, step, lies.get(step), at[step]) for step in sorted(at))


def _model(record: Record, step: int, folder: Path | None, scores: Iterable[Score]) -> Model:
    cell = record.cell
    settings = cell.declared or cell.settings
    where = folder.absolute().as_uri() if folder is not None else ""
    told = f"{settings.kl.label}-b{text_of(settings.kl.beta)}-s{settings.seed}-step{step}"
    name = _FORBIDDEN.sub("_", f"{told}-{settings.model.name}-{cell.id}")[:_MAX_NAME]
    note = [
        f"The policy of cell `{cell.id}` (`{cell.slug}`) after train step {step}.",
        "MLflow holds no weights of it.",
        f"Checkpoint: `{folder}`" if folder else "Its checkpoint is not on disk (any more).",
        "Its metrics are those of its evaluation; its source run holds the curves.",
    ]
    tags = {
        "orch.key": f"cell/{cell.id}/step/{step}",
        "orch.cell_id": cell.id,
        "orch.checkpoint": where,
        "scale": cell.scale,
        "mlflow.model.isExternal": "true",
        "mlflow.note.content": "\n\n".join(note),
    }
    params = {
        "train_step": str(step),
        "model": settings.model.name,
        "data": settings.data.name,
        "backend": settings.backend.name,
        "kl": settings.kl.label,
        "beta": text_of(settings.kl.beta),
        "seed": str(settings.seed),
    }
    held = sorted([s.task, s.metric, s.eval_seed, repr(s.value)] for s in scores)
    return Model(
        tags["orch.key"], name, step, safe_tags(tags), safe_params(params), digest(held)
    )  # fmt: skip
