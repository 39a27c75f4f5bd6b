"""orch port: a launch of one library as a spec, or as a launch of another."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    from orchestrator.lab.probes.port_proof import PortProof

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
@click.option(
    "--prove",
    "proving",
    is_flag=True,
    help="Compare the gradients of both launches on the same rollouts, in each library's own "
    "functions, and name the row that explains a difference.",
)
@common.as_json
def command(
    script: Path,
    changes: tuple[str, ...],
    target: str,
    pinned: tuple[str, ...],
    out: Path | None,
    proving: bool,
    as_json: bool,
) -> int:
    """Write a launch as a spec, or as a launch of another library, with a row for each of its keys.

    The rows are comments above the result. Each says whether a key is carried with the same
    meaning, approximated, set because the two libraries' defaults differ, or not carried. What the
    other library cannot do is refused: FIELD=VALUE says what to take in its place. Exit code 1:
    something is refused, or --prove found a difference that no row explains.

    \b
      orch port train.sh --to spec > mine.yaml
      orch port train.sh --to skyrl@0.4.0 --out skyrl
      orch port train.sh --to openrlhf loss.aggregation=sequence_mean
      orch port train.sh --to verl@0.9.1 --prove
    """
    launch = _launch(script, dict(_release(each) for each in pinned))
    if target == SPEC and not proving:
        if as_json:
            rows = list(rows_of_spec(launch))
            print_json({"rows": [asdict(row) for row in rows], "fields": launch.fields})
        else:
            click.echo(spec_text(launch, script.name), nl=False)
        return 0
    library, version = _library(target, launch)
    chosen = dict(_change(each) for each in changes)
    folder = (out or Path("port")).absolute()
    paths = AttemptPaths(folder, folder / "attempt", folder / "checkpoints")
    plan, rows = moved(launch, library, version, chosen, paths)
    proof = _proof(launch, plan, rows) if proving and plan is not None else None
    if as_json:
        shown = {"proof": asdict(proof) | {"is_equal": proof.is_equal}} if proof else {}
        print_json(_data(launch, plan, rows) | shown)
    elif plan is None:
        for row in rows:
            say(row.note)
        say(f"{script} is not written for {target}: give each field a value, such as FIELD=VALUE")
    else:
        _print(launch, plan, rows, script.name, out, proof)
    return int(plan is None or not (proof is None or proof.is_equal or proof.is_explained))


def _launch(script: Path, releases: Mapping[str, str]) -> Ported:
    text = script.read_text(encoding="utf-8", errors="replace").replace("\r\n", "\n")
    projects = Projects()
    files = NeighbourFiles(script, projects)
    versions = {**projects.versions(script), **releases}
    read, reading, note = launch_of(text, str(script), files, versions)
    if note:
        say(note)
    launch = ported(read, reading)
    if reading.version not in (None, "", launch.version):
        say(
            f"orch has no tables of {launch.library} {reading.version}: its keys are read as those "
            f"of {launch.version} (--library {launch.library}@VERSION says which)"
        )
    return launch


def _library(target: str, launch: Ported) -> tuple[str, str | None]:
    """Return the library and release of --to; of a spec, those of the script itself."""
    if target == SPEC:
        return launch.library, launch.version
    library, _, version = target.partition("@")
    if library not in plugins.names():
        raise SelectionError(
            f"--to is {SPEC} or a library{did_you_mean(library, (SPEC, *plugins.names()))} (there "
            f"are: {', '.join(plugins.names())}); got {target}"
        )
    return library, version or None


def _print(
    launch: Ported,
    plan: LaunchPlan,
    rows: Sequence[PortRow],
    source: str,
    out: Path | None,
    proof: "PortProof | None",
) -> None:
    """Print the launch or write it into the folder `out`; with a proof, print that."""
    if proof is not None:
        _print_proof(proof)
    if out is not None:
        texts = {**plan.files, "launch.sh": _script(launch, plan, rows, source)}
        for name, text in texts.items():
            (out / name).parent.mkdir(parents=True, exist_ok=True)
            (out / name).write_text(text, encoding="utf-8")
        say(f"wrote {out / 'launch.sh'} and {len(plan.files)} files that it needs")
        following = shlex.quote(str(out / "launch.sh"))
        set_next(f"bash {following.replace('{', '{{').replace('}', '}}')}")
        return
    set_next("")
    if proof is None:
        click.echo(_script(launch, plan, rows, source), nl=False)
        if plan.files:
            say(f"it needs {len(plan.files)} files beside it: --out FOLDER writes them too")


def _print_proof(proof: "PortProof") -> None:
    from orchestrator.lab.probes.port_proof import text_of

    for line in text_of(proof):
        click.echo(line)


def _proof(launch: Ported, plan: LaunchPlan, rows: Sequence[PortRow]) -> "PortProof":
    from orchestrator.lab.probes.port_proof import prove
    from orchestrator.lab.probes.protocol import sources

    with (
        sources(launch.library, launch.version) as before,
        sources(plan.backend, plan.version) as after,
    ):
        return prove(launch, plan, rows, before.where, after.where)


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
    defaults = [row for row in rows if row.kind == "set" and row.target and not row.is_other]
    shown = [row for row in rows if row not in defaults or is_verbose()]
    head = [
        "#!/usr/bin/env bash",
        f"# From {source}: {launch.library} {launch.version} to {plan.backend} {plan.version}.",
        *(f"# {_row(row)}" for row in shown),
        f"# {len(defaults)} keys are set to what {launch.library} does by default (-v lists them)",
    ]
    exports = [f"export {name}={shlex.quote(value)}" for name, value in sorted(plan.env.items())]
    words = " \\\n  ".join(shlex.quote(word) for word in plan.argv)
    return "\n".join([*head, *exports, words]) + "\n"


def _row(row: PortRow) -> str:
    unwritten = row.field if row.kind == "not carried" else f"{row.field}={row.value}"
    target = row.target or (row.source and row.kind != "not carried" and f"no key: {unwritten}")
    ways = [row.source or unwritten, *([target] if target else [])]
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
