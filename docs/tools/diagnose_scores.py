"""Score `orch diagnose` on runs with planted faults: how often does it name the fault?

    orch run tests/audit/planted/planted.yaml --runs-dir FOLDER     (others.yaml: others.micro)
    python -m docs.tools.diagnose_scores FOLDER/planted.micro [--keep logs.json.gz]
    python -m docs.tools.diagnose_scores libraries

A study of the spec plants one fault. A run of it counts as harmed if it ends far below the healthy
run of its policy, task, seed and learning rate, or if the fault itself says so (a KL that does not
pull never does). The rules never read the study. The runs of `others.yaml` were made and scored
after the rules were frozen.

`libraries`: the logs of real libraries in tests/audit/planted, whose causes are in a file of their
own (`causes.json`).
"""

import gzip
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from orchestrator.audit import audit
from orchestrator.audit.diagnose import (
    Trace,
    TrainingFacts,
    diagnose,
    facts_of,
    facts_of_finding,
    trace_of,
)
from orchestrator.imports.logged import LoggedRow, LoggedRun
from orchestrator.library.logged import Place
from orchestrator.rundir import RunFolder
from orchestrator.settings import Settings

TraceOf = Callable[[TrainingFacts | None], Trace]
"""A log as the rules see it: the launch decides the meaning of some names."""
NONE_PLANTED = ("healthy", "held", "rounded")
ALWAYS = ("kl_without_effect", "kl_too_strong")
"""Faults by the mathematics of the loss, whatever reward the run has."""
LOST = 0.1
"""Reward that a harmed run lacks, beside its healthy one."""
LAST = 20
"""Train steps that the last reward is a mean of."""


class PlantedRun(NamedTuple):
    """The log of one run and the fault that was planted in it."""

    study: str
    name: str
    settings: Settings
    rows: list[dict[str, Any]]

    @property
    def key(self) -> tuple[object, ...]:
        """What a run shares with its healthy run."""
        one = self.settings
        return one.model.name, one.data.name, one.seed, one.optimizer.learning_rate

    @property
    def end(self) -> float:
        """The last reward."""
        rewards = [r["values"]["train/reward_mean"] for r in self.rows if _is_step(r)]
        return float(np.mean(rewards[-LAST:]))


def _is_step(row: Mapping[str, Any]) -> bool:
    return "train/reward_mean" in row["values"]


def read(folder: Path) -> Iterator[PlantedRun]:
    """Yield the runs of a finished experiment."""
    for cell_dir in RunFolder(folder).cells():
        cell, log = cell_dir.read_cell(), cell_dir.attempts()[-1].path / "metrics.jsonl"
        rows = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
        yield PlantedRun(cell.studies[0], cell_dir.path.name, cell.settings, rows)


def keep(runs: list[PlantedRun], path: Path) -> None:
    """Write the logs, with three digits of each value and without evaluations and times."""
    plain = [
        {
            "study": run.study,
            "name": run.name,
            "settings": run.settings.model_dump(exclude_defaults=True),
            "rows": [
                [row["step"], {n: float(f"{v:.3g}") for n, v in row["values"].items()}]
                for row in run.rows
                if _is_step(row)
            ],
        }
        for run in runs
    ]
    with gzip.GzipFile(path, "wb", mtime=0) as file:
        file.write(json.dumps(plain, separators=(",", ":")).encode())


def kept(path: Path) -> list[PlantedRun]:
    """Return the runs that `keep` wrote."""
    with gzip.open(path) as file:
        return [
            PlantedRun(
                run["study"],
                run["name"],
                Settings.model_validate(run["settings"]),
                [{"step": step, "values": values} for step, values in run["rows"]],
            )
            for run in json.load(file)
        ]


class Answer(NamedTuple):
    """What was planted and what the diagnosis says."""

    run: PlantedRun
    truth: str | None
    """None: the fault was planted and did no harm; such a run is not scored."""
    causes: tuple[str, ...]
    certainty: str


class LibraryAnswer(NamedTuple):
    """The cause that was planted in a run of a library, and what the diagnosis says."""

    name: str
    truth: str
    causes: tuple[str, ...]
    certainty: str


def answers(runs: list[PlantedRun], *, with_settings: bool) -> Iterator[Answer]:
    """Yield the diagnosis of each run, of its log alone or with its settings."""
    healthy = {run.key: run.end for run in runs if run.study == "healthy"}
    for run in runs:
        logged = LoggedRun(
            run.name, "", "", "", [LoggedRow(r["step"], 0.0, r["values"]) for r in run.rows]
        )
        facts: TrainingFacts | None = facts_of(run.settings, "cell.json") if with_settings else None
        found = diagnose(trace_of(logged, None), facts)
        yield Answer(
            run,
            _truth(run, healthy),
            tuple(each.cause for each in found.candidates),
            found.first.certainty if found.first else "",
        )


def _truth(run: PlantedRun, healthy: Mapping[tuple[object, ...], float]) -> str | None:
    if run.study in NONE_PLANTED:
        return "nothing_wrong"
    # A rate that is too high has no healthy run of its own.
    usual = max(end for key, end in healthy.items() if key[:3] == run.key[:3])
    harmed = healthy.get(run.key, usual) - run.end > LOST
    return run.study if harmed or run.study in ALWAYS else None


def table(known: list[Answer], alone: list[Answer]) -> Iterator[str]:
    """Yield the lines of a Markdown table: for each cause how often it is named first, and in
    three, with the settings and of the log alone."""
    yield "| planted | runs | first | in three | first, log alone | in three | without harm |"
    yield "|---|---:|---:|---:|---:|---:|---:|"
    studies = sorted({one.run.study for one in known} - set(NONE_PLANTED))
    for cause in (*studies, "nothing_wrong"):
        both = [[one for one in scored if one.truth == cause] for scored in (known, alone)]
        benign = sum(one.truth is None and one.run.study == cause for one in known)
        if both[0]:
            yield f"| {cause} | {len(both[0])} | {_shares(both)} | {benign} |"
    faults = [
        [one for one in scored if one.truth not in (None, "nothing_wrong")]
        for scored in (known, alone)
    ]
    yield f"| all faults | {len(faults[0])} | {_shares(faults)} | |"
    yield ""
    for how, scored in (("with the settings", known), ("of the log alone", alone)):
        sure = [one for one in scored if one.certainty == "sure" and one.truth is not None]
        right = sum(one.causes[0] == one.truth for one in sure)
        healthy = [one for one in scored if one.truth == "nothing_wrong"]
        alarms = sum(one.causes[:1] not in ((), ("nothing_wrong",)) for one in healthy)
        yield (
            f"*Sure*, {how}: said of {len(sure)} scored runs and right in {right}. False alarms: "
            f"{alarms} of {len(healthy)}."
        )


def _shares(both: Sequence[Sequence[Answer]]) -> str:
    return " | ".join(_share(of, among) for of in both for among in (1, 3))


def _share(of: Sequence[Answer | LibraryAnswer], among: int) -> str:
    hits = sum(one.truth in one.causes[:among] for one in of)
    return f"{hits} ({hits / len(of):.0%})"


LOGS = Path(__file__).parents[2] / "tests" / "audit" / "planted"
HALVES = {
    "TRL, first half": "trl.first.json.gz",
    "TRL, second half": "trl.second.json.gz",
    "TRL, drawn recipes": "trl.third.json.gz",
    "verl, SkyRL and OpenRLHF": "others.json.gz",
}
TRL = "1.16.0"


def library_answers(path: Path, *, with_settings: bool) -> Iterator[LibraryAnswer]:
    """Yield the diagnosis of each run of a library, of its log alone or with its launch."""
    causes = json.loads((LOGS / "causes.json").read_text(encoding="utf-8"))
    with gzip.open(path) as file:
        logs = json.load(file)
    for name, log in logs.items():
        if causes[name] is None:  # planted and without harm: the reward rises and stays
            continue
        trace, launch = _of_trl(name, log) if "arguments" in log else _of_cell(name, log)
        facts = launch if with_settings else None
        found = diagnose(trace(facts), facts)
        sure = found.first.certainty if found.first else ""
        named = tuple(each.cause for each in found.candidates)
        yield LibraryAnswer(name, causes[name], named, sure)


def _of_trl(name: str, log: Mapping[str, Any]) -> tuple[TraceOf, TrainingFacts]:
    arguments = dict(log["arguments"])
    of_class = arguments.pop("class")
    words = ", ".join(f"{key}={value!r}" for key, value in arguments.items())
    text = f"from trl import {of_class}\nargs = {of_class}(output_dir='o', {words})\n"
    (finding,) = audit(text, "train.py", versions={"trl": f"{TRL} --library"})
    facts = facts_of_finding(finding, "train.py")
    rows = [LoggedRow(row["step"], 0.0, row) for row in log["log_history"]]
    run = LoggedRun(name, "", "", "", rows)

    def trace(known: TrainingFacts | None) -> Trace:
        return trace_of(run, "trl", _place(known))

    return trace, facts


def _place(facts: TrainingFacts | None) -> Place | None:
    if facts is None or facts.placement not in ("reward", "loss"):
        return None
    return "reward" if facts.placement == "reward" else "loss"


def _of_cell(name: str, log: Mapping[str, Any]) -> tuple[TraceOf, TrainingFacts]:
    facts = facts_of(Settings.model_validate(log["settings"]), "cell.json")
    run = LoggedRun(name, "", "", "", [LoggedRow(step, 0.0, row) for step, row in log["rows"]])
    return lambda _: trace_of(run, None), facts


def library_table(scored: list[LibraryAnswer]) -> Iterator[str]:
    """Yield the lines of a Markdown table, and what was not named first."""
    yield "| planted | runs | named first | in the first three |"
    yield "|---|---:|---:|---:|"
    faults = [one for one in scored if one.truth != "nothing_wrong"]
    for cause in sorted({one.truth for one in scored}):
        of = [one for one in scored if one.truth == cause]
        yield f"| {cause} | {len(of)} | {_share(of, 1)} | {_share(of, 3)} |"
    yield f"| all faults | {len(faults)} | {_share(faults, 1)} | {_share(faults, 3)} |"
    sure = [one for one in scored if one.certainty == "sure"]
    yield ""
    yield f"*Sure* was said of {len(sure)} runs and right in {_right(sure)}."
    for one in scored:
        if one.causes[:1] != (one.truth,):
            said = ", ".join(one.causes) or "it cannot be told"
            yield f"Not first: {one.name}, {one.truth}; said: {said}."


def _right(of: list[LibraryAnswer]) -> int:
    return sum(one.causes[:1] == (one.truth,) for one in of)


def main(arguments: list[str]) -> None:
    """Print the tables of a finished experiment, or of logs that were kept."""
    if arguments == ["libraries"]:
        for title, file in HALVES.items():
            for with_settings in (True, False):
                how = "with the launch" if with_settings else "of the log alone"
                sys.stdout.write(f"\n**{title}, {how}**\n\n")
                answered = list(library_answers(LOGS / file, with_settings=with_settings))
                for line in library_table(answered):
                    sys.stdout.write(f"{line}\n")
        return
    path = Path(arguments[0])
    runs = list(read(path)) if path.is_dir() else kept(path)
    if arguments[1:2] == ["--keep"]:
        keep(
            [run for run in runs if run.key[0] == "hazel" and run.settings.seed == 0],
            Path(arguments[2]),
        )
        return
    for policy in sorted({str(run.key[0]) for run in runs}):
        sys.stdout.write(f"\n**{policy}**\n\n")
        of = [run for run in runs if run.key[0] == policy]
        both = (list(answers(of, with_settings=known)) for known in (True, False))
        for line in table(*both):
            sys.stdout.write(f"{line}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
