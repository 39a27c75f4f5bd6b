"""Rehearse somebody's Python program that builds its library's trainer itself.

The program is run, in the library's environment, with a small policy and without a GPU. The library
says what it resolved, so the objective is known only once it has trained.
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from json import dumps, loads
from pathlib import Path
from typing import NamedTuple

from orchestrator import plugins
from orchestrator.audit.commands import launches
from orchestrator.audit.commands import programs as programs_in
from orchestrator.audit.libraries import NeighbourFiles, versions
from orchestrator.errors import EnvironmentFault, OrchError
from orchestrator.files import remove_tree
from orchestrator.identity import fingerprint
from orchestrator.lab.cpu import Deviation, ProgramResult
from orchestrator.lab.launches import with_programs
from orchestrator.lab.prove import scaled_down
from orchestrator.lab.prove.checks import Check, checks, failures
from orchestrator.lab.prove.proof import Proof, read_run
from orchestrator.launch import program
from orchestrator.launch.endings import Ending
from orchestrator.launch.node.environment import TrainerEnvironment
from orchestrator.library import rollout_dump
from orchestrator.library.launches import UNKNOWN, UNSET, Launch
from orchestrator.library.protocol import Backend
from orchestrator.records import Cell, LaunchPlan
from orchestrator.rundir import AttemptDir, CellDir
from orchestrator.settings import Resources, Settings

SUFFIX = ".py"
MOST_BEFORE = 60
"""Most words of a command in which its program is looked for."""
REWARDS = "rewards.jsonl"
"""In an attempt: a line for each call of a reward function, its name and its values."""
UNKNOWN_CHARACTER = "="
"""The character of the small policy's vocabulary in the place of each that it lacks."""


class ProgramRehearsal(NamedTuple):
    """The result of one program."""

    name: str
    deviations: tuple[Deviation, ...]
    """Every difference from the program."""
    ending: Ending
    checks: tuple[Check, ...] = ()
    proof: Proof | None = None
    without_proof: str = ""
    """Why there is no proof; empty if there is one."""

    @property
    def troubles(self) -> list[str]:
        """Return a sentence for each failure."""
        return list(failures(self.ending, self.checks, self.proof))


class ProgramCommand(NamedTuple):
    """A command of anybody's, or a program alone, that orch can run at small scale."""

    name: str
    library: str
    version: str
    words: tuple[str, ...]
    folder: Path
    """The folder to run it in."""
    deviations: tuple[Deviation, ...] = ()
    """What is left out of the words."""


def rehearse_program(
    path: Path, folder: Path, say: Callable[[str], None] = lambda _text: None
) -> ProgramRehearsal:
    """Run a program at small scale with its real library. Return its checks and its proof.

    Remove the files of an earlier rehearsal first. Raise OrchError for a file that builds no
    trainer of a library whose programs orch can run, or without an environment for it.
    """
    library, version = library_of(path)
    own = ProgramCommand(path.name, library, version, (str(path.absolute()),), Path.cwd())
    return rehearse_command(own, folder, say)


def commands_of(path: Path) -> list[ProgramCommand]:
    """Return the commands of a script, without arguments, that orch can run at small scale.

    The script is read, not run. Raise EnvironmentFault for a command that needs what only a shell
    would know, or that starts with a launcher that orch cannot take apart.
    """
    text = scaled_down.text_of(path, "launch script")
    files, releases = NeighbourFiles(path), versions(path)
    able = [plugins.load(name) for name in with_programs()]
    commands = []
    for launch in launches(text, str(path), files):
        readings = (
            (each, backend, reading)
            for each in (launch, *programs_in(launch, files))
            for backend in able
            if (reading := backend.audit(replace(each, versions=releases))) is not None
        )
        if launch.usual and launch.words and (first := next(readings, None)) is not None:
            each, backend, reading = first
            version = scaled_down.version_to_run(backend, releases, reading)
            commands.append(_command(path, each, backend, version, releases))
    return commands


def _command(
    path: Path, launch: Launch, backend: Backend, version: str, releases: Mapping[str, str]
) -> ProgramCommand:
    place = f"{path}:{launch.line}"
    if launch.open_end:
        raise EnvironmentFault(f"{place}: {launch.open_end}")
    launchers = with_programs()[backend.name].LAUNCHERS
    texts = [word.text for word in launch.words]
    names = [text.rpartition("/")[2] for text in texts]
    begin = next(
        (i for i, name in enumerate(names) if name in launchers or name.endswith(".py")), None
    )
    if begin is None or "deepspeed" in names[:begin]:
        raise EnvironmentFault(
            f"{place}: orch cannot start this launcher without its processes (it can take apart "
            f"{', '.join(launchers)}); `orch audit {path}` reads it"
        )
    words, left_out = _known_words(texts[begin:])
    settled = replace(launch, versions={**releases, backend.name: f"{version} it is run with"})
    reading = backend.audit(settled)
    if left_out and reading is not None and reading.unknown:
        raise EnvironmentFault(
            f"{place}: {reading.unknown[0]}: set it in the script, so that the rehearsal has the "
            "objective of the launch"
        )
    needed = [word for word in words[:MOST_BEFORE] if word.endswith(SUFFIX) and word[0] != "-"]
    homes = [Path.cwd(), *path.absolute().parents[:4]]
    home = next((each for each in homes if all((each / n).exists() for n in needed[:1])), None)
    if home is None:
        raise EnvironmentFault(f"{place}: {needed[0]} is not in this folder or above the script")
    wrapper = " ".join(texts[:begin])
    before = [Deviation("argument", "before the command", wrapper, None, "one process, here")]
    return ProgramCommand(
        f"{path.stem[:60]}-line{launch.line}",
        backend.name,
        version,
        tuple(words),
        home,
        (*(before if begin else ()), *left_out),
    )


def _known_words(texts: Sequence[str]) -> tuple[list[str], list[Deviation]]:
    """Return the words without those that only a shell would know, and what is left out.

    A flag goes with its value.
    """
    words: list[str] = []
    left_out: list[Deviation] = []
    for text in texts:
        if not {UNKNOWN, UNSET} & set(text):
            words.append(text)
            continue
        name = text.partition("=")[0] if text.startswith("--") else ""
        if not name and words and words[-1].startswith("--") and "=" not in words[-1]:
            name = words.pop()
        if name:
            why = "only a shell would know it"
            left_out.append(Deviation("argument", name, "?", None, why))
    return words, left_out


def rehearse_command(
    command: ProgramCommand, folder: Path, say: Callable[[str], None] = lambda _text: None
) -> ProgramRehearsal:
    """Run a command at small scale with its real library. Return its checks and its proof.

    Remove the files of an earlier rehearsal first. Raise OrchError without an environment for it.
    """
    library, version = command.library, command.version
    programs = with_programs()[library]
    environment = scaled_down.environment_of(library, version)
    cell_dir = CellDir(folder / "cells" / f"{command.name.removesuffix(SUFFIX)[:60]}-program")
    if cell_dir.path.exists():
        remove_tree(cell_dir.path)
    attempt = cell_dir.new_attempt()
    place = cell_dir.paths(attempt)
    policy = policy_of_any_text(folder / "program_policy")
    plan: LaunchPlan = programs.launch(command.words, version, place, policy, scaled_down.BATCHES)
    _write(plan, cell_dir)
    say(
        f"{command.name}: {library} {version} runs it for {scaled_down.BATCHES} rollout batches ..."
    )
    variables = TrainerEnvironment(environment.record(), environment.variables(os.environ))
    ending = program.run(
        plan.argv,
        attempt,
        cwd=command.folder,
        env=variables.variables(plan.env),
        patience_seconds=scaled_down.SILENT_SECONDS,
        watch=scaled_down.stop_after(scaled_down.LONGEST_SECONDS),
    )
    ran: ProgramResult = programs.result(attempt.path, version, policy)
    changed = (*command.deviations, *ran.deviations)
    outcome = ProgramRehearsal(command.name, changed, ending)
    if ending.state != "succeeded":
        return outcome
    own = tuple(_own_rewards(attempt))
    if ran.settings is None:
        run_checks = (*own, *_plain_checks(attempt))
        return outcome._replace(checks=run_checks, without_proof=ran.without_settings)
    cell = _cell(ran.settings, command.name.removesuffix(SUFFIX))
    cell_dir.write(cell, plan)
    options = scaled_down.options_of(library, version, environment)
    try:
        run = read_run(cell_dir)
        checked = (*own, *checks(run, cell_dir, options))
        return outcome._replace(checks=checked, proof=run.proof())
    except OrchError as error:
        return outcome._replace(checks=own, without_proof=str(error))


def library_of(path: Path) -> tuple[str, str]:
    """Return the library whose trainer a program builds, and the release to run it with.

    The file is read, not run. Raise EnvironmentFault if orch cannot run programs of its library.
    """
    text = scaled_down.text_of(path, "program")
    able = [plugins.load(name) for name in with_programs()]
    for launch in launches(text, str(path), NeighbourFiles(path)):
        for backend in able:
            reading = backend.audit(launch)
            if reading is not None:
                return backend.name, scaled_down.version_to_run(backend, versions(path), reading)
    titles = ", ".join(each.title for each in able)
    raise EnvironmentFault(
        f"{path} builds no trainer whose program orch can run (it can for {titles}); `orch audit "
        f"{path}` reads it"
    )


def policy_of_any_text(folder: Path) -> Path:
    """Return the folder of a shipped policy whose tokenizer takes any text."""
    path = scaled_down.policy(folder)
    file = path / "tokenizer.json"
    plain = loads(file.read_text(encoding="utf-8"))
    plain["model"]["unk_token"] = UNKNOWN_CHARACTER
    file.write_text(dumps(plain), encoding="utf-8")
    return path


def _write(plan: LaunchPlan, cell_dir: CellDir) -> None:
    for name, text in plan.files.items():
        path = cell_dir.plan / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def _cell(settings: Settings, name: str) -> Cell:
    return Cell(
        id=fingerprint(settings),
        slug=name[:60],
        studies=("program",),
        axes={},
        settings=settings,
        resources=Resources(num_nodes=1, gpus_per_node=0),
    )


def _own_rewards(attempt: AttemptDir) -> Iterator[Check]:
    """Yield a check for each of the program's reward functions: that it was called, and gave."""
    path = attempt.path / REWARDS
    values: dict[str, list[float]] = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        call = json.loads(line)
        values.setdefault(call["name"], []).extend(call["values"])
    if not values:
        yield Check("the program's rewards", None, "no function of its own was called")
    for name, given in values.items():
        sentence = f"{len(given)} responses, {min(given):.3g} to {max(given):.3g}"
        yield Check(f"the program's reward {name}", True, sentence)


def _plain_checks(attempt: AttemptDir) -> Iterator[Check]:
    """Yield the check of a run that no cell describes."""
    batches = list(rollout_dump.read([attempt.path / rollout_dump.FOLDER]))
    norms = [b.observed["grad_norm"] for b in batches if "grad_norm" in b.observed]
    sentence = f"norms from {min(norms):.3g} to {max(norms):.3g}" if norms else "none was recorded"
    yield Check("the gradient is not 0", bool(norms) and max(norms) > 0, sentence)
