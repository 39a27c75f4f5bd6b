"""Early ends of trials: a cell has collapsed, or Optuna's pruner ends the trial."""

import math
import time
from collections.abc import Sequence
from typing import Any

from orchestrator.analysis.runs import measure
from orchestrator.analysis.text import counted
from orchestrator.files import read_lines
from orchestrator.records import Record, Score
from orchestrator.rundir import RunFolder
from orchestrator.runs.collect import collect
from orchestrator.runs.state import read_state
from orchestrator.search.block import SearchObjective, without_experimental_warnings
from orchestrator.search.design import OpenTrial, Search

READ_SECONDS = 2.0
"""Seconds between two readings of the metrics of cells in training."""
REWARD = "train/reward_mean"
WINDOW, MIN_BEST, LOST_SHARE = 10, 0.1, 0.2
"""A reward is lost if its mean over the last WINDOW train steps is at most LOST_SHARE of the best
such mean, and the best was at least MIN_BEST. The embedded trainer judges a whole run by this
rule."""
BLOCKS = 100
"""Largest number of values per task and seed, because each value is a line of the journal. If a
task has more items, each value is the mean of one of so many blocks of items."""
_SEED_STRIDE = 1_000_000
"""Number of values reserved for the tasks of one seed."""


def pruner(search: Search) -> Any:
    """Return Optuna's pruner.

    Hyperband's resource is train steps, from the first in-loop evaluation on.
    """
    from optuna import pruners

    match search.tune.block.pruner:
        case "hyperband":
            cell = search.example_cell()
            steps = cell.settings.num_train_steps
            first = cell.cadence.evaluate_every_steps or max(1, steps // 10)
            return pruners.HyperbandPruner(min_resource=first, max_resource=steps)
        case "median":
            return pruners.MedianPruner(n_startup_trials=4)
        case "wilcoxon":
            with without_experimental_warnings():
                return pruners.WilcoxonPruner()
        case "none":
            return pruners.NopPruner()


def why_collapsed(trial: OpenTrial, records: Sequence[Record], folder: RunFolder) -> str:
    """Return a sentence if a cell of the trial has collapsed and other cells still need
    training."""
    if len(records) == len(trial.cells):
        return ""  # every cell has ended: the collapse is in the trial's value
    for record in records:
        if record.outcome is not None and record.outcome.kind == "collapsed":
            return f"{record.cell.slug} collapsed: {record.outcome.detail or record.outcome.cause}"
    for record in _read_running(trial, folder):
        rewards = [p.values[REWARD] for p in record.metrics if REWARD in p.values]
        if not all(map(math.isfinite, rewards)) or is_reward_lost(rewards):
            return f"{record.cell.slug} is collapsing: it has lost its reward"
    return ""


def is_reward_lost(rewards: Sequence[float]) -> bool:
    """Return True if the policy has lost a reward that it had before. rewards: one per train
    step."""
    if len(rewards) < 2 * WINDOW:
        return False
    # Sums in place of means: WINDOW is a factor on both sides of the comparison.
    sums = [sum(rewards[i : i + WINDOW]) for i in range(len(rewards) - WINDOW + 1)]
    return max(sums) >= MIN_BEST * WINDOW and sums[-1] <= LOST_SHARE * max(sums)


def why_pruned(
    trial: OpenTrial, records: Sequence[Record], scores: Sequence[Score], folder: RunFolder
) -> str:
    """Report new values to the pruner. Return a sentence if the pruner ends the trial.

    records: the records of ended cells, in order. scores: the scores of these records.
    """
    search = trial.search
    is_stepwise = search.tune.block.pruner != "wilcoxon"
    measured = list(records)
    if is_stepwise:
        _read_running(trial, folder)
        ended = {record.cell.id for record in records}
        measured += [record for id_, record in trial.running.items() if id_ not in ended]
    else:
        trial.num_judged = len(records)
    values = intermediate_values(search, measured, scores, folder)
    is_behind = False
    new = sorted(values.keys() - trial.reported)
    for i, step in enumerate(new, start=1):
        trial.optuna_trial.report(values[step], step)
        trial.reported.add(step)
        # `should_prune` also records that the trial has reached a rung of Hyperband, so it is
        # called at each step.
        if is_stepwise or i == len(new):
            is_behind = trial.optuna_trial.should_prune()
    if not is_behind or len(records) == len(trial.cells):
        return ""
    return f"pruned with {counted(len(trial.reported), 'value')}: it is behind the trials before it"


def intermediate_values(
    search: Search, records: Sequence[Record], scores: Sequence[Score], folder: RunFolder
) -> dict[int, float]:
    """Return the values that the pruner compares. records: of a trial's cells, in order.

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
    return {step: value for step, value in values.items() if math.isfinite(value)}


def _read_running(trial: OpenTrial, folder: RunFolder) -> list[Record]:
    """Return the records of the trial's running cells.

    Return nothing if they were read less than READ_SECONDS ago.
    """
    if time.monotonic() < trial.running_read_at + READ_SECONDS:
        return []
    running = [c for c in trial.cells if read_state(folder.cell(c)).state == "running"]
    if running:
        trial.running_read_at = time.monotonic()
    trial.running = {record.cell.id: record for record in collect(running, folder)}
    return list(trial.running.values())


def _by_step(formula: SearchObjective, records: Sequence[Record]) -> dict[int, float]:
    columns = [{p.step: formula.value(p.values) for p in record.metrics} for record in records]
    reached = set.intersection(
        *(
            {step for step, value in column.items() if step > 0 and math.isfinite(value)}
            for column in columns
        )
    )
    return {step: sum(column[step] for column in columns) / len(columns) for step in reached}


def _by_item(
    search: Search, records: Sequence[Record], scores: Sequence[Score], folder: RunFolder
) -> dict[int, float]:
    """Return seed and block of items, as one number -> mean share of right responses.

    If the objective is not one evaluated metric, each seed has one value: the objective's.
    """
    (formula,) = search.objectives
    values: dict[int, list[float]] = {}
    for i, record in enumerate(records):
        own = [score for score in scores if score.cell_id == record.cell.id]
        paths = _item_files(formula, own)
        if not paths:
            (run,) = measure([record], own)
            values[i * _SEED_STRIDE] = [formula.value(run.finals)]
        for task, path in enumerate(paths):
            for item in read_lines(folder.cell(record.cell).path / path):
                right = item["correct"]
                number = i * _SEED_STRIDE + task * BLOCKS + int(item["item"]) % BLOCKS
                share = formula.terms[0][0] * sum(right) / len(right)
                values.setdefault(number, []).append(share)
    return {number: math.fsum(shares) / len(shares) for number, shares in values.items()}


def _item_files(formula: SearchObjective, scores: Sequence[Score]) -> list[str]:
    """Return the files of the items that one mean@k metric averages, in a stable order."""
    if len(formula.terms) > 1 or not formula.is_scored:
        return []
    _, task, metric = formula.metrics[0].split("/", 2)
    domain = {"in_domain": "in", "out_of_domain": "out"}.get(task)
    return [
        score.items_path
        for score in sorted(scores, key=lambda s: (s.task, s.eval_seed, s.metric))
        if metric.startswith("mean")
        and score.metric.startswith("mean@")
        and score.items_path
        and (score.task == task or score.domain == domain)
    ]
