"""What is known of the cells: their scores, and what keeps them from being averaged or compared.

A mean is only told over everything that was asked: a missing seed, a missing task, a value that is
not a number, and it is left out, with a sentence. Scores of different exams (another task version,
other items, another sampling) stay as they are, and are told to be different.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from orchestrator.evaluate.aggregates import aggregate
from orchestrator.evaluate.results import Result, current
from orchestrator.evaluate.survey import divergence_tasks, seeds_of, tasks_of
from orchestrator.rundir import RunFolder
from orchestrator.types import Cell, Evaluation, Score

NAMED = 3
"""Cells a sentence names before it counts the rest."""


Shares = dict[str, tuple[float, ...]]
"""Task -> share of right responses of each item, over evaluation seeds."""


class Known(NamedTuple):
    """Scores, means over domains last, and a sentence for each thing that is wrong with them."""

    scores: list[Score]
    faults: list[str]
    items: dict[str, Shares]
    """Cell id -> single items at its last step, of tasks scored with every seed that is asked."""


def known(cells: Sequence[Cell], evaluation: Evaluation, folder: RunFolder) -> Known:
    """The scores on disk of what is asked, with the means over each domain's tasks."""
    results = {cell.id: _asked(cell, evaluation, folder) for cell in cells}
    slugs = {cell.id: cell.slug for cell in cells}
    every = [score for of_cell in results.values() for one in of_cell for score in one.scores]
    finite = [score for score in every if math.isfinite(score.value)]
    exams = {cell.id: _domains(cell, evaluation) for cell in cells if results[cell.id]}
    faults = [
        *_not_numbers(every, slugs),
        *_missing(cells, results, evaluation),
        *_differences(results, slugs),
    ]
    items = {cell: _shares(of_cell, len(evaluation.seeds)) for cell, of_cell in results.items()}
    return Known([*finite, *aggregate(finite, exams)], faults, items)


def _shares(results: Sequence[Result], seeds: int) -> Shares:
    """The items of each task at the last step that has any."""
    last = max((one.asked.step for one in results if one.shares), default=0)
    tasks: dict[str, list[Result]] = defaultdict(list)
    for one in results:
        if one.asked.step == last and one.shares:
            tasks[one.asked.task.name].append(one)
    return {
        task: tuple(math.fsum(item) / len(item) for item in zip(*(one.shares for one in same),
                                                                strict=True))
        for task, same in tasks.items()
        if len(same) == seeds and len({one.items for one in same}) == 1
    }  # fmt: skip


def _asked(cell: Cell, evaluation: Evaluation, folder: RunFolder) -> list[Result]:
    """Its current results of the tasks and seeds that are asked now."""
    names = {
        "accuracy": {task.name for task in tasks_of(cell, evaluation)},
        "divergence": {task.name for task in divergence_tasks(cell, evaluation)},
    }
    return [
        one
        for one in current(folder.cell(cell))
        if one.asked.task.name in names[one.asked.kind] and one.asked.seed in evaluation.seeds
    ]


def _domains(cell: Cell, evaluation: Evaluation) -> dict[str, set[str]]:
    """Domain -> the tasks its mean is over."""
    found: dict[str, set[str]] = defaultdict(set)
    for task in tasks_of(cell, evaluation):
        found[task.domain].add(task.name)
    return found


def _not_numbers(scores: Iterable[Score], slugs: Mapping[str, str]) -> Iterator[str]:
    for score in scores:
        if not math.isfinite(score.value):
            yield (
                f"{slugs[score.cell_id]} at step {score.step}: {score.task} {score.metric} is "
                f"{score.value}; it is in no mean. Remove its file below eval/ and evaluate again"
            )


def _missing(
    cells: Sequence[Cell], results: Mapping[str, Sequence[Result]], evaluation: Evaluation
) -> Iterator[str]:
    """Tasks and seeds that some checkpoint lacks though others of its tasks are there."""
    lacking: dict[tuple[str, int], list[str]] = defaultdict(list)
    for cell in cells:
        done: dict[int, set[tuple[str, int]]] = defaultdict(set)
        for one in results[cell.id]:
            if one.asked.kind == "accuracy":
                done[one.asked.step].add((one.asked.task.name, one.asked.seed))
        for step, there in done.items():
            for task in tasks_of(cell, evaluation):
                for seed in seeds_of(evaluation):
                    if (task.name, seed) not in there:
                        lacking[task.name, seed].append(f"{cell.slug} at step {step}")
    for (name, seed), where in sorted(lacking.items()):
        yield (
            f"{name} has no samples of evaluation seed {seed} for {_listed(where)}: means that "
            "need them are left out. `orch eval` makes them"
        )


def _differences(
    results: Mapping[str, Sequence[Result]], slugs: Mapping[str, str]
) -> Iterator[str]:
    """What makes two scores of one task answers to different questions."""
    looks: dict[str, Callable[[Result], str]] = {
        "task version": lambda one: one.asked.task_version,
        "sampling": lambda one: _shown(one.asked.sampling.model_dump()),
        "harness": lambda one: one.asked.harness,
        "chat template": lambda one: "on" if one.asked.chat_template else "off",
        "set of items": lambda one: one.items,
    }
    for what, look in looks.items():
        seen: dict[tuple[str, str], dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
        for cell_id, of_cell in results.items():
            for one in of_cell:
                value = look(one)
                if value and slugs[cell_id] not in seen[_title(one)][value]:
                    seen[_title(one)][value].append(slugs[cell_id])
        for (task, _), values in sorted(seen.items()):
            if len(values) > 1:
                each = "; ".join(f"{value}: {_listed(where)}" for value, where in values.items())
                yield (
                    f"{task} was not one exam for all: its {what} differs ({each}). Their scores "
                    "do not compare; `orch eval` scores all of them as the spec says now"
                )


def _title(one: Result) -> tuple[str, str]:
    return one.asked.task.name, one.asked.kind


def _shown(plain: Mapping[str, object]) -> str:
    return ", ".join(f"{name} {value}" for name, value in plain.items())


def _listed(names: Sequence[str]) -> str:
    rest = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {rest} more" if rest > 0 else "")
