"""The estimate of a GPU's memory: its formula, what `orch plan` says and refuses."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.errors import UnsupportedSetting
from orchestrator.launch.gpu_memory import memory_lines, refusal
from orchestrator.library.memory import GpuUse, estimate
from orchestrator.library.model_size import ModelShape, ModelSize, size_of
from orchestrator.records import Cell, Site
from orchestrator.settings import Model
from tests import golden

SHAPES = {
    "1.5": ModelShape(1536, 8960, 28, 12, 2, 128, 151_936, tie_word_embeddings=True),
    "7": ModelShape(3584, 18_944, 28, 28, 4, 128, 152_064, tie_word_embeddings=False),
    "14": ModelShape(5120, 13_824, 48, 40, 8, 128, 152_064, tie_word_embeddings=False),
}
"""Qwen2.5's, by their config.json: billions of parameters -> shape."""


def cell(path: str = "org/M-7B", kl: str = "k3", offload: bool = False) -> Cell:
    changes = {
        "model": {"name": "m", "path": path},
        "kl": {"estimator": kl, "placement": "loss", "beta": 0.1},
        "resources": {"num_nodes": 1, "gpus_per_node": 4},
        "system": {"offload": offload},
    }
    return golden.cell_of("trl", "1.16.0", changes)


@pytest.mark.parametrize(("name", "billions"), [("1.5", 1.544), ("7", 7.62), ("14", 14.77)])
def test_the_parameters_are_those_that_qwen_publishes(name: str, billions: float) -> None:
    assert SHAPES[name].num_parameters / 1e9 == pytest.approx(billions, rel=2e-3)


def test_an_estimate_adds_what_a_gpu_holds() -> None:
    shape = SHAPES["7"]
    size = ModelSize(2.0**30, shape, "here")
    use = GpuUse(
        gpus=4,
        weights=4,
        gradients=4,
        optimizer=8,
        tokens=1024,
        reference=2,
        engine_share=0.5,
        kept_while_sampling=6,
    )
    found = estimate(use, size, "a100-80gb")
    assert found.least == 4
    assert found.training["reference"] == 0.5
    assert found.sampling == {"engine": 40, "trainer": 1.5}
    more = estimate(replace(use, tokens=2048), size, "a100-80gb")
    assert more.training["activations"] == pytest.approx(2 * found.training["activations"])
    kept = estimate(replace(use, checkpointing=False), size, "a100-80gb")
    assert kept.training["activations"] > found.training["activations"]
    unknown = estimate(use, ModelSize(2.0**30, None, "name"), "b9000")
    assert "activations" not in unknown.training
    assert unknown.gpu is None
    assert not unknown.cannot_fit


def test_the_size_is_from_the_cache_or_from_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    declared = size_of(Model(name="m", path="org/M-7B"))
    assert declared is not None
    assert (declared.num_parameters, declared.shape) == (7e9, None)
    assert size_of(Model(name="m", path="org/M")) is None
    snapshot = tmp_path / "hf" / "hub" / "models--org--Cached-7B" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot.parents[1] / "refs").mkdir()
    (snapshot.parents[1] / "refs" / "main").write_text("abc")
    shape = SHAPES["7"]._asdict()
    (snapshot / "config.json").write_text(json.dumps(shape))
    found = size_of(Model(name="m", path="org/Cached-7B"))
    assert found is not None
    assert found.shape == SHAPES["7"]
    use, source = memory_lines([cell("org/Cached-7B")])
    assert use.startswith("trl m: 64 of 80 GiB a GPU while it trains, 60 while it samples")
    assert source == "from the config.json of m"
    monkeypatch.delenv("HF_HOME")
    site = Site(kind="slurm", options={"env": {"HF_HOME": str(tmp_path / "hf")}})
    assert memory_lines([cell("org/Cached-7B")], site)[1] == source
    _, source = memory_lines([cell()])
    assert source.startswith("from the names of m, whose config.json is not")


def test_what_cannot_fit_is_refused_with_what_helps() -> None:
    assert refusal(cell()) is None
    large = refusal(cell("org/M-32B"))
    assert isinstance(large, UnsupportedSetting)
    assert "119 GiB of each GPU" in str(large)
    assert "system.offload=true" in str(large)
    assert "resources.gpus_per_node=8" in str(large)
    assert refusal(cell("org/M-32B", offload=True)) is None
    # a KL that orch ships keeps the whole model on each GPU: more of them do not help
    whole = str(refusal(cell(kl="full")))
    assert "104 GiB" in whole
    assert "another library" in whole
