"""A person's own loss: named by its gradient, told from its mutants, and never named by chance."""

import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from orch.testing import assert_optimises
from orchestrator.errors import LaboratoryError
from orchestrator.exact.own import Findings, calls, examine, examine_here
from orchestrator.exact.own_answer import answer, rows
from tests.backends.environments import cpu_python
from tests.command_line import orch
from tests.exact.own_losses import VALUES as FORMS
from tests.exact.own_losses import Written, known, mutants, others

KNOWN = {each.name: each for each in known()}


def function_of(written: Written) -> Any:
    space: dict[str, Any] = {"torch": torch}
    exec(written.source(), space)  # noqa: S102  (a source of the table)
    function = space[written.name]
    function.__module__ = "own_losses"
    return function


@cache
def findings(written: Written) -> Findings:
    return examine_here(function_of(written))


@pytest.mark.parametrize("name", KNOWN)
def test_a_known_loss_is_named(name: str) -> None:
    found = answer(findings(KNOWN[name]))
    assert found.known
    for part in KNOWN[name].named:
        assert part in found.name


def mutated() -> list[Any]:
    """Every mutant of the table, of which `bootstrap.py test` runs each twelfth."""
    every = [(each.name, what, m) for each in known() for what, m in mutants(each)]
    return [
        pytest.param(o, m, id=f"{o}: {what}", marks=[pytest.mark.thorough] if at % 12 else [])
        for at, (o, what, m) in enumerate(every)
    ]


@pytest.mark.parametrize(("original", "mutant"), mutated())
def test_a_mutant_is_not_the_original(original: str, mutant: Written) -> None:
    """Its answer is another one, or no gradient of it differs on any batch."""
    mine, theirs = findings(KNOWN[original]), findings(mutant)
    gradients = [(mine.gradient(call), theirs.gradient(call)) for call in calls()]
    if all(np.abs(a - b).max() <= mine.tolerance * np.abs(a).max() for a, b in gradients):
        assert answer(theirs).name == answer(mine).name
        return
    one, other = answer(mine), answer(theirs)
    assert (one.name, one.objectives, one.notes) != (other.name, other.objectives, other.notes)


@pytest.mark.parametrize("written", list(others()), ids=lambda each: each.name)
def test_another_loss_is_none_known(written: Written) -> None:
    found = answer(findings(written))
    assert not found.known
    assert found.name.startswith("none known; ")


VALUES = """import numpy as np
import torch


def penalty(logprob, ref_logprob):
    x = ref_logprob - logprob
    return x.exp() - 1 - x


@torch.no_grad()
def k1(log_probs, ref_log_probs, action_mask):
    return (log_probs - ref_log_probs) * action_mask


def rloo(token_level_rewards, response_mask, index):
    rows = token_level_rewards.sum(-1)
    out = torch.zeros_like(rows)
    for group in np.unique(index):
        one = torch.tensor(index == group)
        out[one] = (rows[one] - rows[one].mean()) * one.sum() / (one.sum() - 1)
    return out[:, None] * response_mask, out


def grpo(rewards, num_generations):
    r = rewards.view(-1, num_generations)
    return ((r - r.mean(1, keepdim=True)) / (r.std(1, keepdim=True) + 1e-4)).view(-1)


def shaped(rewards, old_log_probs, ref_log_probs, response_mask, kl_coef):
    return rewards - kl_coef * (old_log_probs - ref_log_probs) * response_mask


def returned(token_level_rewards, old_log_probs, ref_log_probs, response_mask, beta=0.2):
    kl = old_log_probs - ref_log_probs
    each = (token_level_rewards - beta * kl) * response_mask
    return each.flip(1).cumsum(1).flip(1) * response_mask


def detached(trainer_logprobs, inference_logprobs, teacher_logprobs, advantages, loss_mask):
    a = advantages - 0.1 * (trainer_logprobs.detach() - teacher_logprobs)
    r = torch.exp(trainer_logprobs - inference_logprobs)
    return -(r * a)[loss_mask.bool()].sum() / loss_mask.sum()


def one_sided(logps, old_logps, advantages, mask):
    return -(torch.relu(torch.exp(logps - old_logps) * advantages) * mask).sum() / mask.sum()


def cubed(rewards):
    return rewards**3


class Loss(torch.nn.Module):
    def __init__(self, clip=0.2):
        super().__init__()
        self.clip = clip

    def forward(self, lp, olp, a, action_mask):
        r = (lp - olp).exp()
        each = -torch.min(r * a, r.clamp(1 - self.clip, 1 + self.clip) * a)
        return (each * action_mask).sum() / action_mask.sum()


def of_a_batch(inputs):
    r = torch.exp(inputs["per_token_logps"] - inputs["old_per_token_logps"])
    a, m = inputs["advantages"].unsqueeze(1), inputs["completion_mask"]
    return (-torch.min(r * a, r.clamp(0.8, 1.2) * a) * m).sum() / m.sum()


def configured(log_prob, old_log_prob, advantages, response_mask, loss_agg_mode, config):
    r = torch.exp(log_prob - old_log_prob)
    e = config.clip_ratio_low
    each = -torch.min(r * advantages, r.clamp(1 - e, 1 + config["clip_ratio_high"]) * advantages)
    return (each * response_mask).sum() / response_mask.sum(), {"loss": 0.0}


def unread(log_prob, something):
    return log_prob.sum()


def lacking(log_prob, config):
    return config.strength * log_prob.sum()


def broken(log_prob):
    raise ValueError("no such thing")
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("own") / "values.py"
    path.write_text(VALUES)
    return path


def test_advantages_rewards_penalties_classes_and_batches_are_named(file: Path) -> None:
    named = {
        "penalty": "β 1 × k3.loss",
        "k1": "the value of k1",
        "rloo": "the reward less the mean of the others (rloo)",
        "grpo": "the group's mean and deviation (grpo; of n-1, 0.0001 added)",
        "shaped": "the reward -0.1 × k1 of the policy that sampled by token",
        "of_a_batch": "ppo (low 0.2, high 0.2), mean over tokens",
        "configured": "ppo (low 0.2, high 0.2), mean over tokens",
        "returned": "the rewards to go -0.2 × k1 of the policy that sampled to go",
        "detached": "ppo without a clip, mean over tokens + β 0.1 × sg_rho_k2.loss = rho_k3.loss = "
        "k1_token.reward, of the policy as it is, mean over tokens",
        "one_sided": "none known",
        "cubed": "none known",
    }
    for found, text in zip(examine([f"{file}:{n}" for n in named]), named.values(), strict=True):
        assert answer(found).name.startswith(text)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("unread", "its parameter something has no name that is known: --call something=NAME"),
        ("lacking", "it reads 'strength' of its configuration"),
        ("broken", "it fails on a batch of the laboratory: ValueError: no such thing"),
    ],
)
def test_what_cannot_be_run_is_a_sentence(name: str, says: str) -> None:
    space: dict[str, Any] = {"__name__": "values"}
    exec(VALUES, space)  # noqa: S102  (the source above)
    with pytest.raises(LaboratoryError, match=name) as raised:
        examine_here(space[name])
    assert says in str(raised.value)


def test_a_function_that_a_file_lacks_is_named_with_those_that_it_has(file: Path) -> None:
    with pytest.raises(LaboratoryError, match="has no missing; it has penalty, k1"):
        examine([f"{file}:missing"])


def test_the_command_runs_a_function_and_says_so(file: Path) -> None:
    result = orch(
        file.parent,
        *("explain", "--of", f"{file}:Loss", "--call", "lp=log_prob", "--call", "olp=old_log_prob"),
        *("--call", "a=advantages", "--call", "clip=0.1"),
    )
    assert "ppo (low 0.1, high 0.1), mean over tokens" in result.stdout
    assert "in a process of its own" in result.stderr
    assert "it takes no reference policy" in result.stdout


def test_an_interpreter_without_torch_is_named_with_the_extra(tmp_path: Path, file: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)
    with pytest.raises(LaboratoryError, match="install the extra `micro`"):
        examine([f"{file}:k1"], python=str(tmp_path / "bare/bin/python"))


def test_notes_say_what_padding_and_a_missing_reference_do() -> None:
    def wrong(log_prob, old_log_prob, ref_log_prob, advantages, response_mask, beta):  # type: ignore[no-untyped-def]  # as a person writes it
        ratio = torch.exp(log_prob - old_log_prob)
        return -(ratio * advantages).mean()

    text = "\n".join(line for _, line in rows(answer(examine_here(wrong))))
    assert "the reference policy enters no gradient" in text
    assert "β enters no gradient" in text
    assert "a padded token has a gradient" in text


def test_assert_optimises_passes_and_says_what_a_loss_optimises_instead() -> None:
    k1, k3 = (
        function_of(Written("loss", (), "-r * a", FORMS[form], "reward", x="olp - ref"))
        for form in ("k1", "k3")
    )
    assert_optimises(k1, "reverse_kl", unbiased=True)
    assert_optimises(k1, "k1.reward")
    with pytest.raises(AssertionError, match=r"unbiased reverse_kl") as raised:
        assert_optimises(k3, "reverse_kl", unbiased=True)
    assert "k3.reward" in str(raised.value)
    assert "none known: nearest to" in str(raised.value)


CORE = "verl.trainer.ppo.core_algos:compute_policy_loss_"
VERL = {
    "vanilla": "ppo (low 0.2, high 0.2, dual 3), mean over tokens",
    "dppo_tv": "dppo_tv (low 0.2, high 0.2, dual 3), mean over tokens",
    "dppo_kl": "dppo_kl (low 0.2, high 0.2, dual 3), mean over tokens",
    "gspo": "gspo (low 0.2, high 0.2), mean over responses of their means",
    "sapo": "sapo, mean over responses of their means",
    "gpg": "reinforce, mean over tokens",
    "geo_mean": "gmpo (low 0.2, high 0.2), mean over responses of their means",
    "dro": "reinforce, mean over tokens + β 0.1 × k2.loss to the policy that sampled",
    "cispo": "cispo (low 0.2, high 0.2), mean over tokens",
}
"""verl 0.9.1's registered losses with its defaults -> what each is."""


@pytest.mark.real
def test_losses_of_verl_are_named_as_they_are() -> None:
    """Of a library in an environment of its own, with objects of its configuration."""
    targets = [f"{CORE}{name}" for name in VERL]
    found = examine(targets, None, str(cpu_python("verl", "0.9.1")))
    for each, text in zip(found, VERL.values(), strict=True):
        assert answer(each).name.startswith(text)
