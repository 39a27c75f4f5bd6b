"""The reward that a plan ships, run from the plan's folder in a bare interpreter."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from orchestrator import plugins
from orchestrator.errors import UnsupportedSetting
from orchestrator.records import AttemptPaths, LaunchPlan
from tests.backends.specs import every

LIBRARIES = ("openrlhf", "prime_rl", "skyrl", "verl")

LABELS = {
    "math_boxed": r"\frac{\sqrt{2}}{2}",
    "countdown": '{"numbers": [2, 3], "target": 6}',
    "exact": "yes",
}
RIGHT = {
    "math_boxed": r"so \boxed{\frac{1}{\sqrt{2}}}",
    "countdown": "<answer>3*2</answer>",
    "exact": " yes\n",
}
WRONG = {"math_boxed": r"so \boxed{3}", "countdown": "no", "exact": "no"}
WORTH = {"math_boxed": [1.0, 0.0], "countdown": [1.0, 0.01], "exact": [1.0, 0.0]}


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


def rewards(program: str, plan: LaunchPlan, folder: Path, rule: str) -> list[float]:
    """What `program` prints (JSON), run with -I -S: no site, no path of ours. In argv: the folder
    of the plan, then a right response, a wrong one and the label. math-verify's folder is given."""
    write(plan, folder)
    packages = [path for path in sys.path if path.endswith("site-packages")]
    head = f"import sys; sys.path += {packages!r}\n"
    tail = (
        "\nassert not [m for m in sys.modules if m.split('.')[0] in ('orchestrator', 'backends')]\n"
    )
    argv: Sequence[str] = [str(folder), RIGHT[rule], WRONG[rule], LABELS[rule]]
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", head + program + tail, *argv],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    found: list[float] = json.loads(done.stdout)
    return found
