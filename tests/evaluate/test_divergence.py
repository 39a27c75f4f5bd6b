"""Exact divergences from checkpoints, against independent computations."""

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

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
