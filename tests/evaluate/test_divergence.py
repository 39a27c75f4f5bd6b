"""Exact divergences from checkpoints, against independent computations."""

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from orchestrator.errors import CheckpointError
from orchestrator.evaluate import UnscoredError, evaluate, score_index
from orchestrator.records import DivergenceRequest, DivergenceTask, EvaluationSpec, Record
from orchestrator.rundir import RunFolder

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("in_process")]

POLICIES = Path(__file__).parents[2] / "backends" / "micro" / "policies"
Train = Callable[..., Record]
AskFor = Callable[..., EvaluationSpec]


@pytest.fixture(scope="module")
def divergence() -> ModuleType:
    from orchestrator.evaluate import divergence

    divergence.torch.set_num_threads(1)
    return divergence


@pytest.fixture(scope="module")
def policies(divergence: ModuleType) -> tuple[Any, Any]:
    from orchestrator.evaluate.models import HarnessPolicy

    return HarnessPolicy(POLICIES / "elder"), HarnessPolicy(POLICIES / "hazel")


def prompts(count: int) -> list[str]:
    from backends.micro import problem_sets, skills

    return [
        skills.text("sort", digits) for digits in problem_sets.held_out_problems(count).tolist()
    ]


def by_hand(model: Any, other: Any, response: Any) -> tuple[float, float]:
    """The same sums in float64 with NumPy, one sequence at a time and one position at a time."""
    import torch

    with torch.no_grad():
        whole = torch.tensor([response.prompt + response.tokens])
        p = np.asarray(model(whole).logits[0].double())
        q = np.asarray(other(whole).logits[0].double())
    kl = entropy = 0.0
    for t in range(len(response.prompt) - 1, len(response.prompt) + len(response.tokens) - 1):
        ours = np.exp(p[t] - p[t].max())
        theirs = np.exp(q[t] - q[t].max())
        ours, theirs = ours / ours.sum(), theirs / theirs.sum()
        kl += float((ours * (np.log(ours) - np.log(theirs))).sum())
        entropy -= float((ours * np.log(ours)).sum())
    return kl, entropy


def test_sums_are_those_of_an_independent_computation(
    divergence: ModuleType, policies: tuple[Any, Any]
) -> None:
    ours, theirs = policies
    texts = [text[: len(text) - cut] for cut, text in enumerate(prompts(6))]  # of other lengths
    responses = divergence.sample(ours, texts, 7, seed=3)
    assert len({len(r.prompt) for r in responses}) == 6
    told = divergence.sums(ours.model, theirs.model, responses)
    for one, response in zip(told, responses, strict=True):
        kl, entropy = by_hand(ours.model, theirs.model, response)
        assert one.kl == pytest.approx(kl, rel=1e-4, abs=1e-5)
        assert one.entropy == pytest.approx(entropy, rel=1e-4, abs=1e-5)


def test_how_sequences_are_batched_changes_nothing(
    divergence: ModuleType, policies: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = policies
    responses = divergence.sample(ours, prompts(9), 7, seed=0)
    together = divergence.sums(ours.model, theirs.model, responses)
    monkeypatch.setattr(divergence, "LOGITS_AT_ONCE", 1)
    alone = divergence.sums(ours.model, theirs.model, responses)
    assert np.allclose(together, alone, rtol=1e-4, atol=1e-5)


def test_kept_probabilities_of_the_reference_change_no_bit(
    divergence: ModuleType, policies: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another policy is compared with the same reference; two batches."""
    reference, policy = policies
    monkeypatch.setattr(divergence, "SEQUENCES_AT_ONCE", 5)
    responses = divergence.sample(reference, prompts(9), 7, seed=0)
    kept: list[Any] = []
    divergence.sums(reference.model, reference.model, responses, kept)
    assert len(kept) == 2
    plain = divergence.sums(reference.model, policy.model, responses)
    monkeypatch.setattr(reference.model, "forward", None)  # not called again
    assert divergence.sums(reference.model, policy.model, responses, kept) == plain


def test_large_probabilities_are_not_kept(
    divergence: ModuleType, policies: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    reference, policy = policies
    responses = divergence.sample(reference, prompts(9), 7, seed=0)
    plain = divergence.sums(reference.model, policy.model, responses)
    monkeypatch.setattr(divergence, "LOGITS_KEPT", 1)
    kept: list[Any] = []
    assert divergence.sums(reference.model, policy.model, responses, kept) == plain
    assert not kept


def test_a_policy_does_not_diverge_from_itself(
    divergence: ModuleType, policies: tuple[Any, Any]
) -> None:
    ours, _ = policies
    told = divergence.sums(ours.model, ours.model, divergence.sample(ours, prompts(8), 7, seed=1))
    assert all(abs(one.kl) < 1e-6 < one.entropy for one in told)


def test_a_response_ends_with_its_end(divergence: ModuleType, policies: tuple[Any, Any]) -> None:
    from backends.micro.skills import EOS

    for response in divergence.sample(policies[0], prompts(32), 7, seed=2):
        assert EOS not in response.tokens[:-1]
        assert response.tokens[-1] == EOS or len(response.tokens) == 7


def test_the_expectation_is_what_the_embedded_trainer_computes(
    divergence: ModuleType, policies: tuple[Any, Any]
) -> None:
    """Its own model code, its own sampling; only the states are sampled, so within the errors."""
    from backends.micro.batched import folded
    from backends.micro.evaluation import Divergence, divergence_metrics
    from backends.micro.huggingface import read

    elder, hazel = (read(POLICIES / name) for name in ("elder", "hazel"))
    (theirs,) = divergence_metrics([Divergence(hazel, "sort", 7)], folded(elder[None]))
    ours, reference = policies
    texts = prompts(128)
    mine = divergence.sample(ours, texts, 7, seed=5)
    others = divergence.sample(reference, texts, 7, seed=6)
    rows = [
        {
            "kl_reverse": a.kl,
            "entropy": a.entropy,
            "tokens": len(r.tokens),
            "kl_forward": b.kl,
            "reference_tokens": len(s.tokens),
        }
        for r, a, s, b in zip(
            mine,
            divergence.sums(ours.model, reference.model, mine),
            others,
            divergence.sums(reference.model, ours.model, others),
            strict=True,
        )
    ]
    told = divergence.means(rows)
    for name in ("kl_reverse", "kl_forward", "entropy"):
        error = 5 * 2**0.5 * told[name].stderr
        assert abs(told[name].value - theirs[f"eval/{name}"]) < error
    assert told["kl_reverse"].value == pytest.approx(
        told["kl_reverse_per_token"].value * np.mean([row["tokens"] for row in rows])
    )


def test_another_vocabulary_is_told(divergence: ModuleType, policies: tuple[Any, Any]) -> None:
    other = SimpleNamespace(config=SimpleNamespace(vocab_size=151_936))
    with pytest.raises(CheckpointError, match="vocabularies of"):
        divergence.sums(policies[0].model, other, [])


def test_divergences_are_scores_beside_the_others(
    folder: RunFolder, train: Train, ask: AskFor, stand_in: SimpleNamespace
) -> None:
    """Of every checkpoint, against the base policy, made once."""
    tasks = tuple(
        DivergenceTask(name=f"micro_{skill}", domain=domain)
        for skill, domain in (("sort", "in"), ("copy", "out"))
    )
    asked = ask(
        divergence=DivergenceRequest(tasks=tasks, max_items=24),
        checkpoints="all",
        tasks=ask().tasks[:1],
    )
    record = train(policy="hazel", steps=(50, 100))
    scores = evaluate([record], asked, folder, workers=1)
    told = [(s.step, s.task, s.metric) for s in scores if "@" not in s.metric]
    assert len(told) == 2 * 2 * 6
    assert (50, "micro_copy", "kl_forward") in told
    values = {(s.step, s.task, s.metric): s.value for s in scores}
    assert values[50, "micro_sort", "kl_forward"] == values[100, "micro_sort", "kl_forward"] > 0.5
    one = next(s for s in scores if s.metric == "kl_reverse")
    rows = [json.loads(line) for line in (record.directory / one.items_path).open()]
    assert one.value == pytest.approx(np.mean([row["kl_reverse"] for row in rows]))
    assert one.num_items == len(rows) == 24
    found = score_index([record.cell], asked, folder)
    assert not found.faults
    assert {s.metric for s in found.scores if s.task == "in_domain"} == {
        "mean@4",
        "pass@4",
        "maj@4",
        "distinct@4",
    }


def test_a_policy_of_nan_is_told_and_never_scored(
    folder: RunFolder, train: Train, ask: AskFor
) -> None:
    from safetensors.numpy import load_file, save_file

    record = train()
    path = record.checkpoints[0].path / "model.safetensors"
    tensors = load_file(path)
    tensors["lm_head.weight"] = tensors["lm_head.weight"] * np.float32("nan")
    save_file(tensors, path, {"format": "pt"})
    with pytest.raises(UnscoredError, match="weights that are not finite: its run diverged"):
        evaluate([record], ask(tasks=ask().tasks[:1]), folder, workers=1)
    assert not list(record.directory.glob("eval/*"))


def test_a_base_model_that_is_not_here_is_told(
    folder: RunFolder, train: Train, ask: AskFor
) -> None:
    record = train()
    own = record.cell.settings.model.model_copy(update={"path": "Qwen/Qwen2.5-7B-of-nobody"})
    settings = record.cell.settings.model_copy(update={"model": own})
    cell = record.cell.model_copy(update={"settings": settings})
    tasks = (DivergenceTask(name="micro_sort", domain="in"),)
    asked = ask(
        divergence=DivergenceRequest(tasks=tasks), tasks=ask().tasks[:1], repeats=1, max_items=2
    )
    with pytest.raises(UnscoredError, match=r"hf download Qwen/Qwen2\.5-7B-of-nobody") as caught:
        evaluate([Record(cell, "succeeded", checkpoints=record.checkpoints)], asked, folder)
    assert caught.value.scores  # without its reference policy a policy is scored all the same
