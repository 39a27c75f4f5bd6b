"""The reward that a plan ships, run from the plan's folder in a bare interpreter."""

from pathlib import Path

from orchestrator import plugins
from orchestrator.records import AttemptPaths, LaunchPlan
from tests import golden

LIBRARIES = ("openrlhf", "prime_rl", "skyrl", "verl")


def planned(
    library: str, rule: str, folder: Path, version: str = "", **changes: object
) -> LaunchPlan:
    """The golden launch of a library with a reward rule, and without a KL."""
    place = AttemptPaths(folder, folder / "attempts" / "1", folder / "checkpoints")
    asked = {"data.reward": rule, "kl": {"estimator": "none"}, **changes}
    cell = golden.cell_of(library, version or golden.RELEASES[library], asked)
    return plugins.load(library).translate(cell, place)


def write(plan: LaunchPlan, folder: Path) -> None:
    """A plan's files, as the launcher writes them."""
    for name, text in plan.files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
