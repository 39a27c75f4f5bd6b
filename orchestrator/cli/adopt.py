"""orch adopt: the tables of a release, from the release itself."""

from pathlib import Path

import click

from orchestrator.cli import common
from orchestrator.cli.common import print_json, print_table, say
from orchestrator.cli.manners import WOULD_CHANGE, set_next
from orchestrator.errors import EnvironmentFault
from orchestrator.lab.adopt import loss_code
from orchestrator.lab.adopt.adopting import Adopted, adopt
from orchestrator.lab.adopt.new_releases import NewRelease, new_releases

MOST_ROWS = 40


@click.command(short_help="Read and measure a release of a library, and say what changed.")
@click.argument("release", metavar="LIBRARY[@VERSION]", default="")
@click.option(
    "--source",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="A Python environment that has the release, or the folder of its source. Default: its "
    "environments are made.",
)
@click.option(
    "--new",
    "looking",
    is_flag=True,
    help="Look on the package index for releases that orch has not read, of LIBRARY or all, and "
    "say what they changed in the code of the KL, the advantage and the loss, and in the keys. "
    "Exit code 3: something.",
)
@click.option("--train", is_flag=True, help="Also train on the CPU, and replay that run.")
@common.as_json
def command(release: str, source: Path | None, looking: bool, train: bool, as_json: bool) -> int:
    """Write the tables of a release: its keys, defaults and closed values as its own parser has
    them, and what its own functions measure. Print what differs from the nearest known release.

    They are written into backends/LIBRARY in a checkout of orch, else into adopted/LIBRARY in this
    folder, where `orch plan` and `orch audit` read them.

    \b
    The last line is the rung that the release reached:
      parsed     its parser takes the launches that orch sends, with the values sent
      probed     its KL, reward, advantage and loss functions were measured
      trained    --train: it trained small cells on this machine
      predicted  their replay in its dialect gives its losses and gradients

    Exit code 1: it reached none, or --train did not end in *predicted*.
    """
    if looking:
        return _look(release, as_json=as_json)
    library, _, version = release.partition("@")
    if not version:
        raise click.UsageError(f"name a release as LIBRARY@VERSION, got '{release}'")
    if train and source is not None:
        raise EnvironmentFault("--train needs the environment that orch makes: leave --source out")
    outcome = adopt(library, version, source, train=train, say=say)
    if as_json:
        print_json(
            {
                **outcome._asdict(),
                "rung": outcome.rung,
                "changes": {
                    name: [each._asdict() if name != "texts" else each for each in rows]
                    for name, rows in outcome.changes._asdict().items()
                },
                "measured": outcome.measured._asdict(),
                "files": [str(file) for file in outcome.files],
            }
        )
    else:
        _print(outcome)
    return int(not outcome.rung or (train and outcome.rung != "predicted"))


def _look(library: str, *, as_json: bool) -> int:
    """Print the releases that orch has not read. Return 3 if one changes code, else 0."""
    known = loss_code.libraries()
    if library and library not in known:
        raise click.UsageError(
            f"--new looks for releases of {', '.join(known)}, not of '{library}'"
        )
    set_next("")
    rows: list[NewRelease] = []
    for name in [library] if library else known:
        newer = list(new_releases(name))
        rows += newer
        if not newer and not as_json:
            click.echo(f"{name}: nothing newer than {loss_code.releases_of(name)[-1]}")
        for each in newer if not as_json else ():
            click.echo(f"{name} {each.version}, after {each.before}: {_new_text(each)}")
    if as_json:
        print_json(
            [{**each._asdict(), "keys": [row._asdict() for row in each.keys]} for each in rows]
        )
    return WOULD_CHANGE if any(each.changes for each in rows) else 0


def _new_text(release: NewRelease) -> str:
    """Return what a release changes: what is measured, then code, then keys."""
    parts = [
        f"{what}: {', '.join(names)}"
        for what, names in (
            ("other numbers", release.measured or ()),
            ("another code", release.rewritten),
            ("new", release.added),
            ("gone", release.dropped),
        )
        if names
    ] or ["the code of the KL, the advantage and the loss is the same"]
    lines = ["; ".join(parts)]
    if release.measured is None:
        lines.append("its functions could not be run: their numbers were not compared")
    lines += [f"{row.what}: {row.before} -> {row.after}" for row in release.keys[:MOST_ROWS]]
    if release.keys[MOST_ROWS:]:
        lines.append(f"and {len(release.keys) - MOST_ROWS} more keys (--json lists them)")
    if release.other_keys is None:
        lines.append("its keys could not be read: not compared")
    elif release.other_keys:
        lines.append(f"{release.other_keys} keys differ that are none of the objective")
    return "\n  ".join(lines)


def _print(outcome: Adopted) -> None:
    rows, texts, others = outcome.changes
    name = f"{outcome.library} {outcome.version}"
    if rows:
        click.echo(
            f"{len(rows)} rows to look at in {name}: they differ from {outcome.neighbour}.\n"
        )
        columns = ("", "what", outcome.neighbour, outcome.version)
        print_table(columns, rows[:MOST_ROWS])
        if len(rows) > MOST_ROWS:
            click.echo(f"and {len(rows) - MOST_ROWS} more (--json lists them)")
    else:
        click.echo(
            f"nothing changed in {name}: what orch reads and measures is as in {outcome.neighbour}."
        )
    click.echo()
    if texts:
        click.echo(f"probed functions with another text: {', '.join(texts)}")
    if others:
        click.echo(
            f"{len(others)} more keys differ; orch sends none of them, and none says what is "
            "optimised: --json lists them"
        )
    for sentence in outcome.measured.refused:
        click.echo(f"its parser: {sentence}")
    for sentence in outcome.measured.unmeasured:
        click.echo(f"not measured: {sentence}")
    if outcome.measured.why:
        click.echo(f"training: {outcome.measured.why}")
    click.echo(f"written: {', '.join(_near(file) for file in outcome.files)}")
    click.echo(f"{name}: {_rung(outcome)}")


def _near(file: Path) -> str:
    current = Path.cwd()
    return str(file.relative_to(current) if file.is_relative_to(current) else file)


def _rung(outcome: Adopted) -> str:
    launches = f"{outcome.measured.launches} launches"
    return {
        "": f"not parsed: see above what its parser makes of {launches}",
        "parsed": f"parsed: its parser takes {launches} with the values that orch sends",
        "probed": f"probed, and its parser takes {launches} with the values that orch sends",
        "trained": "trained, but not as its dialect predicts",
        "predicted": "predicted: it trained on this machine as its dialect predicts",
    }[outcome.rung]
