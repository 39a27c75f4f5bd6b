"""Other people's KL code, named by its exact gradient."""

from typing import Any

import numpy as np
import pytest
import torch

from orchestrator.errors import LaboratoryError
from orchestrator.estimators import TABLE, names
from orchestrator.exact.laboratory import LabSetting, ToyPolicy, exact
from orchestrator.exact.objectives import generic_settings
from orchestrator.kl.configuration import KlConfiguration
from orchestrator.kl.estimators import token_kl
from orchestrator.kl.table import stored_rows
from tests.kl.probe import NUM_TOKENS, probe


def ours(estimator: str) -> Any:
    return lambda logp, ref, old, _mask: token_kl(estimator, logp, ref, old)


@pytest.mark.parametrize("placement", ["loss", "reward"])
@pytest.mark.parametrize("on_policy", [True, False])
def test_a_probe_of_our_own_estimators_gives_their_verdicts(
    placement: str, on_policy: bool
) -> None:
    """Enumeration and autograd, against the dynamic programme that made the table."""
    rows = [
        row
        for row in stored_rows()
        if (row.placement, row.on_policy) == (placement, on_policy)
        and (row.ratio, row.reward_kl_of) == ("token", "policy")
        and TABLE[row.estimator].is_of_a_token
    ]
    assert len(rows) == len([name for name in names() if TABLE[name].is_of_a_token])
    settings = generic_settings(on_policy=on_policy, num_tokens=NUM_TOKENS)
    for row in rows:
        found = probe(ours(row.estimator), kind=placement, on_policy=on_policy)
        assert found.objective == row.objective
        assert found.naming.terms == row.terms
        configuration = KlConfiguration(row.estimator, placement)
        means = np.stack([exact(each, [configuration]).mean[0] for each in settings])
        np.testing.assert_allclose(found.gradient, means, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize(
    ("credit", "words"),
    [
        ("sequence", "sequence-level reverse KL"),
        ("to_go", "sequence-level reverse KL"),
        ("token", "token-level reverse KL"),
    ],
)
def test_credit_decides_what_k1_in_reward_is(credit: Any, words: str) -> None:
    """Return-to-go drops only terms of zero mean; a token-local reward loses the future."""
    for arrays in ("torch", "numpy"):
        found = probe(ours("k1"), kind="reward", credit=credit, arrays=arrays)
        assert found.naming.words == words


def test_a_sequence_ratio_makes_k1_in_reward_exact_off_policy() -> None:
    found = probe(ours("k1"), kind="reward", on_policy=False, ratio="sequence")
    assert found.objective == "sequence_reverse_kl"
    assert probe(ours("k1"), kind="reward", on_policy=False).objective == "surrogate"


def test_a_mean_over_tokens_is_found_with_its_scale() -> None:
    """One number a call, respecting the mask: 1 / T of the sum."""

    def mean(logp: Any, ref: Any, _old: Any, mask: Any) -> Any:
        return (token_kl("k3", logp, ref) * mask).sum() / mask.sum()

    for arrays in ("torch", "numpy"):
        found = probe(mean, kind="loss", arrays=arrays)
        assert found.naming.words == "0.25 × (token-level forward KL)"


def test_a_mean_that_ignores_the_mask_is_no_objective() -> None:
    found = probe(lambda q, p, _o, _m: token_kl("k3", q, p).mean(), kind="loss")
    assert found.objective == "unknown"
    assert min(found.distances.values()) > 0.01


def test_a_known_defect_is_told_apart_from_the_right_thing() -> None:
    """verl's k3 stops its gradient where the estimate exceeds 10; only far away does it show."""
    from orchestrator.kl.estimators import Clamp

    def clamped(q: Any, p: Any, _old: Any, _mask: Any) -> Any:
        return token_kl("k3", q, p, clamp=Clamp(log_ratio=20.0, value=10.0))

    assert probe(clamped, kind="loss").objective == "token_forward_kl"
    far = [
        LabSetting(ToyPolicy(3.0, 0.1), ToyPolicy(-3.0, 0.2), 4),
        LabSetting(ToyPolicy(-3.0, 0.0), ToyPolicy(3.0, 0.1), 4),
    ]
    found = probe(clamped, kind="loss", settings=far)
    assert found.objective == "unknown"
    assert found.distances["token_forward_kl"] > 0.1


def test_a_numpy_loss_is_differentiated_in_the_policy_alone() -> None:
    for on_policy in (True, False):
        found = probe(ours("k2"), kind="loss", arrays="numpy", on_policy=on_policy)
        torches = probe(ours("k2"), kind="loss", on_policy=on_policy)
        assert found.naming == torches.naming
        np.testing.assert_allclose(found.gradient, torches.gradient, rtol=1e-9)


def test_reinforce_written_as_a_loss() -> None:
    """A whole policy loss may be probed: sg(KL of the sequence) times log pi."""

    def loss(logp: Any, ref: Any, _old: Any, mask: Any) -> Any:
        kl = ((logp - ref) * mask).sum(1).detach()
        return kl * (logp * mask).sum(1)

    assert probe(loss, kind="loss").objective == "sequence_reverse_kl"


@pytest.mark.parametrize(
    ("term", "kind", "words"),
    [
        (lambda q, p, o, m: (q - p)[:, :2], "loss", r"shape \[16, 2\].*must return \[16, 5\]"),
        (lambda q, p, o, m: (q - p).T, "loss", r"shape \[5, 16\]"),
        (lambda q, p, o, m: (q - p) * torch.nan, "loss", "value is NaN at 64 of 64 places"),
        (lambda q, p, o, m: (q - p) / 0, "reward", "value is (NaN|infinite)"),
        (lambda q, p, o, m: (q - p).detach(), "loss", "no gradient with respect to logp"),
        (lambda q, p, o, m: p * p, "loss", "no gradient with respect to logp"),
        (lambda q, p, o, m: None, "loss", "must return a torch tensor.*got NoneType"),
        (lambda q, p, o, m: q.detach().numpy(), "loss", "must return a torch tensor.*got ndarray"),
        (lambda q, p, o, m: torch.sqrt(q - q), "loss", "gradient is (NaN|infinite)"),
    ],
)
def test_a_bad_probe_is_told_what_is_wrong(term: Any, kind: Any, words: str) -> None:
    with pytest.raises(LaboratoryError, match=words):
        probe(term, kind=kind)


def test_credit_needs_a_kl_per_token() -> None:
    with pytest.raises(LaboratoryError, match="'to_go' needs a KL per token"):
        probe(lambda q, p, o, m: ((q - p) * m).sum(1), kind="reward", credit="to_go")


def test_where_policy_and_reference_are_one_nothing_pulls() -> None:
    same = [LabSetting(ToyPolicy(0.3, 0.1), ToyPolicy(0.3, 0.1), 3)]
    found = probe(ours("k2"), kind="loss", settings=same)
    assert found.objective == "zero"
    assert found.distances["zero"] == found.distances["sequence_reverse_kl"] == 0


def test_settings_on_and_off_policy_may_be_mixed() -> None:
    mixed = [generic_settings(on_policy=on)[0] for on in (True, False)]
    assert probe(ours("k2"), kind="loss", settings=mixed).objective == "unknown"
    assert probe(ours("rho_k3"), kind="loss", settings=mixed[:1]).objective == "token_reverse_kl"
