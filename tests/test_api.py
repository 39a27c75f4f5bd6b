"""`import orch`: what is promised is there, typed and described, and the notebooks run."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import orch

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))


def test_a_mistake_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(orch.OrchError, match="did you mean 'smoke'"):
        orch.load("smok")
    with pytest.raises(orch.OrchError, match="did you mean"):
        orch.expand(orch.load("smoke"), ["kl.estimater=k3"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"estimator": "k9", "placement": "loss"}, "estimator must be one of none, k1, k2"),
        ({"estimator": "k1", "placement": None}, "estimator 'k1' needs a placement"),
        ({"estimator": "none", "placement": "loss"}, "estimator 'none' takes no placement"),
        ({"estimator": "k1", "placement": "loss", "advantage": "grop"}, "did you mean 'grpo'?"),
        ({"estimator": "k1", "placement": "loss", "group_size": 0}, "group_size must be >= 2"),
    ],
)
def test_a_question_that_cannot_be_explained(arguments: Any, said: str) -> None:
    with pytest.raises(orch.OrchError) as caught:
        orch.explain(**arguments)
    assert said in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(notebook: Path, tmp_path: Path) -> None:
    """Its cells, in order, in one Python."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "MPLBACKEND": "Agg"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
