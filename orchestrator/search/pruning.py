"""When a trial ends before its cells do: collapsed, or pruned by what they show so far."""

import math
import time
from collections.abc import Sequence

from orchestrator.analysis.runs import measure
from orchestrator.analysis.text import counted
from orchestrator.files import read_lines
from orchestrator.records import Record, Score
from orchestrator.rundir import RunFolder
from orchestrator.runs.collect import collect
from orchestrator.runs.state import read_state
from orchestrator.search.block import SearchObjective
from orchestrator.search.design import OpenTrial, Search
from orchestrator.search.scorer import TrialScorer

LOOK_SECONDS = 2.0
"""How often the metrics of cells that train are read."""
REWARD = "train/reward_mean"
WINDOW, HAD, LOST = 10, 0.1, 0.2
"""A reward is lost when its mean over the last WINDOW train steps is at most LOST of the best such
mean, which was at least HAD: the rule by which the embedded trainer judges a whole run."""
BLOCKS = 100
"""Items of a task are told one by one up to so many, and as the means of so many blocks beyond:
each value is a line of the journal."""
_SEED = 1_000_000
"""Room for the tasks of a seed in the numbering of values."""


def collapsed(trial: OpenTrial, records: Sequence[Record], folder: RunFolder) -> str:
    """A sentence if one of its cells has collapsed while others are still to be trained."""
    if len(records) == len(trial.cells):
        return ""  # all is known: the collapse is in its value
    for record in records:
        if record.outcome is not None and record.outcome.kind == "collapsed":
            return f"{record.cell.slug} collapsed: {record.outcome.detail or record.outcome.cause}"
    for record in _training(trial, folder):
        rewards = [p.values[REWARD] for p in record.metrics if REWARD in p.values]
        if not all(map(math.isfinite, rewards)) or lost(rewards):
            return f"{record.cell.slug} is collapsing: it has lost its reward"
    return ""


def lost(rewards: Sequence[float]) -> bool:
    """Whether a reward once had is gone."""
    if len(rewards) < 2 * WINDOW:
        return False
    sums = [sum(rewards[i : i + WINDOW]) for i in range(len(rewards) - WINDOW + 1)]
    return max(sums) >= HAD * WINDOW and sums[-1] <= LOST * max(sums)


def pruned(
    trial: OpenTrial, records: Sequence[Record], folder: RunFolder, scorer: TrialScorer
) -> str:
    """A sentence if the pruner gives the trial up, after telling it what is new."""
    search = trial.search
    known = list(records)
    if search.tune.block.pruner == "wilcoxon":
        if search.objectives[0].is_scored and not scorer.has(records):
            scorer.ask(records)
            return ""
        trial.judged = len(records)
    else:
        _training(trial, folder)
        ended = {record.cell.id for record in records}
        known += [record for id_, record in trial.seen.items() if id_ not in ended]
    values = intermediate(search, known, scorer.scores(records), folder)
    each = search.tune.block.pruner != "wilcoxon"
    behind = False
    fresh = sorted(values.keys() - trial.reported)
    for place, at in enumerate(fresh, start=1):
        trial.handle.report(values[at], at)
        trial.reported.add(at)
        if each or place == len(fresh):  # Hyperband notes who reached a rung when it is asked
            behind = trial.handle.should_prune()
    if not behind or len(records) == len(trial.cells):
        return ""
    shown = counted(len(trial.reported), "value")
    return f"pruned with {shown}: it is behind the trials before it"


def intermediate(
    search: Search, records: Sequence[Record], scores: Sequence[Score], folder: RunFolder
) -> dict[int, float]:
    """What the pruner goes by. Records: of some or all of a trial's cells, in order.

    Wilcoxon's: block of items and seed -> value, numbered alike in every trial. The others': train
    step -> mean over the seeds, at the steps that all of them have reached.
    """
    formula = search.tune.prune_on
    if formula is None:
        return {}
    if search.tune.block.pruner == "wilcoxon":
        values = _by_item(search, records, scores, folder)
    elif len(records) == len(search.tune.seeds):
        values = _by_step(formula, records)
    else:
        values = {}
    return {at: value for at, value in values.items() if math.isfinite(value)}


def _training(trial: OpenTrial, folder: RunFolder) -> list[Record]:
    """Its running cells as they are now; nothing if that was read a moment ago."""
    if time.monotonic() < trial.looked + LOOK_SECONDS:
        return []
    running = [c for c in trial.cells if read_state(folder.cell(c)).state == "running"]
    if running:
        trial.looked = time.monotonic()
    trial.seen = {record.cell.id: record for record in collect(running, folder)}
    return list(trial.seen.values())


def _by_step(formula: SearchObjective, records: Sequence[Record]) -> dict[int, float]:
    columns = [{p.step: formula.value(p.values) for p in record.metrics} for record in records]
    reached = set.intersection(
        *(
            {step for step, value in own.items() if step > 0 and math.isfinite(value)}
            for own in columns
        )
    )
    return {step: sum(own[step] for own in columns) / len(columns) for step in reached}


def _by_item(
    search: Search, records: Sequence[Record], scores: Sequence[Score], folder: RunFolder
) -> dict[int, float]:
    """Shares of right responses; for an objective that is not one evaluated metric, its value."""
    (formula,) = search.objectives
    found: dict[int, list[float]] = {}
    for place, record in enumerate(records):
        own = [score for score in scores if score.cell_id == record.cell.id]
        paths = _items_of(formula, own)
        if not paths:
            (run,) = measure([record], own)
            found[place * _SEED] = [formula.value(run.finals)]
        for task, path in enumerate(paths):
            for item in read_lines(folder.cell(record.cell).path / path):
                right = item["correct"]
                at = place * _SEED + task * BLOCKS + int(item["item"]) % BLOCKS
                found.setdefault(at, []).append(formula.terms[0][0] * sum(right) / len(right))
    return {at: math.fsum(values) / len(values) for at, values in found.items()}


def _items_of(formula: SearchObjective, scores: Sequence[Score]) -> list[str]:
    """Files of the items that one evaluated mean@k metric is the mean of, in a stable order."""
    if len(formula.terms) > 1 or not formula.is_scored:
        return []
    _, task, metric = formula.metrics[0].split("/", 2)
    named = {"in_domain": "in", "out_of_domain": "out"}.get(task)
    return [
        score.items_path
        for score in sorted(scores, key=lambda s: (s.task, s.eval_seed, s.metric))
        if metric.startswith("mean")
        and score.metric.startswith("mean@")
        and score.items_path
        and (score.task == task or score.domain == named)
    ]
