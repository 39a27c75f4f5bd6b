"""The reward that a plan ships, run from the plan's folder in a bare interpreter."""

from pathlib import Path

from orchestrator import plugins
from orchestrator.errors import UnsupportedSetting
from orchestrator.records import AttemptPaths, LaunchPlan
from tests.backends.specs import every

LIBRARIES = ("openrlhf", "prime_rl", "skyrl", "verl")


def planned(library: str, rule: str, folder: Path) -> LaunchPlan:
    """The launch of a shipped cell of a library, the first it can express, with a reward rule."""
    place = AttemptPaths(folder, folder / "attempts" / "1", folder / "checkpoints")
    backend = plugins.load(library)
    for cell in every():
        if cell.settings.backend.name == library:
            data = cell.settings.data.model_copy(update={"reward": rule})
            settings = cell.settings.model_copy(update={"data": data})
            try:
                return backend.translate(cell.model_copy(update={"settings": settings}), place)
            except UnsupportedSetting:
                continue
    raise LookupError(library)


def write(plan: LaunchPlan, folder: Path) -> None:
    """A plan's files, as the launcher writes them."""
    for name, text in plan.files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
