"""Train verl, SkyRL and OpenRLHF on a CPU, one planted fault a run, each by the launch of orch.

    PYTHONPATH=tests python -m tests.audit.planted.train_others OUT

The environments are those of the tests marked `real`. OUT gets `others.json`: run -> settings and
metrics, and `others.causes.json`: run -> the planted fault, which the rules never read.
"""

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.backends.environments import root
from tests.lab import real

NONE = {"kl": {"estimator": "none"}}


def _kl(estimator: str, placement: str, beta: float) -> dict[str, Any]:
    return {"kl": {"estimator": estimator, "placement": placement, "beta": beta}}


def _rate(rate: float) -> dict[str, Any]:
    return {"optimizer": {"learning_rate": rate}}


RUNS: list[tuple[str, str, dict[str, Any]]] = [
    ("verl", "nothing_wrong", _kl("k1", "reward", 0.03)),
    ("skyrl", "kl_too_strong", _kl("k3", "loss", 10.0)),
    ("verl", "learning_rate", NONE | _rate(3e-2)),
    ("openrlhf", "nothing_wrong", _kl("k3", "loss", 0.02)),
    ("verl", "no_signal", _kl("k3", "loss", 0.03)),
    ("skyrl", "nothing_wrong", NONE),
    ("verl", "kl_too_strong", _kl("k1", "reward", 5.0)),
    ("openrlhf", "learning_rate", _kl("k1", "reward", 0.02) | _rate(2e-2)),
    ("skyrl", "learning_rate", _kl("k1", "reward", 0.02) | _rate(3e-2)),
    ("verl", "kl_without_effect", _kl("k1", "loss", 0.1)),
]
RELEASES = {"verl": "0.9.1", "skyrl": "0.4.0", "openrlhf": "0.11.2"}
STEPS = 40


def main(out: Path) -> None:
    """Train the runs and write them."""
    out.mkdir(parents=True, exist_ok=True)
    logs: dict[str, Any] = {}
    causes: dict[str, str] = {}
    right = real.prompts
    for number, (library, cause, changes) in enumerate(RUNS):
        version = RELEASES[library]
        (python,) = root().glob(f"{library}-{version}.cpu-*/bin/python")
        shape = {
            "rollout": {"group_size": 8, "max_response_tokens": 6},
            "batch": {"num_prompts": 8},
            "num_train_steps": STEPS,
            "seed": number,
        }
        real.prompts = _unanswerable if cause == "no_signal" else right
        start = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            run = real.train(library, version, python, Path(folder), shape | changes)
        name = f"{library}-{number:02d}"
        logs[name] = {
            "library": library,
            "settings": run.cell.settings.model_dump(mode="json", exclude_defaults=True),
            "rows": [
                [p.step, {n: float(f"{v:.4g}") for n, v in p.values.items() if "time/" not in n}]
                for p in run.points
            ],
        }
        causes[name] = cause
        sys.stderr.write(f"{name} {time.monotonic() - start:.0f} s\n")
        (out / "others.json").write_text(json.dumps(logs, separators=(",", ":")))
        (out / "others.causes.json").write_text(json.dumps(causes, indent=1) + "\n")


def _unanswerable(folder: Path) -> Path:
    """Prompts whose answers have a letter that no response has."""
    folder.mkdir()
    for name, numbers in (("train", range(64)), ("validation", range(64, 72))):
        rows = [
            json.dumps({"question": f"C{real.word(n)}=", "answer": f"{real.word(n)}x"})
            for n in numbers
        ]
        (folder / f"{name}.jsonl").write_text("\n".join(rows) + "\n")
    return folder / "train.jsonl"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
