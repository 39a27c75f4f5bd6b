"""The grammar of claims."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.spec.claims import AxisCondition, Claim, ClaimSide, parse


def test_a_claim_between_two_configurations() -> None:
    claim = parse(
        "eval/in_domain/mean@4[kl=k1.reward] > eval/in_domain/mean@4[kl=k3.loss] "
        "at beta in [0.05, 0.1]"
    )
    assert claim.left == ClaimSide("eval/in_domain/mean@4", (AxisCondition("kl", ("k1.reward",)),))
    assert claim.right == ClaimSide("eval/in_domain/mean@4", (AxisCondition("kl", ("k3.loss",)),))
    assert claim.relation == ">"
    assert claim.at == (AxisCondition("beta", ("0.05", "0.1")),)
    assert claim.studies == ()


def test_conditions_add_up_in_any_order_and_over_lines() -> None:
    claim = parse(
        "eval/math500/mean@32[kl.estimator=k3+, beta in [0.1, 1]] >= train/reward_mean +- 0.01 "
        "\n\tin study onpolicy at model=qwen2.5-7b and seed in [0, 1] in study [both, async10]"
    )
    assert claim.left.where == (
        AxisCondition("kl.estimator", ("k3+",)),
        AxisCondition("beta", ("0.1", "1")),
    )
    assert claim.margin == 0.01
    assert claim.at == (AxisCondition("model", ("qwen2.5-7b",)), AxisCondition("seed", ("0", "1")))
    assert claim.studies == ("onpolicy", "both", "async10")


@pytest.mark.parametrize(
    ("text", "right", "relation", "margin"),
    [
        ("eval/accuracy_in_domain[kl=k1.reward] ~ predicted +- 0.05", "predicted", "~", 0.05),
        ("eval/accuracy_in_domain[kl=k1.reward] ~ 0.9 ± .02", 0.9, "~", 0.02),
        ("collapse[kl=k1.reward] <= 0.1", 0.1, "<=", 0.0),
        ("eval/kl_reverse[kl=k1.reward]>-1e-3", -1e-3, ">", 0.0),
        ("eval/kl_reverse < +2.5", 2.5, "<", 0.0),
    ],
)
def test_a_claim_against_a_number(
    text: str, right: float | str, relation: str, margin: float
) -> None:
    claim = parse(text)
    assert (claim.right, claim.relation, claim.margin) == (right, relation, margin)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "expected a metric .* at character 1, found the end"),
        ("eval/a/b", "expected a relation .* found the end"),
        ("eval/a/b = 2", "expected a relation .* at character 10, found '= 2'"),
        ("eval/a/b ~ 2", r"expected a margin \('\+- 0.02'\)"),
        ("eval/a/b > 2 +- 0.1", "'>' takes no margin"),
        ("eval/a/b ~ 2 +- 0", "a margin is a positive number; got 0"),
        ("eval/a/b ~ 2 +- x", "expected a number after"),
        ("eval/a/b[kl] > 1", "expected '=' or 'in' after the axis 'kl' at character 12"),
        ("eval/a/b[kl=k1.loss > 1", r"expected ',' or '\]'"),
        ("eval/a/b > 1 at beta in 0.1", r"expected a list \('\[0.05, 0.1\]'\) after 'in'"),
        ("eval/a/b > 1 in beta", "expected 'study' after 'in'"),
        (
            "eval/a/b > 1 because",
            "expected 'at AXIS=VALUE', 'at every AXIS', 'in study NAME' or the end",
        ),
        ("eval/a/b[betta=1] > 1", "unknown field 'betta', did you mean 'beta'"),
        ("eval/a/b[kl.estimator=k9] > 1", "kl.estimator is never 'k9'"),
        ("eval/a/b[state=failed] > 1", "a claim cannot ask for 'state'"),
        ("train/reward_men > 1", "did you mean 'train/reward_mean'"),
        ("eval/in_domain > 1", "no metric is called 'eval/in_domain'"),
        ("collapse[kl=none] > 0.1 at equal eval/kl_reverse", "`at equal` is for a claim"),
        ("eval/a/b > 1 at equal nothing", "no metric is called 'nothing'"),
        ("collapse > train/reward_mean", "collapse is a share of runs"),
        ("train/reward_mean > collapse", "collapse is a share of runs"),
        ("collapse[kl=none] ~ predicted +- 0.1", "collapse is a share of runs"),
        ("collapse[kl=none] ~ collapse +- 0.1", "without a margin"),
        ("works > 0.5", "say how many are enough"),
        ("works >= 2", "say how many are enough"),
        ("works[kl=none] ~ 1 +- 0.1", "say how many are enough"),
    ],
)
def test_what_cannot_be_read_is_told(text: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        parse(text)


@given(st.text(max_size=60))
def test_any_text_is_a_claim_or_a_sentence(text: str) -> None:
    try:
        found: object = parse(text)
    except ValueError as error:
        found = str(error)
    assert isinstance(found, Claim) or " " in str(found)
