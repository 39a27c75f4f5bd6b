"""The Markdown on a run's page: what was asked, what came of it, where it lies."""

from collections import Counter
from collections.abc import Iterable, Sequence

from orchestrator.rundir import RunFolder
from orchestrator.scale import verdict_on
from orchestrator.tracking.views import listed, view_key, views
from orchestrator.types import Record, Score, Spec, Study

MICRO_NOTE = (
    "**Micro scale**: trained by the embedded trainer on this machine as a rehearsal. Its numbers "
    "are those of a tiny policy, never of the model it stands for."
)


def cell(record: Record, scores: Sequence[Score], fault: str = "") -> str:
    """One cell: its place in the grid, what its KL term does, and what came of it."""
    made = record.cell
    axes = ", ".join(f"{name} `{value}`" for name, value in made.axes.items())
    view = view_key(f"kl-{made.settings.kl.label}")
    parts = [
        axes,
        f"**KL term** {verdict_on(made.settings).summary}",
        MICRO_NOTE if made.scale == "micro" else "",
        f"**State** {record.state}{_message(record)}",
        _outcome(record),
        _scores(scores),
        "\n".join(f"- {text}" for text in (*record.faults, fault) if text),
        f"[The report](orch:report), [all runs with this KL term](orch:{view})",
        f"Studies: {', '.join(made.studies)}. Run directory: `{record.directory}`",
    ]
    return "\n\n".join(part for part in parts if part)


def study(name: str, declared: Study | None, spec: Spec, records: Sequence[Record]) -> str:
    """One study: its title and figure, the question, the claims, how far its cells are."""
    title = declared.title if declared and declared.title else name
    figure = f" ({declared.figure})" if declared and declared.figure else ""
    links = f"[Its runs and curves](orch:{view_key(f'study-{name}')}), [the report](orch:report)"
    parts = [f"## {title}{figure}", spec.question, links, _claims(spec), _progress(records)]
    return "\n\n".join(part for part in parts if part)


def summary(
    spec: Spec, records: Sequence[Record], folder: RunFolder, num_models: int = 0
) -> str:  # fmt: skip
    """The experiment: its question, description and claims, how far it is, where it lies."""
    micro = bool(records) and records[0].cell.scale == "micro"
    parts = [
        f"# {spec.name}",
        MICRO_NOTE if micro else "",
        spec.question,
        spec.description,
        "[The report](orch:report), an artifact of the run [summary](orch:summary)"
        if (folder.report / "index.html").is_file()
        else "The report is an artifact of the run `summary`, once `orch report` has made it.",
        listed(views(records)),
        f"[Evaluated checkpoints](orch:models): {num_models}, as models with their scores"
        if num_models
        else "",
        _claims(spec),
        _progress(records),
        f"Run directories: `{folder.path}`",
    ]
    return "\n\n".join(part for part in parts if part)


def _message(record: Record) -> str:
    end = record.last
    tries = len(record.attempts)
    text = f", {tries} attempts" if tries > 1 else ""
    return f"{text}: {end.message}" if end is not None and end.message else text


def _outcome(record: Record) -> str:
    seen = record.outcome
    if seen is None:
        return ""
    cause = f" ({seen.cause})" if seen.cause else ""
    step = f" at step {seen.step}" if seen.step is not None else ""
    detail = f": {seen.detail}" if seen.detail else ""
    return f"**Outcome** {seen.kind}{cause}{step}{detail}"


def _scores(scores: Iterable[Score]) -> str:
    """A table of the scores of the last checkpoint, one row a task, metric and evaluation seed."""
    listed = list(scores)
    if not listed:
        return ""
    step = max(score.step for score in listed)
    rows = [
        f"| {s.task} | {s.metric} | {s.value:.4f} | {'' if s.stderr is None else f'{s.stderr:.4f}'}"
        f" | {s.num_items} x {s.repeats} | {s.eval_seed} |"
        for s in listed
        if s.step == step
    ]
    head = ["| task | metric | value | stderr over items | items x repeats | seed |",
            "|---|---|---|---|---|---|"]  # fmt: skip
    return "\n".join([f"Scores after step {step}:", "", *head, *rows])


def _claims(spec: Spec) -> str:
    listed = [f"- **{name}**: `{statement}`" for name, statement in spec.claims.items()]
    return "\n".join(["Claims:", "", *listed]) if listed else ""


def _progress(records: Sequence[Record]) -> str:
    counts = Counter(record.state for record in records)
    states = ", ".join(f"{count} {state}" for state, count in sorted(counts.items()))
    collapsed = sum(1 for r in records if r.outcome is not None and r.outcome.kind == "collapsed")
    return f"{len(records)} cells: {states}; {collapsed} collapsed."
