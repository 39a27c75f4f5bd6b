"""What an installation holds: three packages, with the data they need, and nothing else."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_the_wheel_holds_three_packages_and_their_data(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", tmp_path, ROOT], check=True
    )
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.partition("/")[0] for name in names}
    assert {top for top in tops if ".dist-info" not in top} == {
        "orchestrator",
        "backends",
        "dashboards",
    }
    for needed in (
        "backends/micro/policies/amber/model.safetensors",
        "backends/micro/tasks/micro_sort.yaml",
        "dashboards/page.css",
        "orchestrator/kl/verdicts.json",
    ):
        assert needed in names
