"""What an experiment cannot show, from what it is made of."""

from collections.abc import Collection, Iterator, Sequence
from statistics import median

from orchestrator.analysis.compare import Comparison
from orchestrator.analysis.phrases import counted, listed, number
from orchestrator.analysis.runs import MeasuredRun
from orchestrator.records import Score, Spec

UNCORRECTED = (
    "Claims are corrected for their number; the intervals of figures and tables are not. Among "
    "many intervals some exclude the truth."
)


def limits(
    comparison: Comparison, scores: Sequence[Score], spec: Spec, baselines: Collection[str] = ()
) -> tuple[str, ...]:
    """One sentence each, the weightiest first. `baselines`: those that are scored, as
    `model (chat template: default)`."""
    return (
        *_scale(comparison.runs),
        *_seeds(comparison),
        *_unfinished(comparison),
        *_evaluation(scores, spec),
        *_baselines(spec, baselines),
        UNCORRECTED,
    )


def _scale(runs: Sequence[MeasuredRun]) -> Iterator[str]:
    if not is_micro(runs):
        return
    yield (
        "Every run is of the embedded trainer: a policy of tens of thousands of parameters on "
        "strings of digits. It shows what a KL configuration does to the gradient and to training; "
        "none of these numbers is the paper's, and none says how large an effect is on a language "
        "model."
    )
    libraries = {name for run in runs for name in run.traits.get("backend", "").split(" | ")}
    if named := sorted(libraries - {"", "micro"}):
        yield (
            f"The cells are declared for {listed(named)}; the embedded trainer trained each in the "
            "dialect of its library, as far as it imitates it. A difference between libraries here "
            "is a prediction; none of their code ran."
        )


def _baselines(spec: Spec, scored: Collection[str]) -> Iterator[str]:
    declared = [f"{b.model} (chat template: {b.chat_template})" for b in spec.evaluation.baselines]
    if missing := [name for name in declared if name not in scored]:
        yield (
            f"Of the baselines the spec declares, {listed(missing)} "
            f"{'is' if len(missing) == 1 else 'are'} not evaluated: `orch eval` does. Curves start "
            "at train step 0, which is the base policy."
        )


def is_micro(runs: Sequence[MeasuredRun]) -> bool:
    """Whether these are rehearsals."""
    return any(run.record.cell.scale == "micro" for run in runs)


def _seeds(comparison: Comparison) -> Iterator[str]:
    counts = sorted({len(c.runs) for c in comparison.configurations})
    if not counts:
        return
    spread = f"{counts[0]} to {counts[-1]} seeds" if len(counts) > 1 else counted(counts[0], "seed")
    metric = comparison.in_domain
    widths = [
        width
        for c in comparison.configurations
        if metric is not None
        and metric in c.finals
        and (width := c.finals[metric].half_width) is not None
    ]
    if not widths:
        yield f"With {spread} a configuration there are no intervals: no difference is established."
        return
    yield (
        f"There are {spread} a configuration. The median 95 % interval of the in-domain result is "
        f"±{number(median(widths))}: much smaller differences cannot be told from chance."
    )
    yield (
        "Seeds vary the order of prompts, sampling and nothing else: the initial policy and the "
        "hyperparameters are the same, and results may depend on them."
    )


def _unfinished(comparison: Comparison) -> Iterator[str]:
    states: dict[str, int] = {}
    for run in comparison.runs:
        if run.record.state != "succeeded":
            states[run.record.state] = states.get(run.record.state, 0) + 1
    if states:
        named = listed(f"{count} {state}" for state, count in sorted(states.items()))
        total = counted(len(comparison.runs), "cell")
        yield (
            f"Of {total}, {named}: their configurations rest on fewer seeds, and cells that fail "
            "need not be a random choice."
        )


def _evaluation(scores: Sequence[Score], spec: Spec) -> Iterator[str]:
    if not scores:
        yield (
            "No checkpoint was evaluated with the harness; accuracies are the trainer's own, where "
            "it has any."
        )
        return
    tasks = {score.task: score for score in scores}
    sizes = listed(
        f"{name} ({one.num_items} × {one.repeats})" for name, one in sorted(tasks.items())
    )
    yield f"Scores rest on these items × responses: {sizes}."
    if spec.evaluation.sampling.min_p == 1.0 or any(s.sampling.min_p == 1.0 for s in scores):
        yield (
            "Evaluation sampled with min_p = 1.0, which keeps only the likeliest token: it is "
            "greedy decoding, and repeats of an item are the same response."
        )
