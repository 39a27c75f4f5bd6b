"""`orch compare --configs a.sh b.sh`: two launch scripts, read by audit, set against each other."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from orchestrator.cli.common import print_json, print_table, say
from orchestrator.errors import EnvironmentFault, SelectionError

if TYPE_CHECKING:
    from orchestrator.analysis.scripts import Script

LARGEST_BYTES = 2_000_000
SEEDS = (0, 1, 2)


def show(paths: Sequence[str], *, ablate: bool, as_json: bool) -> int:
    """Prints the table and, on request, what each difference does. 1 if cells failed."""
    from dataclasses import asdict

    from orchestrator.analysis.scripts import script_differences, unverified_differences

    if len(paths) != 2:
        raise SelectionError(
            f"--configs takes two launch scripts, got {len(paths)}: "
            "orch compare --configs a.sh b.sh"
        )
    left, right = (_read(path) for path in paths)
    if left.name == right.name:
        left, right = (_renamed(s, p) for s, p in zip((left, right), paths, strict=True))
    rows = script_differences(left, right)
    page: dict[str, Any] = {
        "left": left.name,
        "right": right.name,
        "differences": [asdict(row) for row in rows],
        "why": {s.name: s.finding.why for s in (left, right)},
        "notes": [*left.notes, *right.notes, *unverified_differences(left, right)],
    }
    code = 0
    if ablate:
        code, page["ablation"] = _ablate(left, right)
    if as_json:
        print_json(page)
        return code
    print_table(("what", left.name, right.name), [(r.what, r.left, r.right) for r in rows])
    if not rows:
        click.echo("Both ask for the same KL, of libraries that mean the same by it.")
    for name, why in page["why"].items():
        click.echo(f"{name}: {why}")
    for note in page["notes"]:
        say(note)
    for made in page.get("ablation", ()):
        from orchestrator.cli.libraries import print_ablation

        print_ablation(made)
    return code


def _read(path: str) -> "Script":
    """The launch that a script makes in its usual case. Raises OrchError."""
    from orchestrator.analysis.scripts import read_script
    from orchestrator.audit import UnreadableScript, audit

    file = Path(path)
    try:
        text = file.read_bytes()[:LARGEST_BYTES].decode(errors="replace")
    except OSError as error:
        raise EnvironmentFault(f"{path} cannot be read: {error.strerror or error}") from error
    try:
        found = audit(text, path)
    except UnreadableScript as error:
        raise SelectionError(f"{path}: {error}") from error
    usual = [finding for finding in found if finding.usual] or found
    made = read_script(usual[0], file.stem)
    if len(found) > 1:
        say(f"{path} holds {len(found)} launches or cases: the one of line {usual[0].line} is used")
    return made


def _renamed(made: "Script", path: str) -> "Script":
    from dataclasses import replace

    return replace(made, name=str(Path(path)))


def _ablate(left: "Script", right: "Script") -> tuple[int, list[dict[str, Any]]]:
    """Trains both ends and every step, at the scale of this machine."""
    from orchestrator.analysis.ablation import explain_differences
    from orchestrator.analysis.scripts import RECIPE, script_ablation
    from orchestrator.cli.libraries import EXACT, explained, trained
    from orchestrator.records import Spec

    made = script_ablation(left, right, RECIPE, SEEDS)
    code, value = trained(Spec(name="scripts", studies=()), [made], EXACT)
    return code, [
        {
            "left": left.name,
            "right": right.name,
            "metric": EXACT,
            "questions": [explained(x) for x in explain_differences(made, value)],
        }
    ]
