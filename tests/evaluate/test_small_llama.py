"""The small Llama, by torch, against Transformers' own, bit for bit; the policies that it is not
for. The kernels: test_policy_kernels.py."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from backends.micro import skills
from orchestrator.errors import CheckpointError
from orchestrator.records import Engine, Sampling

pytestmark = pytest.mark.slow

POLICIES = Path(__file__).parents[2] / "backends" / "micro" / "policies"
ELDER = POLICIES / "elder"


@pytest.fixture(autouse=True)
def without_kernels(stand_in: SimpleNamespace) -> None:
    stand_in.policy_kernels = lambda _: None


@pytest.fixture(scope="module")
def models() -> ModuleType:
    from orchestrator.evaluate import models

    models.torch.set_num_threads(1)
    return models


def loaded(models: ModuleType, path: Path, sampling: Sampling | None) -> Any:
    return models.HarnessPolicy(path, Engine(name="hf"), sampling)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", ["elder", "hazel"])
@pytest.mark.parametrize("shape", ["equal", "padded", "one", "single rows", "odd"])
def test_logits_and_samples_have_transformers_bits(
    models: ModuleType, name: str, shape: str, threads: int
) -> None:
    """Prompts of equal lengths; several, padded; one alone; each once; no multiple of 16 rows."""
    torch = models.torch
    torch.set_num_threads(threads)
    ours = loaded(models, POLICIES / name, Sampling()).model
    theirs = loaded(models, POLICIES / name, None).model
    assert type(ours).__name__ == "SmallLlama"
    assert type(theirs).__name__ == "LlamaForCausalLM"
    numbers = torch.randint(3, len(skills.VOCABULARY), (60, 8), generator=torch.manual_seed(1))
    texts = [row[: 3 + place % 6].tolist() for place, row in enumerate(numbers)]
    each, repeats = {
        "equal": (numbers.tolist(), 8),
        "padded": (texts, 8),
        "one": (texts[:1], 48),
        "single rows": (texts[:48], 1),
        "odd": (texts[:5], 3),
    }[shape]
    rows = [row for row in each for _ in range(repeats)]
    width = max(map(len, rows))
    pads = [width - len(row) for row in rows]
    left = torch.tensor([[skills.PAD] * pad + row for pad, row in zip(pads, rows, strict=True)])
    mask = torch.tensor([[0] * pad + [1] * (width - pad) for pad in pads])
    drawn = []
    for model in (ours, theirs):
        torch.manual_seed(3)
        drawn.append(
            model.generate(
                input_ids=left,
                attention_mask=mask,
                max_new_tokens=7,
                do_sample=True,
                temperature=1.0,
                top_p=1.0,
                top_k=0,
                pad_token_id=skills.PAD,
            )
        )
    assert torch.equal(*drawn)
    assert (drawn[0] == skills.EOS).any(), "some responses ended"
    right, is_token = left.flip(1), mask.flip(1)
    with torch.no_grad():
        logits = [
            model(input_ids=right, attention_mask=is_token).logits for model in (ours, theirs)
        ]
    torch.set_num_threads(1)
    assert torch.equal(*(each[is_token.bool()] for each in logits))


def test_a_stop_that_lm_eval_gives_ends_the_batch(models: ModuleType) -> None:
    torch, policy = models.torch, loaded(models, ELDER, Sampling())
    ids = torch.full((16, 4), 5)
    texts = policy.model.generate(
        ids,
        torch.ones_like(ids),
        pad_token_id=skills.PAD,
        max_length=11,
        stopping_criteria=[lambda texts, _scores: texts.shape[1] == 6],
    )
    assert texts.shape == (16, 6)


@pytest.mark.parametrize("rows", [48, 5])
@pytest.mark.parametrize("length", [1, 6])
def test_logits_in_responses_are_those_of_the_whole_texts(
    models: ModuleType, rows: int, length: int
) -> None:
    torch, model = models.torch, loaded(models, ELDER, Sampling()).model
    ids = torch.randint(
        3, len(skills.VOCABULARY), (rows, 8 + length), generator=torch.manual_seed(1)
    )
    ids[1::3, :8] = ids[0, :8]  # several responses to one prompt
    whole = model(ids, torch.ones_like(ids)).logits
    of_responses = model.logits_in_responses(ids[:, :8], ids[:, 8:])
    assert of_responses.shape == (rows, length, len(skills.VOCABULARY))
    assert torch.allclose(of_responses, whole[:, 7:-1], rtol=1e-5, atol=1e-5)


def test_prompts_are_computed_once_for_a_checkpoint(
    models: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a task with repeats and as a divergence, and anew with the next checkpoint's weights."""
    torch, model = models.torch, loaded(models, ELDER, Sampling()).model
    numbers = torch.randint(3, len(skills.VOCABULARY), (6, 32, 8), generator=torch.manual_seed(1))
    lengths: list[int] = []
    hidden = type(model).hidden

    def counted_hidden(self: Any, ids: Any, *arguments: Any) -> Any:
        lengths.append(ids.shape[1])
        return hidden(self, ids, *arguments)

    monkeypatch.setattr(type(model), "hidden", counted_hidden)

    def sampled() -> list[Any]:
        texts = []
        for prompts in numbers:
            for ids in (prompts, prompts.repeat_interleave(4, 0)):
                torch.manual_seed(3)
                mask = torch.ones_like(ids)
                texts.append(model.generate(ids, mask, pad_token_id=0, max_new_tokens=3))
        return texts

    first = sampled()
    assert lengths.count(8) == len(numbers), "the prompts of a task are those of its divergence"
    weights = model.state_dict()
    model.load_state_dict({name: weight * 2 for name, weight in weights.items()})
    others = sampled()
    assert lengths.count(8) == 2 * len(numbers)
    assert not all(map(torch.equal, first, others)), "the weights are others"
    model.load_state_dict(weights)
    assert all(map(torch.equal, first, sampled()))


def test_equal_rows_of_as_many_batches_as_are_kept_are_known(
    models: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The four tasks and two divergences of a checkpoint are six batches."""
    torch, model = models.torch, loaded(models, ELDER, Sampling()).model
    kept = models.small_llama.BATCHES_KEPT
    batches = [torch.full((16, 4), 3 + number) for number in range(kept)]
    for ids in batches:
        model.kinds_of(ids, torch.ones_like(ids))
    monkeypatch.setattr(torch, "unique", None)  # nothing is searched again
    for ids in batches:
        number, place = model.kinds_of(ids, torch.ones_like(ids))
        assert (number, place.tolist()) == (1, [0] * 16)


@pytest.mark.parametrize(
    "changes",
    [
        {"tie_word_embeddings": True},
        {"num_key_value_heads": 2, "num_attention_heads": 4, "head_dim": 8},
        {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}},
        {"hidden_act": "gelu"},
        {"sliding_window": 8},
    ],
)
def test_another_policy_is_left_to_transformers(
    models: ModuleType, tmp_path: Path, changes: dict[str, Any]
) -> None:
    path = Path(shutil.copytree(ELDER, tmp_path / "other"))
    config = json.loads((path / "config.json").read_text()) | changes
    (path / "config.json").write_text(json.dumps(config))
    assert models.small_llama.load(path) is None


def test_a_cut_policy_is_reported_by_transformers(models: ModuleType, tmp_path: Path) -> None:
    path = Path(shutil.copytree(ELDER, tmp_path / "cut"))
    (path / "model.safetensors").write_bytes(b"cut")
    with pytest.raises(CheckpointError, match="cannot be loaded"):
        models.load(path, sampling=Sampling())


@pytest.mark.parametrize("sampling", [Sampling(temperature=0.5), Sampling(top_p=0.9)])
def test_another_sampling_is_left_to_transformers(models: ModuleType, sampling: Sampling) -> None:
    models._LAST[:] = []
    policy = models.opened(ELDER, Engine(name="hf"), Sampling())
    assert type(policy.model).__name__ == "SmallLlama"
    with pytest.raises(ValueError, match="temperature"):
        policy.model.generate(
            models.torch.full((16, 4), 5), None, pad_token_id=0, max_length=9, temperature=0.5
        )
    policy = models.opened(ELDER, Engine(name="hf"), sampling)
    assert type(policy.model).__name__ == "LlamaForCausalLM"


def test_deferred_imports_are_made_when_they_are_used() -> None:
    """Importing the harness brings none of them; lm-eval's names work afterwards."""
    code = """
import sys
from orchestrator.evaluate.deferred import MODULES, deferred_imports
with deferred_imports():
    from orchestrator.evaluate import harness
assert not set(MODULES) & set(sys.modules), set(MODULES) & set(sys.modules)
assert "sympy" not in sys.modules
from lm_eval.api import task
from lm_eval.loggers import evaluation_tracker
from lm_eval.models import huggingface
assert "pandas" not in sys.modules
rows = task.datasets.Dataset.from_list([{"a": 1}])
import datasets
assert isinstance(rows, datasets.Dataset) and task.datasets.__version__ == datasets.__version__
assert evaluation_tracker.MetadataConfigs.FIELD_NAME == "configs"
assert huggingface.get_max_memory({0: 1}) == {0: 1}
assert huggingface.Accelerator().num_processes == 1
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
