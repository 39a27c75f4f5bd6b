"""`lora` in every library: sent, read by the library's own parser and back, refused, and scored."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from orchestrator import plugins
from orchestrator.library import lora
from orchestrator.settings import Lora
from tests import golden
from tests.backends.environments import cpu_python
from tests.lab.real import POLICY

ASKED: dict[str, Any] = {"rank": 8, "alpha": 32, "targets": ["v_proj", "q_proj"]}
ALL: dict[str, Any] = {"rank": 8, "alpha": 32}
NAMED = {"verl": ASKED, "trl": ASKED, "skyrl": ALL, "prime_rl": ASKED}


def test_targets_are_one_text_whatever_their_order() -> None:
    assert Lora(**ASKED) == Lora(rank=8, alpha=32, targets="v_proj, q_proj,q_proj")
    assert Lora(**ASKED).modules == ["q_proj", "v_proj"]
    for wrong in ([], "", ".*", ["all-linear", "q_proj"], 3):
        with pytest.raises(ValidationError, match=r"targets are all-linear, or names"):
            Lora.model_validate({**ALL, "targets": wrong})


def test_frozen_weights_have_no_gradient_and_no_moments() -> None:
    for library, asked in NAMED.items():
        release, backend = golden.RELEASES[library], plugins.load(library)
        use = backend.gpu_memory(golden.cell_of(library, release, {"lora": asked}))
        full = backend.gpu_memory(golden.cell_of(library, release, {}))
        assert use is not None
        assert full is not None
        assert (use.weights, use.gradients, use.optimizer) == (4, 0, 0)
        assert (full.weights, full.gradients, full.optimizer) == (4, 4, 8)


def save_adapter(folder: Path, *, whole: bool = True) -> None:
    folder.mkdir(parents=True)
    header = json.dumps({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    body = len(header).to_bytes(8, "little") + header + b"\0" * (4 if whole else 3)
    (folder / lora.ADAPTER).write_bytes(body)
    for name in (lora.CONFIG, "config.json", "tokenizer_config.json"):
        (folder / name).write_text("{}")


def test_an_adapter_is_never_taken_for_a_policy(tmp_path: Path) -> None:
    """SkyRL's export has a config.json beside it; Prime-RL's is in the folder of its base."""
    save_adapter(tmp_path / "exports-x2" / "global_step_3" / "policy")
    save_adapter(tmp_path / "exports-x2" / "global_step_4" / "policy", whole=False)
    save_adapter(tmp_path / "exports-x2" / "global_step_5" / "policy")
    (tmp_path / "exports-x2" / "global_step_5" / "policy" / "tokenizer_config.json").unlink()
    backend = plugins.load("skyrl")
    [export] = backend.find_checkpoints(tmp_path)
    assert (export.step, export.needs_export) == (6, True)
    save_adapter(tmp_path / "weights" / "step_5")
    save_adapter(tmp_path / "weights" / "step_5" / "lora_adapters")
    (tmp_path / "weights" / "step_5" / "STABLE").touch()
    [policy] = plugins.load("prime_rl").find_checkpoints(tmp_path)
    assert policy.needs_export
    command = plugins.load("prime_rl").export_command(policy, tmp_path / "target")
    assert command is not None
    assert str(policy.path / "lora_adapters") in command


@pytest.mark.real
def test_an_adapter_beside_its_base_is_merged(tmp_path: Path) -> None:
    """As Prime-RL's trainer writes both (trainer/ckpt.py, trainer/lora.py), read in its source. An
    adapter that its base does not take, or of another kind, is not merged."""
    home = tmp_path / "checkpoints"
    policy, adapter = home / "weights" / "step_5", home / "weights" / "step_5" / "lora_adapters"
    shutil.copytree(POLICY, policy)
    adapter.mkdir()
    (policy / "STABLE").touch()
    (tmp_path / "plan").mkdir()
    (tmp_path / "plan" / lora.MERGE).write_text(lora.source())
    config = {
        "peft_type": "LORA",
        "base_model_name_or_path": "elsewhere",
        "r": 2,
        "lora_alpha": 6.0,
    }
    (adapter / lora.CONFIG).write_text(json.dumps(config))
    layer = "model.layers.0.self_attn.q_proj"
    write = f"""
import sys, torch
from safetensors.torch import load_file, save_file
weight = load_file({str(policy / "model.safetensors")!r})[{layer + ".weight"!r}].float()
rows, columns = weight.shape
a = torch.randint(-3, 4, (2, columns)).float()
b = torch.randint(-3, 4, (rows, 2)).float()
name = "base_model.model." + sys.argv[1]
parts = {{name + ".lora_A.weight": a, name + ".lora_B.weight": b}}
save_file(parts, {str(adapter / lora.ADAPTER)!r})
torch.save(weight + 3 * b @ a, {str(tmp_path / "wanted.pt")!r})
"""
    python = cpu_python("trl", "1.16.0")
    _run([python, "-c", write, layer], tmp_path)
    backend = plugins.load("prime_rl")
    [checkpoint] = backend.find_checkpoints(home)
    merged = tmp_path / "huggingface"
    command = backend.export_command(checkpoint, merged)
    assert command is not None
    _run([python, *command[1:]], tmp_path)
    read = f"""
import torch
from safetensors.torch import load_file
merged = load_file({str(merged / "model.safetensors")!r})[{layer + ".weight"!r}]
wanted = torch.load({str(tmp_path / "wanted.pt")!r})
print(merged.dtype, torch.equal(merged, wanted.bfloat16()))
"""
    assert _run([python, "-c", read], tmp_path).split() == ["torch.bfloat16", "True"]
    _run([python, "-c", write, "model.layers.0.nothing"], tmp_path)
    with pytest.raises(AssertionError, match=r"has no model.layers.0.nothing.weight"):
        _run([python, *command[1:]], tmp_path)
    (adapter / lora.CONFIG).write_text(json.dumps({**config, "use_rslora": True}))
    with pytest.raises(AssertionError, match="use_rslora, which orch does not merge"):
        _run([python, *command[1:]], tmp_path)


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.parametrize(
    ("library", "version", "bound"), [("verl", "0.9.1", 0.1), ("skyrl", "0.4.0", 1e-4)]
)
def test_what_the_library_saves_is_merged(
    library: str, version: str, bound: float, tmp_path: Path
) -> None:
    """Its own code saves, the backend's own command exports. verl's export is bf16."""
    python = cpu_python(library, version)
    (tmp_path / "plan").mkdir()
    (tmp_path / "plan" / lora.MERGE).write_text(lora.source())
    program = Path(__file__).with_name("lora_saved.py")
    _run([python, program, library, POLICY, tmp_path], tmp_path)
    backend = plugins.load(library)
    [checkpoint] = backend.find_checkpoints(tmp_path / "checkpoints")
    merged = tmp_path / "export" / "huggingface"
    merged.parent.mkdir()
    command = backend.export_command(checkpoint, merged)
    assert command is not None
    _run([python, *command[1:]], tmp_path)
    assert [each.name for each in merged.parent.iterdir()] == ["huggingface"]
    read = f"""
import json, torch
from transformers import AutoModelForCausalLM
wanted = torch.load({str(tmp_path / "wanted.pt")!r})
for path in ({str(merged)!r}, {str(POLICY)!r}):
    model = AutoModelForCausalLM.from_pretrained(path).float()
    print((model(torch.arange(3, 13)[None]).logits - wanted).abs().max().item())
"""
    apart, of_base = map(float, _run([python, "-c", read], tmp_path).split())
    assert apart < bound < 1 < of_base


def _run(command: list[Any], folder: Path) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout
