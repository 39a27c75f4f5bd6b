"""Cells for Prime-RL, and Prime-RL's own configuration classes where a checkout is pointed to."""

import json
import os
import shutil
import subprocess
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from orchestrator.records import Cell
from tests import golden
from tests.backends.environments import contract_python

VARIABLE = "ORCH_PRIME_RL_CHECKOUT"
RELEASES = {
    "0.5.0": ("63331ad8b", "src"),
    "0.8.0": ("60bc29547", "packages/prime-rl-configs/src"),
}
"""Release -> its commit, and where in it the configuration's package lies."""


@pytest.fixture(scope="session")
def base() -> Cell:
    """k1 in the reward, up to ten train steps stale, on one node."""
    changes = {
        "kl": {"estimator": "k1", "placement": "reward", "beta": 0.005},
        "max_staleness_steps": 10,
        "resources": {"num_nodes": 1, "gpus_per_node": 4},
    }
    return golden.cell_of("prime_rl", "0.5.0", changes)


def taken(version: str, folder: Path, inside: str) -> Path:
    """A folder of a release with its package, out of the repository pointed to."""
    checkout = os.environ.get(VARIABLE)
    if not checkout:
        pytest.skip(f"set {VARIABLE} to a git repository of Prime-RL to check with its own code")
    commit, _ = RELEASES[version]
    archive = folder / "source.tar"
    git = [str(shutil.which("git")), "-C", checkout, "archive", "-o", str(archive), commit]
    subprocess.run([*git, f"{inside}/prime_rl"], check=True)
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    return folder / inside


def asking(version: str, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    """Asks a release's own classes: ask([(kind, text)]) -> answers."""
    root = taken(version, tmp_path_factory.mktemp("prime_rl"), RELEASES[version][1])
    python = contract_python("prime_rl", version)

    def ask(files: Sequence[tuple[str, str]]) -> Any:
        folder = tmp_path_factory.mktemp("files")
        asked: dict[str, Any] = {"source": str(root), "files": []}
        for number, (kind, text) in enumerate(files):
            path = folder / f"{number}.toml"
            path.write_text(text, encoding="utf-8")
            asked["files"].append({"kind": kind, "path": str(path)})
        done = subprocess.run(
            [str(python), str(Path(__file__).with_name("checkout.py"))],
            input=json.dumps(asked),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-2000:]
        return json.loads(done.stdout)

    return ask
