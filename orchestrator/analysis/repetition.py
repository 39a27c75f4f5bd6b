"""Compare two runs of the same cells: curves, checkpoints and scores.

The embedded trainer must give equal bytes: every value of every curve (except wall-clock times),
every tensor of every checkpoint, every score and every response. It does so where the same kernels
for the same CPU compute; if others computed one run, a row that differs says so. Libraries need
not: their kernels, their rollout engines and the order of their workers differ from run to run. But
two runs start from the same policy and the same prompts. So the values of the first step must be
within a bound, and
final scores within their standard errors.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from orchestrator.errors import OrchError
from orchestrator.evaluate import read_scores
from orchestrator.evaluate.checkpoint import content_hash, stamp, tensor_hashes
from orchestrator.files import read_json
from orchestrator.records import Checkpoint, Record, Score
from orchestrator.rundir import COMPUTED_BY, CellDir

Agreement = Literal["identical", "within bounds", "differs", "missing"]
WALL_CLOCK = "time/"
"""Prefix of metrics that measure the machine and not the training."""


@dataclass(frozen=True)
class Bounds:
    """The largest allowed differences between two runs of a library."""

    first_step: float = 0.05
    """Relative difference of each value at the first step that both runs logged."""
    scores: float = 3.0
    """Difference of two scores, in its standard errors."""


class RepetitionRow(NamedTuple):
    """The agreement of two runs of a cell in their curves, checkpoints or scores."""

    cell: str
    what: str
    """curves, checkpoints or scores."""
    agreement: Agreement
    detail: str
    """The amount that was compared, or the first place where the runs differ."""

    @property
    def is_kept(self) -> bool:
        """Return True if the runs are identical or within bounds."""
        return self.agreement in ("identical", "within bounds")


def compare_runs(
    first: Sequence[Record], second: Sequence[Record], bounds: Bounds
) -> list[RepetitionRow]:
    """Return rows for each cell: curves, checkpoints and, if it has any, scores.

    A cell that has not succeeded in both runs has one row, `training`. Both lists must have the
    same cells in the same order.
    """
    return [
        row._replace(detail=row.detail + _why(one, other)) if row.agreement == "differs" else row
        for one, other in zip(first, second, strict=True)
        for row in _rows(one, other, bounds)
    ]


def _why(one: Record, other: Record) -> str:
    """Return what computed the two runs, if they differ in it; else an empty text."""
    by = _computed_by(one), _computed_by(other)
    if by[0] == by[1]:
        return ""
    return f"; one was computed by {by[0]}, the other by {by[1]}, which round in other places"


def _computed_by(record: Record) -> str:
    job = record.directory / "attempts" / str(len(record.attempts)) / "job.json"
    try:
        versions = (read_json(job) or {}).get("versions")
    except OrchError:
        versions = None
    return str(versions.get(COMPUTED_BY, "")) if isinstance(versions, dict) else ""


def _rows(one: Record, other: Record, bounds: Bounds) -> Iterator[RepetitionRow]:
    exact = one.cell.scale == "micro"
    name = one.cell.slug
    if "succeeded" not in (one.state, other.state) or one.state != other.state:
        yield RepetitionRow(name, "training", "missing", f"{one.state} and {other.state}")
        return
    curves = (_curves(one), _curves(other))
    yield RepetitionRow(
        name, "curves", *(_same_curves(*curves) if exact else _near_curves(*curves, bounds))
    )
    yield RepetitionRow(name, "checkpoints", *_checkpoints(one, other, exact))
    left, right = (read_scores(CellDir(record.directory)) for record in (one, other))
    if not left and not right:
        return
    yield RepetitionRow(
        name,
        "scores",
        *(_same_scores(one, other, left, right) if exact else _near_scores(left, right, bounds)),
    )


def _curves(record: Record) -> dict[tuple[int, str], float]:
    """Return (step, metric) -> value, without metrics of the machine's clock."""
    return {
        (point.step, name): value
        for point in record.metrics
        for name, value in point.values.items()
        if not name.startswith(WALL_CLOCK)
    }


def _same_curves(
    one: Mapping[tuple[int, str], float], other: Mapping[tuple[int, str], float]
) -> tuple[Agreement, str]:
    for key in sorted(one.keys() | other.keys()):
        left, right = one.get(key), other.get(key)
        if left != right and not (_is_nan(left) and _is_nan(right)):
            step, metric = key
            return "differs", f"from step {step} on: {metric} {_shown(left)} and {_shown(right)}"
    return ("identical", f"{len(one)} values") if one else ("missing", "no value was logged")


def _near_curves(
    one: Mapping[tuple[int, str], float], other: Mapping[tuple[int, str], float], bounds: Bounds
) -> tuple[Agreement, str]:
    shared = one.keys() & other.keys()
    if not shared:
        return "missing", "no step was logged by both"
    first = min(step for step, _ in shared)
    worst, where = 0.0, ""
    for step, metric in sorted(shared):
        if step != first:
            continue
        left, right = one[step, metric], other[step, metric]
        scale = max(abs(left), abs(right))
        off = abs(left - right) / scale if scale else 0.0
        # `not <=` and not `>`: a NaN counts as the worst.
        if not off <= worst:
            worst, where = off, f"{metric} {_shown(left)} and {_shown(right)}"
    sentence = f"step {first}: at most {worst:.2%} apart of {bounds.first_step:.0%} allowed"
    if worst == 0 and one == other:
        return "identical", f"{len(one)} values"
    if worst <= bounds.first_step:
        return "within bounds", sentence
    return "differs", f"{sentence} ({where})"


def _checkpoints(one: Record, other: Record, exact: bool) -> tuple[Agreement, str]:
    steps = [[checkpoint.step for checkpoint in record.checkpoints] for record in (one, other)]
    if steps[0] != steps[1] or not steps[0]:
        return ("differs" if any(steps) else "missing"), f"steps {steps[0]} and {steps[1]}"
    if not exact:
        return "within bounds", f"{len(steps[0])} at the same steps; their bytes are not promised"
    num_tensors = 0
    for left, right in zip(one.checkpoints, other.checkpoints, strict=True):
        try:
            difference = _first_difference(left, right)
        except OrchError as error:
            return "missing", str(error)
        if isinstance(difference, str):
            return "differs", f"step {left.step}: {difference}"
        num_tensors += difference
    return "identical", f"{len(steps[0])} checkpoints, {num_tensors} tensors"


def _first_difference(left: Checkpoint, right: Checkpoint) -> str | int:
    """Return the name of the first tensor or file that differs, or the number of equal tensors."""
    files, other_files = stamp(left.path), stamp(right.path)
    weights = [name for name in files if name.endswith(".safetensors")]
    tensors = [
        {key: value for name in weights for key, value in _tensors(path / name).items()}
        for path in (left.path, right.path)
    ]
    for name in sorted(tensors[0].keys() | tensors[1].keys()):
        if tensors[0].get(name) != tensors[1].get(name):
            return name
    if content_hash(left.path, files) != content_hash(right.path, other_files):
        return "its config or its tokenizer"
    return len(tensors[0])


def _tensors(file: Path) -> dict[str, str]:
    return tensor_hashes(file) if file.is_file() else {}


ScoreName = tuple[int, str, str, int]


def _by_name(scores: Sequence[Score]) -> dict[ScoreName, Score]:
    return {(s.step, s.task, s.metric, s.eval_seed): s for s in scores}


def _same_scores(
    one: Record, other: Record, left: Sequence[Score], right: Sequence[Score]
) -> tuple[Agreement, str]:
    lefts, rights = _by_name(left), _by_name(right)
    for name in sorted(lefts.keys() | rights.keys()):
        a, b = lefts.get(name), rights.get(name)
        step, task, metric, _ = name
        if a is None or b is None:
            return "missing", f"{task} {metric} at step {step} is there only once"
        if a.value != b.value:
            return "differs", f"{task} {metric} at step {step}: {a.value:g} and {b.value:g}"
        paths = [record.directory / score.items_path for record, score in ((one, a), (other, b))]
        if a.items_path and not _same_bytes(*paths):
            return "differs", f"responses to {task} at step {step}"
    return "identical", f"{len(lefts)} scores with their responses"


def _same_bytes(one: Path, other: Path) -> bool:
    try:
        return one.read_bytes() == other.read_bytes()
    except OSError:
        return False


def _near_scores(
    left: Sequence[Score], right: Sequence[Score], bounds: Bounds
) -> tuple[Agreement, str]:
    lefts, rights = _by_name(left), _by_name(right)
    if lefts.keys() != rights.keys():
        return "missing", f"{len(lefts)} and {len(rights)} scores"
    worst, where = 0.0, ""
    for name, a in sorted(lefts.items()):
        b = rights[name]
        error = math.hypot(a.stderr or 0.0, b.stderr or 0.0)
        apart = abs(a.value - b.value)
        off = apart / error if error else math.inf if apart else 0.0
        if not off <= worst:
            worst, where = off, f"{name[1]} {name[2]} {a.value:g} and {b.value:g}"
    sentence = f"at most {worst:.1f} standard errors apart of {bounds.scores:g} allowed"
    return (
        ("within bounds", sentence)
        if worst <= bounds.scores
        else ("differs", f"{sentence} ({where})")
    )


def _is_nan(value: float | None) -> bool:
    return value is not None and math.isnan(value)


def _shown(value: float | None) -> str:
    return "nothing" if value is None else f"{value:.17g}"
