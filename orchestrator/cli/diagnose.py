"""orch diagnose: what went wrong in a run, by its log."""

import shlex
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click

from orchestrator.audit.diagnose import Diagnosis, TrainingFacts, diagnose, trace_of
from orchestrator.audit.diagnose.causes import CAUSES
from orchestrator.audit.diagnose.course import REWARD
from orchestrator.audit.diagnose.facts import facts_of, facts_of_finding
from orchestrator.audit.libraries import Projects
from orchestrator.audit.pipeline import audit_file
from orchestrator.cli import common
from orchestrator.cli.common import print_json
from orchestrator.cli.conventions import set_next
from orchestrator.errors import SelectionError, did_you_mean
from orchestrator.library.launches import UnreadableScript
from orchestrator.library.logged import Place
from orchestrator.logs.logged import LoggedRun
from orchestrator.logs.names import renames_of
from orchestrator.logs.origin import origin_of
from orchestrator.logs.readers import open_source
from orchestrator.pipeline.messages import is_verbose
from orchestrator.rundir import CellDir
from orchestrator.runs.experiment import is_spec, launched_cells
from orchestrator.settings import Settings
from orchestrator.spec.expand import expand
from orchestrator.spec.load import load

HOW_SURE = {"sure": "", "likely": "Most likely, ", "possible": "Possibly, "}


@click.command(short_help="Say what went wrong in a run, by its log.")
@click.argument("log", metavar="LOG | CELL | SPEC", type=click.Path())
@common.overrides
@click.option(
    "--script",
    type=click.Path(exists=True, path_type=Path),
    help="The launch of the run, which orch audit reads; or a spec of orch, or a cell's folder.",
)
@click.option(
    "--library",
    metavar="NAME[@VERSION]",
    help="The library that trained the run. Default: inferred from settings and metric names.",
)
@click.option("--run", "runs", multiple=True, metavar="NAME", help="Only this run of the source.")
@click.option(
    "--metric",
    "metrics",
    multiple=True,
    metavar="THEIRS=OURS",
    help="Give a logged metric a canonical name.",
)
@common.where
@common.as_json
@common.runs_dir
def command(
    log: str,
    overrides: tuple[str, ...],
    script: Path | None,
    library: str | None,
    runs: tuple[str, ...],
    metrics: tuple[str, ...],
    where: tuple[str, ...],
    as_json: bool,
    runs_dir: Path,
) -> int:
    """Say what went wrong first in a run, why, how sure that is, and what to change.

    LOG is a history as CSV or JSON lines (W&B's `run.history()`), a TensorBoard folder, a
    trainer_state.json, a trainer's console as a text, or a notebook. Or it is a cell of
    orch: its folder, id or name, or a SPEC with -w. With --script the launch counts too: some
    causes no log can tell. Exit code 1: it cannot be told.

    \b
      orch diagnose logs/tensorboard --script train.sh
      orch diagnose outputs/checkpoint-200/trainer_state.json
      orch diagnose history.jsonl --metric score=train/reward_mean
    """
    renames = renames_of(metrics)
    answers = []
    cells: list[CellDir | None] = [*_cells_of(log, overrides, where, runs_dir)]
    for cell in cells or [None]:
        source = str(cell.attempts()[-1].path / "metrics.jsonl") if cell else log
        logged = open_source(source, runs=runs)
        names = {name for run in logged for row in run.rows for name in row.values}
        if absent := next((name for name in renames if name not in names), ""):
            raise SelectionError(f"{log} has no metric '{absent}'{did_you_mean(absent, names)}")
        for run in logged:
            facts, place, trained_by, untold = _facts(run, script, library, cell)
            answer = diagnose(trace_of(run, trained_by, place, renames), facts)
            untold += answer.untold
            if answer.first is None and trained_by is None and cell is None:
                untold.append(f"which library trained it: {origin_of(run).library_because}")
            answer = replace(answer, untold=tuple(untold))
            answer = _not_better(answer, cell) if cell else answer
            answers.append((cell.path.name if cell else run.name, answer))
    if as_json:
        print_json([as_data(name, answer) for name, answer in answers])
    else:
        for number, (name, answer) in enumerate(answers):
            if len(answers) > 1:
                click.echo(f"{'' if number == 0 else chr(10)}{name}")
            _print(answer)
    if script is not None:
        set_next(shlex.join(["orch", "audit", str(script)]))
    return int(any(answer.first is None for _, answer in answers))


def _cells_of(
    log: str, overrides: tuple[str, ...], where: tuple[str, ...], runs_dir: Path
) -> list[CellDir]:
    """Return the cells of orch that an argument names; none for a log."""
    path = Path(log)
    if overrides and not is_spec(log):
        raise click.UsageError(f"{log} is no spec, and takes no {overrides[0]}")
    if (cell := _cell_of(path)) is not None:
        return [cell]
    if is_spec(log) or (not path.exists() and "/" not in log and not path.suffix):
        begun = launched_cells(log, overrides, where, runs_dir)
        return [folder.cell(each) for folder, each in begun]
    return []


def _not_better(answer: Diagnosis, cell: CellDir) -> Diagnosis:
    """Return a diagnosis that praises no run which orch judged otherwise, by all of its steps."""
    ended = cell.attempts()[-1].read_exit()
    outcome = ended.outcome if ended else None
    fell = outcome is not None and outcome.kind in ("unstable", "collapsed")
    praised = not answer.first or answer.first.cause == "nothing_wrong"
    if outcome is None or outcome.kind == "trained" or (fell and not praised):
        return answer
    untold = f"{f'why it was {outcome.word}' if fell else 'if it was stable'}: {outcome.reason}"
    found = answer.candidates[1:] if fell else answer.candidates
    return replace(answer, candidates=found, untold=(untold, *answer.untold))


def _cell_of(path: Path) -> CellDir | None:
    """Return the folder of a cell that a path names or lies in; None for another path."""
    for folder in (path, *path.absolute().parents):
        if (folder / "cell.json").is_file() and (folder / "attempts").is_dir():
            cell = CellDir(folder)
            if not cell.attempts():
                raise SelectionError(f"{folder} has no attempt: the cell was never started")
            return cell
    return None


def _facts(
    run: LoggedRun, script: Path | None, library: str | None, cell: CellDir | None
) -> tuple[TrainingFacts | None, Place | None, str | None, list[str]]:
    """Return what the settings say, the place of the KL, the library, and what is not known."""
    if cell is not None:
        return facts_of(cell.read_cell().settings, "cell.json"), None, None, []
    origin = origin_of(run, library)
    if script is None:
        return None, None, origin.library, []
    if (settings := _settings_of(script)) is not None:
        facts = facts_of(settings, script.name)
        return facts, facts.place, origin.library or settings.backend.name, []
    pinned = {origin.library: origin.release} if origin.library and origin.release else {}
    try:
        _, findings = audit_file(script, pinned, Projects())
        terms = {(f.in_reward, f.in_loss, f.verdict) for f in findings}
        why = f"{script} has {len(terms)} different KL terms: give the launch of this run alone"
    except UnreadableScript as error:
        terms, why = set(), str(error)
    if len(terms) != 1:
        unread = TrainingFacts(source=script.name)
        return unread, None, origin.library, [f"what the launch sets: {why}"]
    facts = facts_of_finding(findings[0], script.name)
    return facts, facts.place, origin.library or findings[0].library, []


def _settings_of(path: Path) -> Settings | None:
    """Return the settings of a cell's folder, or of a spec whose cells have the same facts; None
    for a launch."""
    cell = _cell_of(path)
    if cell is not None:
        return cell.read_cell().settings
    declares = path.suffix in (".yaml", ".yml") and "\nstudies:" in path.read_text(encoding="utf-8")
    cells = expand(load(path)) if declares else []
    if len({facts_of(each.settings, path.name) for each in cells}) > 1:
        raise SelectionError(
            f"{path} has {len(cells)} cells that differ: give the folder of this run's cell"
        )
    return cells[0].settings if cells else None


def _print(answer: Diagnosis) -> None:
    first = answer.first
    if first is None:
        click.echo("What went wrong cannot be told from this log.")
    else:
        answer_text = f"{HOW_SURE[first.certainty]}{CAUSES[first.cause].words}."
        click.echo(answer_text[0].upper() + answer_text[1:])
        for number, evidence in enumerate(first.evidence):
            label = "Then" if number else "First"
            click.echo(common.hanging(label, f"{answer.unit} {evidence.step}: {evidence.text}."))
        click.echo(common.hanging("Change", first.change))
    for other in answer.candidates[1 : None if is_verbose() else 3]:
        own = next((e for e in other.evidence if e.metric != REWARD), other.evidence[0])
        shown = f"{answer.unit} {own.step}: {own.text}"
        text = f"{CAUSES[other.cause].words} ({other.certainty}, {shown})"
        click.echo(common.hanging("Also", _sentence(text)))
    for note in answer.notes:
        click.echo(common.hanging("Right", note))
    for gap in answer.untold if first is None or is_verbose() else answer.untold[:2]:
        click.echo(common.hanging("Unknown", _sentence(gap)))


def _sentence(text: str) -> str:
    return text if text.endswith((".", ")")) else f"{text}."


def as_data(name: str, answer: Diagnosis) -> dict[str, Any]:
    """Return a diagnosis as plain data."""
    first = answer.first
    return {
        "run": name,
        "cause": first.cause if first else None,
        "certainty": first.certainty if first else None,
        "unit": answer.unit,
        "candidates": [
            {**asdict(each), "words": CAUSES[each.cause].words, "change": each.change}
            for each in answer.candidates
        ],
        "notes": list(answer.notes),
        "untold": list(answer.untold),
    }
