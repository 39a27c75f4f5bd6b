"""The table of the house's size by feature (docs/tools/size.py) leaves no file out."""

import subprocess
from collections import Counter
from pathlib import Path

from docs.tools import size

ROOT = Path(__file__).parents[1]
DELETED = {"SkyPilot", "MLflow, own writer and new store", "sharing of cells", "verify"}
"""Rows that only earlier checkouts have files for."""


def test_every_file_has_a_feature_and_every_feature_files() -> None:
    argv = ["git", "-C", str(ROOT), "ls-files", "*.py"]
    tracked = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split()
    files = Counter(size.feature_of(path) for path in tracked)
    assert [path for path in tracked if size.feature_of(path) is None] == []
    assert set(size.FEATURES) - set(files) == DELETED


def test_former_and_present_places_are_one_feature() -> None:
    former, present = "backends/verl/probes.py", "backends/verl/lab/probes.py"
    assert size.feature_of(former) == size.feature_of(present) == "matrix, drift, probes"


def test_a_checkout_is_counted_by_product_and_tests(tmp_path: Path) -> None:
    git = ("git", "-C", str(tmp_path))
    subprocess.run([*git, "init", "-q"], check=True)
    for name, lines in {"orch/__init__.py": 2, "tests/test_api.py": 3, "elsewhere.py": 4}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x = 1\n" * lines, encoding="utf-8")
    subprocess.run([*git, "add", "."], check=True)
    counted = size.lines(tmp_path)
    assert (counted.product.total(), counted.tests.total()) == (2, 3)
    assert counted.unnamed == ["elsewhere.py"]
