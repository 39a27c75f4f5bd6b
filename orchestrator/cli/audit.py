"""orch audit: what a launch script really optimises, whoever wrote it."""

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from orchestrator.audit.fix import diff, diff_path, write_diff
from orchestrator.audit.libraries import Projects, marks
from orchestrator.audit.pipeline import STDIN, audit_file, launch_files
from orchestrator.audit.render import finding_as_json, rows
from orchestrator.audit.summary import one_line, summary
from orchestrator.cli import common
from orchestrator.cli.common import print_json, say
from orchestrator.cli.conventions import set_next
from orchestrator.errors import did_you_mean
from orchestrator.estimators import choices
from orchestrator.library.launches import UnreadableScript
from orchestrator.losses.table import ALSO, POLICY_LOSSES
from orchestrator.pipeline import messages

if TYPE_CHECKING:
    from orchestrator.audit.judge import AuditFinding

FORMATS = ("concise", "full", "json")


@click.command(short_help="Say what any launch script really optimises.")
@click.argument(
    "paths",
    nargs=-1,
    required=True,
    metavar="FILE...",
    type=click.Path(path_type=Path, allow_dash=True),
)
@click.option(
    "--format",
    "output",
    type=click.Choice(FORMATS),
    help="concise: one line for each launch (the default for folders, --hook and -q); full: six "
    "lines for each (the default for files).",
)
@common.as_json
@click.option(
    "--fix",
    is_flag=True,
    help="Write FILE.orch.diff: the change after which the KL does what its name "
    "says. FILE is never changed.",
)
@click.option(
    "--library",
    "pinned",
    multiple=True,
    metavar="NAME@VERSION",
    help="The release that the launch runs on, if the file does not show it.",
)
@click.option(
    "--hook",
    is_flag=True,
    help="For hooks: skip files without a launch, and print only launches with a fault. Exit "
    "code 1: a fault; 2: a path does not exist; else 0.",
)
@click.option("-q", "--quiet", is_flag=True, help="Print one line for each launch.")
@click.option(
    "-v",
    "--verbose",
    count=True,
    help="Print also the facts behind the answer; -vv: the library's rules and all settings too.",
)
def command(
    paths: tuple[Path, ...],
    output: str | None,
    as_json: bool,
    fix: bool,
    pinned: tuple[str, ...],
    hook: bool,
    quiet: bool,
    verbose: int,
) -> int:
    """Say which objective the KL term of a library's launch optimises, in its regime and with what
    surrounds it, and the best change to a KL that does what it says. Scripts (bash,
    sbatch), YAML, TOML and Python are read, never run; of a folder, every file that has such a
    launch; `-` is standard input.

    \b
    Exit codes: 0 nothing is wrong; 1 a KL term that does not do what its name says (noise, a
    forward KL, a biased reward, a rescaled one, two terms at once), a launch that contradicts
    itself, a key that the release refuses or ignores, a KL that cannot be determined, or a file
    that cannot be read or has no launch; 2 a path that does not exist, or a wrong option.

    \b
    orch audit train.sh
    orch audit --format json examples/
    orch audit --library verl@0.3.0 old/run_ppo.sh
    """
    messages.set_quiet(quiet)
    if STDIN in paths and fix:
        raise click.UsageError("--fix writes beside a file: name one instead of `-`")
    versions = pinned_releases(pinned)
    findings: list[AuditFinding] = []
    unreadable: list[tuple[str, str]] = []
    fixable: list[Path] = []
    missing = [path for path in paths if path != STDIN and not path.exists()]
    projects = Projects()
    for path, is_named in launch_files(paths):
        try:
            text, own_findings = audit_file(path, versions, projects)
        except UnreadableScript as error:
            if is_named and (path in missing or not hook):
                unreadable.append((str(path), str(error)))
            continue
        findings += own_findings
        changes, by_hand = diff(text, own_findings, path.name)
        if changes:
            fixable.append(path)
        if fix:
            _write_diff(path, changes, by_hand)
    output = "json" if as_json else output
    shown = [each for each in findings if each.problem or not hook]
    if output == "json":
        whys = [{"file": name, "why": why} for name, why in unreadable]
        print_json({"findings": list(map(finding_as_json, findings)), "unreadable": whys})
    else:
        short = quiet or hook or any(path.is_dir() for path in paths)
        _print(shown, output or ("concise" if short else "full"), verbose)
    for name, why in unreadable:
        say(f"{name}: {why}")
    fixing = "orch audit --fix FILE"
    set_next(fixing if STDIN in paths else _next_step(findings, fixable, fix))
    return _exit_code(findings, bool(unreadable), bool(missing), hook=hook)


def _exit_code(
    findings: "list[AuditFinding]", unreadable: bool, missing: bool, *, hook: bool
) -> int:
    if any(each.problem for each in findings):
        return 1
    if missing:
        return 2
    if hook:
        return 0
    open_ended = any(each.verdict == "undetermined" or each.unverified for each in findings)
    return int(unreadable or not findings or open_ended)


def _next_step(findings: "list[AuditFinding]", fixable: list[Path], fix: bool) -> str:
    """Return the next step for a person: only a command that does something for these files."""
    if fixable and fix:
        first = fixable[0]
        patch = shlex.join(["patch", str(first), str(diff_path(first))])
        return f"{patch}, then {shlex.join(['orch', 'audit', str(first)])}"
    if fixable:
        return shlex.join(["orch", "audit", "--fix", *map(str, fixable[:3])])
    for each in findings:
        if each.own:
            continue
        for term, placement in ((each.in_loss, "loss"), (each.in_reward, "reward")):
            if term is not None and term.active and term.estimator in choices():
                return f"orch explain {term.estimator} {placement}"
        loss = "" if each.bound is None else each.bound.loss
        if each.verdict != "undetermined" and (loss in POLICY_LOSSES or loss in ALSO):
            return f"orch explain {loss}"
    return "orch explain --all" if findings else ""


def _write_diff(path: Path, changes: str, by_hand: list[str]) -> None:
    """Write the change beside the file, and print how to apply it."""
    for each in by_hand:
        say(f"{path}: not in the diff, change by hand: {each}")
    if not changes:
        return
    try:
        target = write_diff(path, changes)
    except OSError as error:
        say(f"{path}: the diff cannot be written to {diff_path(path)}: {error.strerror}")
    else:
        say(f"{path}: the change is in {target}; apply it with: patch {path.name} {target.name}")


def _print(findings: "list[AuditFinding]", output: str, verbose: int) -> None:
    for each in findings:
        colour = _colour(each) if sys.stdout.isatty() else None
        if output == "concise":
            click.secho(one_line(each), fg=colour)
            continue
        facts = rows(each, rules=verbose > 1) if verbose else ()
        for name, text in (*summary(each), *facts):
            body = common.wrapped(text, f"  {name:<12}" if name else "", 80)
            click.secho(body, fg=None if name else colour)
        click.echo()
    if len(findings) > 1:
        problems = sum(each.problem for each in findings)
        click.echo(f"{len(findings)} launches, {problems} with a KL term that needs a look")


def _colour(finding: "AuditFinding") -> str:
    if finding.problem:
        return "red"
    return "yellow" if finding.verdict == "undetermined" else "green"


def pinned_releases(pinned: Sequence[str]) -> dict[str, str]:
    """Return library -> release of `--library NAME@VERSION`s, with the reason after a blank.

    Raise click.UsageError for another text.
    """
    names = [name for library, mark in marks().items() for name in (library, *mark.aliases)]
    releases = {}
    for each in pinned:
        name, _, version = each.lower().partition("@")
        if name not in names or not version[:1].isdigit():
            raise click.UsageError(
                f"--library takes NAME@VERSION, such as {names[0]}@0.3.0, got '{each}' (it knows "
                f"{', '.join(names)}){did_you_mean(name, names)}"
            )
        releases[name] = f"{version} --library says so"
    return releases
