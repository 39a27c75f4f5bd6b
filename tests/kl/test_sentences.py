"""Every sentence of `orch explain`, under every option: none contradicts a number beside it."""

import re
from collections.abc import Iterator
from itertools import product
from typing import Any, get_args

import pytest

from orchestrator.errors import LaboratoryError
from orchestrator.estimators import names
from orchestrator.kl import table
from orchestrator.kl.table import Case, judged
from orchestrator.kl.verdicts import (
    MOST,
    GradientVerdict,
    percent,
    sentences,
    summary_row,
    verdict,
)
from orchestrator.settings import (
    AdvantageEstimator,
    Clip,
    EngineCorrection,
    Kl,
    Placement,
    RatioLevel,
)

TIS = EngineCorrection(kind="tis_token", most=2.0)


def every_option(estimator: str) -> Iterator[tuple[Kl, dict[str, Any]]]:
    """Yield a term and the options of `verdict`, for all that `orch explain` takes."""
    for placement, on_policy, advantage, group, ratio, of, correction in product(
        get_args(Placement),
        (True, False),
        get_args(AdvantageEstimator),
        (None, 2, 8),
        get_args(RatioLevel),
        ("rollout", "policy"),
        (None, TIS),
    ):
        case = Case(on_policy, ratio, of, advantage, group)
        try:
            judged(estimator, placement, case)
        except LaboratoryError:
            continue
        kl = Kl(estimator=estimator, placement=placement, beta=1.0)
        yield kl, case._asdict() | {"correction": correction}


def percents(text: str) -> set[str]:
    return set(re.findall(r"-?\d+(?:\.\d+)?%", text))


def contradictions(kl: Kl, how: dict[str, Any], said: GradientVerdict) -> list[str]:
    """Return each number or word of a verdict that another of its parts denies."""
    case = Case(**{name: how[name] for name in Case._fields})
    term = judged(kl.estimator, kl.placement, case)
    row, headline = term.row, said.summary.partition(". Paper")[0]
    numbers = {percent(getattr(row, each)) for each in ("bias_near", "bias_far")}
    numbers |= {percent(getattr(row, each)) for each in ("pull_near", "pull_far")}
    calls_unbiased = "unbiased" in headline
    faults = {
        "unbiased, and a bias is printed": calls_unbiased and (said.bias.near or said.bias.far),
        "unbiased, and scaled for each prompt": calls_unbiased and term.by_prompt,
        "unbiased, and the bias is not": calls_unbiased and "nbiased" not in said.bias.text,
        "no bias, and the headline has one": (said.bias.near, said.bias.far) == (0, 0)
        and not calls_unbiased,
        "the factor of the group's mean is not in the headline": case.kept != 1
        and not row.is_noise
        and not term.by_prompt
        and not any(word in headline for word in ("1 - 1/", "β counts ×", "divided by")),
        "a name without its factor": case.advantage == "grpo"
        and not row.is_noise
        and "group's deviation" not in headline,
        "a number of the headline is not below": not percents(headline) <= percents(said.bias.text),
        "a number of the bias is not the row's": not percents(said.bias.text) <= numbers,
        "by prompt, and a number": term.by_prompt != (said.bias.near is None),
        "pulls as the true KL, and does not": "Pulls as the true KL" in said.plain
        and not row.is_unbiased,
        "one strength, and each prompt has its own": term.by_prompt
        and not row.is_noise
        and "each prompt's own" not in said.plain,
        "no pull, and a pull": said.plain.startswith("Does not pull") != row.is_noise,
        "advised to itself": row.label in said.advice.use,
        "the table's row says another thing": summary_row(_as_data(kl, how, said, term))[4:6]
        != _cells(said),
    }
    return [fault for fault, is_so in faults.items() if is_so] + [
        *_of_signs(said, term),
        *_of_advice(said, term),
    ]


def _as_data(kl: Kl, how: dict[str, Any], said: GradientVerdict, term: Any) -> dict[str, Any]:
    return {
        "estimator": kl.estimator,
        "placement": kl.placement,
        "on_policy": how["on_policy"],
        "gradient_of": term.words,
        "bias": said.bias._asdict(),
        "noise": said.noise,
        "paper": {"behaviour": said.paper.behaviour, "of": said.paper.of},
    }


def _cells(said: GradientVerdict) -> tuple[str, ...]:
    return tuple(
        "by prompt" if each is None else percent(each) for each in (said.bias.near, said.bias.far)
    )


RULES = {
    "it pulls towards it": lambda pull: pull > 0,
    "it pushes away from it": lambda pull: pull < 0,
    "it does not pull": lambda pull: abs(pull) < 0.15,
}


def _of_signs(said: GradientVerdict, term: Any) -> Iterator[str]:
    """Yield signs that are stated without most models, or against the laboratory's number."""
    shares = table.signs(term.row)
    if "random models" not in said.plain:
        return
    assert shares is not None
    assert not term.is_mixed
    near, _, far = said.plain.partition("random models)")
    parts = {"near": near, "far": near + far if "too" in far else far}
    for at, text in parts.items():
        for words, holds in RULES.items():
            if words not in text:
                continue
            if max(shares[at][each] for each in ("attracts", "repels", "neither")) < MOST:
                yield f"{words} {at}, which few models show"
            if not holds(getattr(term.row, f"pull_{at}")):
                yield f"{words} {at}, and in the laboratory it does not"
    stated = {percent(each) for at in shares.values() for each in at.values()}
    lab = {percent(term.row.pull_near), percent(term.row.pull_far)}
    if not percents(said.plain) <= stated | lab:
        yield "a share that is not the ensemble's"


def _of_advice(said: GradientVerdict, term: Any) -> Iterator[str]:
    forms = {each.row.label: each for each, _ in table.advised(term.case)}
    if any(label not in forms for label in said.advice.use):
        yield "advises what the table does not"
    elif not term.by_prompt and said.advice.use:
        best = forms[said.advice.use[0]]
        if best.order >= term.order:
            yield "advises what is worse by its own numbers"
        own = term.case._replace(reward_kl_of="policy")
        measures = [best.row, term.row, judged(term.row.estimator, term.row.placement, own).row]
        known = {
            percent(getattr(row, name)) for row in measures for name in ("bias_far", "bias_near")
        }
        if not percents(said.advice.text) <= known | {percent(term.row.bias_far)}:
            yield "a number of the advice is in no row"


@pytest.mark.parametrize("estimator", names())
def test_no_sentence_contradicts_a_number_under_any_option(estimator: str) -> None:
    asked = list(every_option(estimator))
    assert len(asked) > 100
    for kl, how in asked:
        said = verdict(kl, **how)
        assert not contradictions(kl, how, said), (kl.label, how, said.summary, said.plain)


def test_the_check_sees_what_it_is_to_see() -> None:
    """The headlines of the old version, each with its numbers."""
    from dataclasses import replace

    kl = Kl(estimator="k3", placement="reward_and_loss", beta=1.0)
    how = Case(advantage="dr_grpo", group_size=2)._asdict() | {"correction": None}
    said = verdict(kl, **how)
    assert not contradictions(kl, how, said)
    old = "k3 in reward and loss: sequence-level reverse KL, unbiased. Paper: stable"
    assert "unbiased, and a bias is printed" in contradictions(kl, how, replace(said, summary=old))
    pulls = "Pulls as the true KL does, near the reference policy and far from it."
    assert contradictions(kl, how, replace(said, plain=pulls)) == [
        "pulls as the true KL, and does not"
    ]
    grpo = how | {"advantage": "grpo"}
    k1 = Kl(estimator="k1", placement="reward", beta=1.0)
    old = "k1 in reward: sequence-level reverse KL, unbiased. Paper: stable"
    assert contradictions(k1, grpo, replace(verdict(k1, **grpo), summary=old))


def test_every_sentence_lists_what_it_was_checked_under() -> None:
    known = sentences()["conditions"]
    for part, each in sentences().items():
        if part == "conditions":
            continue
        for name, sentence in each.items():
            assert sentence["text"].strip(), name
            assert sentence["checked"], f"{part}.{name} was checked under nothing"
            assert set(sentence["checked"]) <= set(known), name
    for name, question in sentences("questions").items():
        assert question["checked"], name
        assert set(question["checked"]) <= set(known), name


def test_every_sentence_is_said_by_some_configuration() -> None:
    """A template that nobody can print was checked by nobody."""
    said = set()
    for estimator in names():
        for kl, how in every_option(estimator):
            found = verdict(kl, clip=Clip(), **how)
            said |= {found.summary, found.plain, found.bias.text, found.advice.text, *found.notes}
    said |= {verdict(Kl(estimator="none"), on_policy=True).summary}
    text = "\n".join(said)
    for part in ("headline", "bias", "plain", "note"):
        for name, sentence in sentences()[part].items():
            pieces = [each for each in re.split(r"\{[^}]*\}", sentence["text"]) if len(each) > 12]
            if name == "derived_now" or (part, name) in {("bias", "none"), ("plain", "none")}:
                continue
            assert pieces == [] or all(piece.strip() in text for piece in pieces[:2]), (part, name)


def test_numbers_of_the_referee() -> None:
    """Derived anew without orch, by finite differences on models of 84 parameters."""
    both = Kl(estimator="k3", placement="reward_and_loss", beta=1.0)
    halved = verdict(both, on_policy=True, advantage="dr_grpo", group_size=2)
    assert "124% far from it" in halved.bias.text
    assert "a × sequence-level reverse KL + (1 - a) × token-level forward KL" in halved.summary
    asked = Kl(estimator="k2", placement="loss", beta=1.0)
    stale = verdict(asked, on_policy=False)
    assert stale.advice.use[0].startswith("k1")
    assert "1.6% far from the reference policy, where this is off by 54%" in stale.advice.text
    assert "Near it, it is off by 11%, and this by 2%." in stale.advice.text
    rb = verdict(Kl(estimator="rb", placement="reward", beta=1.0), on_policy=True)
    assert "rb is made for the reward and the loss together" in rb.advice.text
    whole = verdict(
        Kl(estimator="k1", placement="reward", beta=1.0), on_policy=False, ratio="sequence"
    )
    assert "--reward-kl-of policy) it is unbiased" in whole.advice.text
    assert "sequence-level reverse KL - that to the rollout policy" in whole.summary
    assert "token ratio" not in whole.advice.text
