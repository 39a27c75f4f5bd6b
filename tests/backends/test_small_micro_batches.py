"""Trains the libraries with small micro batches, checkpointing and a temperature.

Their gradients are those that orch computes of the whole batch.

ORCH_KEEP_RECORDS=1 keeps the distances in backends/LIBRARY/system.json.
"""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from orchestrator import plugins
from orchestrator.settings import System
from tests.backends.environments import KEEPS_RECORDS
from tests.lab import proven

SYSTEM = System(micro_batch=8, gradient_checkpointing=True)
SETTINGS: dict[str, Any] = {
    "advantage": {"estimator": "rloo"},
    "kl": {"estimator": "k3", "placement": "loss", "beta": 0.3},
    # warm, so that it can be told from 1; hotter, the policy never answers right
    "rollout": {"group_size": 8, "max_response_tokens": 6, "temperature": 1.3},
    "batch": {"num_prompts": 32, "num_minibatches": 4},
}
LOSSES: dict[str, dict[str, Any]] = {
    "token_mean": {"aggregation": "token_mean"},
    "sequence_mean": {"aggregation": "sequence_mean"},
    "constant": {"aggregation": "constant", "constant_tokens": 1},
}
ROUNDING = 1e-4
"""Rounding grows from train step to train step: 4e-6 and 3e-5 were seen of OpenRLHF."""


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.long(150)
@pytest.mark.parametrize(
    ("library", "version", "loss"),
    [
        ("verl", "0.9.1", "token_mean"),
        ("openrlhf", "0.11.2", "token_mean"),
        ("skyrl", "0.4.0", "token_mean"),
        *(("trl", "1.16.0", loss) for loss in LOSSES),
    ],
)
def test_the_gradients_are_those_of_the_whole_batch(
    library: str, version: str, loss: str, tmp_path: Path
) -> None:
    asked = SETTINGS | {"loss": LOSSES[loss]}
    whole = proven.other_cell(library, version, asked, tmp_path, batches=1)
    small = whole._replace(cell=whole.cell.model_copy(update={"system": SYSTEM}))
    small.train()
    run = small.run()
    assert len({len(response) for response in run.batches[0].responses}) > 2
    worst = {each.name: each.worst for each in run.proof().quantities}
    assert max(worst["grad_norm"], worst["loss"]) < ROUNDING, worst
    divided = {"mean_over": "minibatch"} if library == "trl" else {"micro_batch": 8}
    others = {"rollout": "one", "one": "rollout"}
    for wrong in (
        *([divided] if loss == "token_mean" else []),
        {"reference_temperature": others[run.dialect.reference_temperature]},
    ):
        (norm,) = (
            each.worst
            for each in run.proof(run.dialect.but(**wrong)).quantities
            if each.name == "grad_norm"
        )
        assert norm > 10 * ROUNDING, f"{wrong} would not be seen"
    kept = plugins.folder(library) / "system.json"
    stored = json.loads(kept.read_text(encoding="utf-8"))
    if os.environ.get(KEEPS_RECORDS):
        stored["distances"][loss] = dict.fromkeys(
            ("micro_batch", "gradient_checkpointing"), worst["grad_norm"]
        )
        kept.write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")
    assert stored["release"] == version
    assert max(stored["distances"][loss].values()) < ROUNDING
