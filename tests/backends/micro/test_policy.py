"""The policy against Hugging Face's, packing against plain sequences, sampling against chances;
its tasks, and how base policies are pretrained on them."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from backends.micro import huggingface, rollout, skills
from backends.micro.policy import chain, one_quiet_core, weights
from backends.micro.problem_sets import encode, held_out_problems, problems
from backends.micro.shipped import POLICIES, names
from backends.micro.skills import EOS, PROMPT_TOKENS, answer, text
from docs.tools import plain_policy, pretrain
from docs.tools.plain_policy import forward, initial
from orchestrator.errors import CheckpointError

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def flat() -> Tensor:
    one_quiet_core()
    return huggingface.read(POLICIES / "elder")


@pytest.fixture(scope="module")
def prompts() -> Tensor:
    return torch.from_numpy(encode("sort", held_out_problems(6))[0])


def sampled(flat: Tensor, prompts: Tensor, size: int = 3) -> rollout.Rollouts:
    draws = torch.from_numpy(np.random.default_rng(0).random((len(prompts), size, 7), np.float32))
    return plain_policy.sample(weights(flat), prompts, draws, 1.0, 1.0)


def test_logits_are_those_of_hugging_faces_llama(flat: Tensor, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    folder = tmp_path / "a 'b' é"
    huggingface.write(folder, flat)
    theirs = AutoModelForCausalLM.from_pretrained(folder)
    tokens = torch.randint(0, 18, (20, 15), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        ours = forward(weights(flat), tokens, chain(15, 0, CPU))
        assert (theirs(tokens).logits - ours).abs().max() < 1e-4 < ours.abs().max()


def test_the_tokenizer_gives_our_tokens_and_takes_them_back(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    huggingface.write(tmp_path, initial(0))
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    digits = held_out_problems(5)
    for skill in ("sort", "reverse", "copy", "increment"):
        ours, answers = encode(skill, digits)
        texts = [text(skill, row) for row in digits.tolist()]
        assert tokenizer(texts).input_ids == ours.tolist()
        assert tokenizer.batch_decode(ours, skip_special_tokens=True) == texts
        assert tokenizer.decode(answers[0], skip_special_tokens=True).isdigit()
    assert (tokenizer.pad_token_id, tokenizer.eos_token_id) == (0, EOS)


def test_cut_missing_and_foreign_weights_are_told_in_a_sentence(
    flat: Tensor, tmp_path: Path
) -> None:
    huggingface.write(tmp_path, flat)
    path = tmp_path / "model.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CheckpointError, match="cut in half; restore it"):
        huggingface.read(tmp_path)
    with pytest.raises(CheckpointError, match="missing"):
        huggingface.read(tmp_path / "nowhere")
    from safetensors.torch import save

    path.write_bytes(save({"model.embed_tokens.weight": torch.zeros(3, 3)}))
    with pytest.raises(CheckpointError, match="not a policy of the embedded trainer"):
        huggingface.read(tmp_path)


@pytest.mark.parametrize("name", names())
def test_shipped_policies_have_moderate_skill(name: str) -> None:
    from backends.micro.batched import folded
    from backends.micro.evaluation import accuracies
    from backends.micro.shipped import manifest

    about = manifest(name)
    measured = accuracies(folded(huggingface.read(POLICIES / name)))
    for skill, accuracy in measured.items():
        assert accuracy == pytest.approx(about.accuracy[skill], abs=2e-5)
        assert accuracy == pytest.approx(np.mean(about.chances[skill]), abs=2e-5)
        assert 0.2 < accuracy < 0.85
    assert sum(p.stat().st_size for p in (POLICIES / name).iterdir()) < 220_000


def test_packing_a_group_changes_no_number(flat: Tensor, prompts: Tensor) -> None:
    batch = sampled(flat, prompts)
    packed = plain_policy.score(weights(flat), prompts, batch.tokens, batch.mask)
    for group in range(len(prompts)):
        for member in range(3):
            line = torch.cat([prompts[group], batch.tokens[group, member]])[None]
            at = chain(line.shape[1] - 1, PROMPT_TOKENS - 1, CPU)
            logps = forward(weights(flat), line[:, :-1], at).log_softmax(-1)
            alone = logps[0].gather(-1, batch.tokens[group, member][:, None])[:, 0]
            expected = alone * batch.mask[group, member]
            torch.testing.assert_close(packed.logp[group, member], expected, atol=2e-5, rtol=0)


@pytest.mark.parametrize(("temperature", "top_p"), [(1.0, 1.0), (1.5, 1.0), (1.0, 0.6), (3.0, 0.5)])
def test_tokens_are_drawn_with_their_exact_chances(
    flat: Tensor, prompts: Tensor, temperature: float, top_p: float
) -> None:
    count = 20_000
    draws = torch.from_numpy(np.random.default_rng(2).random((1, count, 1), np.float32))
    batch = plain_policy.sample(weights(flat), prompts[:1], draws, temperature, top_p)
    seen = torch.bincount(batch.tokens.flatten(), minlength=18).double() / count
    logits = forward(weights(flat), prompts[:1], chain(PROMPT_TOKENS, 7, CPU))[0, 0].double()
    chances = (logits / temperature).softmax(-1)
    if top_p < 1:
        order = chances.argsort(descending=True)
        kept = order[: int((chances[order].cumsum(0) < top_p).sum()) + 1]
        chances = torch.zeros_like(chances).index_put((kept,), chances[kept])
        chances /= chances.sum()
    spread = (chances * (1 - chances) / count).sqrt()
    assert ((seen - chances).abs() <= 4.5 * spread + 1e-6).all()


def test_answers_by_hand() -> None:
    asked = [4, 1, 9, 7, 3]
    assert answer("sort", asked) == [1, 3, 4, 7, 9]
    assert answer("reverse", asked) == [3, 7, 9, 1, 4]
    assert answer("copy", asked) == asked
    assert answer("increment", asked) == [5, 2, 0, 8, 4]


def test_training_and_evaluation_share_no_problem() -> None:
    rng = np.random.default_rng(0)
    powers = 10 ** np.arange(4, -1, -1)
    trained = set((problems(rng, skills.NUM_TRAIN_PROBLEMS, held_out=False) @ powers).tolist())
    held_out = set((held_out_problems(10_006) @ powers).tolist())
    assert len(trained) + len(held_out) == 100_000
    assert not trained & held_out
    assert (held_out_problems(8) == held_out_problems(20)[:8]).all()


def test_pretraining_is_deterministic_and_learns() -> None:
    one_quiet_core()
    recipe = pretrain.RECIPES["elder"].model_copy(update={"num_steps": 12})
    one, two = pretrain.pretrain(recipe), pretrain.pretrain(recipe)
    assert torch.equal(one, two)
    measured = pretrain.measure("elder", recipe, one)
    untrained = pretrain.measure("elder", recipe, pretrain.initial(0))
    assert sum(map(sum, measured.chances.values())) > 2 * sum(map(sum, untrained.chances.values()))
