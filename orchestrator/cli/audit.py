"""orch audit: what a launch script written by anybody really optimises."""

import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from orchestrator.cli import common
from orchestrator.cli.common import print_json, say

if TYPE_CHECKING:
    from orchestrator.audit.findings import AuditFinding

SUFFIXES = {".sh", ".bash", ".slurm", ".sbatch", ".yaml", ".yml", ".toml", ".py"}
SKIPPED = {".git", "node_modules", "__pycache__", ".venv", "venv", "site-packages"}


@click.command(short_help="What a launch script by anybody really optimises.")
@click.argument(
    "paths", nargs=-1, required=True, metavar="FILE...", type=click.Path(path_type=Path)
)
@common.as_json
@click.option("--sarif", "as_sarif", is_flag=True, help="SARIF 2.1.0 on stdout, for code review.")
@click.option(
    "--fix",
    is_flag=True,
    help="Write the change to k1 in the reward as FILE.orch.diff; FILE is never touched.",
)
@click.option(
    "--library",
    "pinned",
    multiple=True,
    metavar="NAME@VERSION",
    help="The release it runs on, where the file does not tell.",
)
@click.option(
    "--hook",
    is_flag=True,
    help="For hooks: pass over files without a launch and tell only of launches where something "
    "is wrong: exit 1; 2 for a path that is not there; else 0.",
)
@click.option("-v", "--verbose", is_flag=True, help="What else touches the term.")
def command(
    paths: tuple[Path, ...],
    as_json: bool,
    as_sarif: bool,
    fix: bool,
    pinned: tuple[str, ...],
    hook: bool,
    verbose: bool,
) -> int:
    """Say which objective the KL term of a library's launch optimises, why, and what to change to
    get k1 in the reward. Scripts (bash, sbatch), YAML, TOML and Python are read, never run; of a
    folder, every file that has such a launch.

    \b
    Exit codes: 0 nothing wrong; 1 a KL term that does not do what its name says (noise, a forward
    KL, a biased reward, two terms at once), or a launch that contradicts itself; 2 a file that
    cannot be read or holds no launch, or a KL that cannot be determined. 1 goes before 2.

    \b
      orch audit train.sh
      orch audit --json examples/
      orch audit --library verl@0.3.0 old/run_ppo.sh
    """
    versions = _pins(pinned)
    found: list[AuditFinding] = []
    unreadable: list[tuple[str, str]] = []
    gone = [path for path in paths if not path.exists()]
    for path, asked in _files(paths):
        asked = asked and (path in gone or not hook)
        _audit(path, asked, versions, found, unreadable, fix=fix)
    if as_json:
        from orchestrator.audit.render import as_json as told

        print_json(
            {
                "findings": [told(each) for each in found],
                "unreadable": [{"file": f, "why": why} for f, why in unreadable],
            }
        )
    elif as_sarif:
        from orchestrator.audit.render import sarif

        print_json(sarif(found, unreadable))
    else:
        _print(found, verbose=verbose, only_problems=hook)
    for name, why in unreadable:
        say(f"{name}: {why}")
    if any(each.problem for each in found):
        return 1
    if hook:
        return 2 if gone else 0
    return 2 if unreadable or not found or any(e.verdict == "undetermined" for e in found) else 0


def _pins(pinned: Sequence[str]) -> dict[str, str]:
    if not pinned:
        return {}
    from orchestrator.audit.hints import marks
    from orchestrator.errors import did_you_mean

    names = [name for library, mark in marks().items() for name in (library, *mark.aliases)]
    found = {}
    for each in pinned:
        name, at, version = each.partition("@")
        if not at or not version[:1].isdigit():
            raise click.UsageError(
                f"--library takes NAME@VERSION, such as {next(iter(names))}@0.3.0, "
                f"got '{each}': give both"
            )
        name = name.lower()
        if name not in names:
            raise click.UsageError(
                f"--library knows {', '.join(names)}, got '{name}'{did_you_mean(name, names)}"
            )
        found[name] = f"{version} --library says so"
    return found


def _files(paths: Iterable[Path]) -> Iterator[tuple[Path, bool]]:
    """Files, and whether somebody named each of them (or it was found in a folder)."""
    for path in paths:
        if not path.is_dir():
            yield path, True
            continue
        for each in sorted(path.rglob("*")):
            if each.suffix in SUFFIXES and not SKIPPED & set(each.parts) and each.is_file():
                yield each, False


def _audit(
    path: Path,
    asked: bool,
    versions: dict[str, str],
    found: "list[AuditFinding]",
    unreadable: list[tuple[str, str]],
    *,
    fix: bool,
) -> None:
    from orchestrator.audit import UnreadableScript, audit, releases

    try:
        text = _read(path)
        beside = releases.NeighbourFiles(path)
        around = releases.versions(path) | versions
        answers = audit(text, str(path), files=beside, versions=around)
    except UnreadableScript as error:
        if asked:
            unreadable.append((str(path), str(error)))
        return
    found += answers
    if fix:
        _write_diff(path, text, answers)


def _read(path: Path) -> str:
    from orchestrator.audit import UnreadableScript
    from orchestrator.audit.pipeline import LARGEST

    try:
        if path.exists() and not path.is_file():
            raise UnreadableScript("this is not a file")
        if path.stat().st_size > 4 * LARGEST:
            size = path.stat().st_size
            raise UnreadableScript(
                f"this file has {size:,} bytes; a launch script has at most {LARGEST:,} characters"
            )
        return path.read_bytes().decode("utf-8", "replace")
    except OSError as error:
        raise UnreadableScript(f"it cannot be read: {error.strerror}") from None


def _write_diff(path: Path, text: str, answers: "list[AuditFinding]") -> None:
    from orchestrator.audit.fix import diff

    told, left = diff(text, answers, path.name)
    for each in left:
        say(f"{path}: not in the diff, change by hand: {each}")
    if told:
        target = path.with_name(f"{path.name}.orch.diff")
        try:
            target.write_text(told, encoding="utf-8")
        except OSError as error:
            say(f"{path}: the diff cannot be written to {target}: {error.strerror}")
            return
        say(f"{path}: the change is in {target}; apply it with: patch {path.name} {target.name}")


def _print(found: "list[AuditFinding]", *, verbose: bool, only_problems: bool) -> None:
    import textwrap

    from orchestrator.audit.render import lines_of

    width = 100
    for each in found:
        if only_problems and not each.problem:
            continue
        case = f"  [{each.case}]" if each.case else ""
        colour = "red" if each.problem else "yellow" if each.verdict == "undetermined" else "green"
        click.secho(f"{each.file}:{each.line}{case}", bold=True)
        for name, text in lines_of(each, verbose=verbose):
            body = textwrap.fill(
                text,
                width,
                initial_indent=f"  {name:<10}",
                subsequent_indent=" " * 12,
                break_long_words=False,
                break_on_hyphens=False,
            )
            click.secho(body, fg=colour if name == "optimises" and sys.stdout.isatty() else None)
        click.echo()
    if len(found) > 1:
        problems = sum(each.problem for each in found)
        click.echo(f"{len(found)} launches, {problems} with a KL term that needs a look")
