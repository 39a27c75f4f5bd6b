"""orch port: a launch of one library as a spec, or as a launch of another."""

import shlex
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
import yaml

from orchestrator import plugins
from orchestrator.audit.libraries import NeighbourFiles, Projects
from orchestrator.audit.port import (
    Ported,
    PortRow,
    launch_of,
    moved,
    ported,
    rows_of_spec,
    spec_text,
)
from orchestrator.cli import common
from orchestrator.cli.common import print_json, say
from orchestrator.cli.manners import set_next
from orchestrator.errors import SelectionError, did_you_mean
from orchestrator.pipeline.messages import is_verbose
from orchestrator.records import AttemptPaths, LaunchPlan

SPEC = "spec"


@click.command(short_help="Write a launch as a spec, or as a launch of another library.")
@click.argument(
    "script", metavar="FILE", type=click.Path(exists=True, dir_okay=False, path_type=Path)
)
@click.argument("changes", nargs=-1, metavar="[FIELD=VALUE]...")
@click.option(
    "--to",
    "target",
    required=True,
    metavar="spec|LIBRARY[@VERSION]",
    help="`spec`: a spec whose one cell is this launch; a library: a launch of it.",
)
@click.option(
    "--library",
    "pinned",
    multiple=True,
    metavar="NAME@VERSION",
    help="The release that FILE runs on, if it does not show it.",
)
@click.option(
    "-o",
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write the launch (launch.sh) and the files that it needs into this folder.",
)
@common.as_json
def command(
    script: Path,
    changes: tuple[str, ...],
    target: str,
    pinned: tuple[str, ...],
    out: Path | None,
    as_json: bool,
) -> int:
    """Write a launch as a spec, or as a launch of another library, with a row for each of its keys.

    The rows are comments above the result. Each says whether a key is carried with the same
    meaning, approximated, set because the two libraries' defaults differ, or not carried. What the
    other library cannot do is refused: FIELD=VALUE says what to take in its place. Exit code 1:
    something is refused.

    \b
      orch port train.sh --to spec > mine.yaml
      orch port train.sh --to skyrl@0.4.0 --out skyrl
      orch port train.sh --to openrlhf loss.aggregation=sequence_mean
    """
    releases = dict(_release(each) for each in pinned)
    text = script.read_text(encoding="utf-8", errors="replace").replace("\r\n", "\n")
    projects = Projects()
    files = NeighbourFiles(script, projects)
    versions = {**projects.versions(script), **releases}
    read, reading, note = launch_of(text, str(script), files, versions)
    if note:
        say(note)
    launch = ported(read, reading)
    if target == SPEC:
        rows = list(rows_of_spec(launch))
        if as_json:
            print_json({"rows": [asdict(row) for row in rows], "fields": launch.fields})
        else:
            click.echo(spec_text(launch, script.name), nl=False)
        return 0
    library, _, version = target.partition("@")
    if library not in plugins.names():
        raise SelectionError(
            f"--to is {SPEC} or a library{did_you_mean(library, (SPEC, *plugins.names()))} (there "
            f"are: {', '.join(plugins.names())}); got {target}"
        )
    chosen = dict(_change(each) for each in changes)
    folder = (out or Path("port")).absolute()
    paths = AttemptPaths(folder, folder / "attempt", folder / "checkpoints")
    plan, rows = moved(launch, library, version or None, chosen, paths)
    if as_json:
        print_json(_data(launch, plan, rows))
    elif plan is None:
        for row in rows:
            say(row.note)
        say(f"{script} is not written for {target}: give each field a value, such as FIELD=VALUE")
    elif out is None:
        set_next("")
        click.echo(_script(launch, plan, rows, script.name), nl=False)
        if plan.files:
            say(f"it needs {len(plan.files)} files beside it: --out FOLDER writes them too")
    else:
        texts = {**plan.files, "launch.sh": _script(launch, plan, rows, script.name)}
        for name, text in texts.items():
            (out / name).parent.mkdir(parents=True, exist_ok=True)
            (out / name).write_text(text, encoding="utf-8")
        say(f"wrote {out / 'launch.sh'} and {len(plan.files)} files that it needs")
        following = shlex.quote(str(out / "launch.sh"))
        set_next(f"bash {following.replace('{', '{{').replace('}', '}}')}")
    return int(plan is None)


def _release(text: str) -> tuple[str, str]:
    library, at, version = text.partition("@")
    if not at or not version:
        raise SelectionError(f"--library is NAME@VERSION; got {text}")
    return library, version


def _change(text: str) -> tuple[str, object]:
    name, equals, value = text.partition("=")
    if not equals:
        raise SelectionError(f"a change is FIELD=VALUE, such as kl.beta=0.1; got {text}")
    return name, yaml.safe_load(value)


def _script(launch: Ported, plan: LaunchPlan, rows: Sequence[PortRow], source: str) -> str:
    by_default = sum(row.kind == "set" and bool(row.target) for row in rows)
    shown = [row for row in rows if row.kind != "set" or not row.target or is_verbose()]
    head = [
        "#!/usr/bin/env bash",
        f"# From {source}: {launch.library} {launch.version} to {plan.backend} {plan.version}.",
        *(f"# {_row(row)}" for row in shown),
        f"# {by_default} keys are set to what {launch.library} does by default (-v lists them)",
    ]
    exports = [f"export {name}={shlex.quote(value)}" for name, value in sorted(plan.env.items())]
    words = " \\\n  ".join(shlex.quote(word) for word in plan.argv)
    return "\n".join([*head, *exports, words]) + "\n"


def _row(row: PortRow) -> str:
    ways = [row.source or f"{row.field}={row.value}", *([row.target] if row.target else [])]
    text = f"{row.kind}: {' -> '.join(ways)}"
    return f"{text} ({row.note})" if row.note else text


def _data(launch: Ported, plan: LaunchPlan | None, rows: Sequence[PortRow]) -> dict[str, Any]:
    return {
        "from": f"{launch.library}@{launch.version}",
        "to": None if plan is None else f"{plan.backend}@{plan.version}",
        "argv": None if plan is None else list(plan.argv),
        "files": {} if plan is None else plan.files,
        "env": {} if plan is None else plan.env,
        "rows": [asdict(row) for row in rows],
    }
