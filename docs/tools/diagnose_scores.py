"""Score `orch diagnose` on runs with planted faults: how often does it name the fault?

    orch run tests/audit/planted/planted.yaml --runs-dir FOLDER
    python -m docs.tools.diagnose_scores FOLDER/planted.micro [--keep logs.json.gz]

A study of the spec plants one fault. A run of it counts as harmed if it ends far below the healthy
run of its policy, task, seed and learning rate, or if the fault itself says so (a KL that does not
pull never does). The rules never read the study. Rules were written on the runs of one base policy
(`elder`); those of the other (`hazel`) were scored after.
"""

import gzip
import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from orchestrator.audit.diagnose import TrainingFacts, diagnose, facts_of, trace_of
from orchestrator.imports.logged import LoggedRow, LoggedRun
from orchestrator.rundir import RunFolder
from orchestrator.settings import Settings

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


def table(scored: list[Answer]) -> Iterator[str]:
    """Yield the lines of a Markdown table: for each cause how often it is named first, in three."""
    yield "| planted | runs | named first | in the first three | without harm (not scored) |"
    yield "|---|---:|---:|---:|---:|"
    truths = sorted({one.run.study for one in scored} - set(NONE_PLANTED))
    for cause in (*truths, "nothing_wrong"):
        of = [one for one in scored if one.truth == cause]
        benign = sum(one.truth is None and one.run.study == cause for one in scored)
        if of:
            yield f"| {cause} | {len(of)} | {_share(of, 1)} | {_share(of, 3)} | {benign} |"
    planted = [one for one in scored if one.truth not in (None, "nothing_wrong")]
    yield f"| all faults | {len(planted)} | {_share(planted, 1)} | {_share(planted, 3)} | |"
    sure = [one for one in scored if one.certainty == "sure" and one.truth is not None]
    right = sum(one.causes[0] == one.truth for one in sure)
    yield ""
    yield f"*Sure* was said of {len(sure)} scored runs and right in {right}."
    named = Counter(
        one.causes[0] if one.causes else "untold" for one in scored if one.truth == "nothing_wrong"
    )
    yield f"Healthy runs: {dict(named)}."


def _share(of: list[Answer], among: int) -> str:
    hits = sum(one.truth in one.causes[:among] for one in of)
    return f"{hits} ({hits / len(of):.0%})"


def main(arguments: list[str]) -> None:
    """Print the tables of a finished experiment, or of logs that were kept."""
    path = Path(arguments[0])
    runs = list(read(path)) if path.is_dir() else kept(path)
    if arguments[1:2] == ["--keep"]:
        keep(
            [run for run in runs if run.key[0] == "hazel" and run.settings.seed == 0],
            Path(arguments[2]),
        )
        return
    for policy in sorted({str(run.key[0]) for run in runs}):
        for with_settings in (True, False):
            how = "with the run's settings" if with_settings else "of the log alone"
            sys.stdout.write(f"\n**{policy}, {how}**\n\n")
            of = [run for run in runs if run.key[0] == policy]
            for line in table(list(answers(of, with_settings=with_settings))):
                sys.stdout.write(f"{line}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
