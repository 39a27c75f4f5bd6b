"""The smallest input of each report in upstream/ prints, in its release, what the report says."""

import re
from pathlib import Path

import pytest

from tests.backends.child import Imported, forked
from tests.backends.environments import cpu_python

pytestmark = [pytest.mark.slow, pytest.mark.thorough]  # in a library's environment

REPORTS = Path(__file__).parents[2] / "upstream"
IMPORTED = {
    "verl": ("torch", "verl.trainer.ppo.core_algos"),
    "trl": ("torch", "trl.trainer.grpo_trainer"),
    "skyrl": ("torch", "skyrl.train.config"),
}
BEFORE = {
    "skyrl": """
import importlib.util, sys, types
[home] = importlib.util.find_spec("skyrl").submodule_search_locations
sys.modules["skyrl.backends"] = types.ModuleType("skyrl.backends")
sys.modules["skyrl.backends"].__path__ = [home + "/backends"]
"""
}
"""SkyRL's package of backends imports its server, which needs Python 3.12; the loss does not."""
FILES = sorted(path.name for path in REPORTS.glob("*_*.md"))


def block(text: str, language: str) -> str:
    (only,) = re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return str(only)


@pytest.mark.parametrize("name", FILES)
def test_a_report_is_what_its_release_prints(name: str, tmp_path: Path) -> None:
    text = (REPORTS / name).read_text(encoding="utf-8")
    library = name.partition("_")[0]
    release = re.search(r"^- \*\*Release\*\*: \S+ (\S+)", text, re.MULTILINE)
    assert release is not None
    parent = Imported(cpu_python(library, release[1]), IMPORTED[library])
    done = forked(parent, BEFORE.get(library, "") + block(text, "python"), (), tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    printed = done.stdout.splitlines()
    seen = block(text, "text").splitlines()
    assert printed[-len(seen) :] == seen
