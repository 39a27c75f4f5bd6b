"""The real libraries log what is recorded of them: rewards and validations, under known names.

ORCH_KEEP_RECORDS=1 pytest -m real tests/replay     records them again
"""

import os
from pathlib import Path
from typing import Any

import pytest

from tests.backends.environments import KEEPS_RECORDS, cpu_python
from tests.backends.prime_rl.conftest import VARIABLE
from tests.lab import real
from tests.replay import recorded

RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    "verl": ("0.9.1", real.K1),
    "openrlhf": ("0.11.2", real.K1),
    "skyrl": ("0.4.0", real.K1),
    "trl": ("1.16.0", real.K3),
    "prime_rl": ("0.5.0", real.K3),
}
EVERY = 5
"""Train steps from one validation to the next."""


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.long(300)
@pytest.mark.parametrize("library", RUNS)
def test_a_library_logs_what_is_recorded(library: str, tmp_path: Path) -> None:
    if library == "prime_rl" and not os.environ.get(VARIABLE):
        pytest.skip(f"set {VARIABLE} to a git repository of Prime-RL to train with it")
    release, changes = RUNS[library]
    python = cpu_python(library, release)
    run = real.train(library, release, python, tmp_path, changes, evaluate_every=EVERY)
    if os.environ.get(KEEPS_RECORDS):
        kl, place = run.cell.settings.kl.label, run.place
        about = {"kl": kl, "train_steps": real.STEPS, "validated_every": EVERY}
        recorded.keep(library, release, place.attempt_dir, place.checkpoints_dir, **about)
    known = recorded.record(library)
    assert known.release == release
    written = recorded.logs_of(library, run.place.attempt_dir)
    kinds = [recorded.kinds(library, path.read_bytes()) for path in written]
    assert {"reward", "validation"} <= set().union(*kinds), "what the replay replaces is there"


@pytest.mark.parametrize("library", RUNS)
def test_a_record_is_whole(library: str) -> None:
    """Each file has its hash, logs a reward and a validation, and is small."""
    known = recorded.record(library)
    kinds = [recorded.kinds(library, content) for content in known.files.values()]
    assert {"reward", "validation"} <= set().union(*kinds)
