"""Every sentence of `orch explain`, under every option: none contradicts a number beside it."""

import math
import re
from collections.abc import Iterator
from dataclasses import replace
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


NUMBER = r"(-?\d+(?:\.\d+)?%)"
TIMES = r"(-?[\d.e-]+) ×"
IN_HEADLINE = (
    rf"biased: in the laboratory {TIMES} the reverse KL's gradient near the reference policy "
    rf"\({NUMBER} beside it\) and {TIMES} far from it \({NUMBER} beside it\)"
)
IN_BIAS = (
    rf"has {NUMBER} of the pull of .* reference policy and {NUMBER} far from it; it is off by "
    rf"{NUMBER} and {NUMBER} of"
)
OVER_MODELS = rf"models it is off by {NUMBER} near and {NUMBER} far"
IN_PLAIN = rf"of two parameters it has {NUMBER} of the true pull .* policy and {NUMBER} far from it"
OFF = rf"{NUMBER} off near the reference policy and {NUMBER} far from it"
OF_UNBIASED = rf"unbiased, where this is {OFF}"
OF_BIASED = rf": {OFF}, where this is {NUMBER} and {NUMBER} off"
OWN = rf"\(--reward-kl-of policy\) .* is (?:{OFF}|unbiased)"


def told(pattern: str, text: str) -> list[str] | None:
    """Return the numbers of a sentence in order, or None if the text does not have it."""
    match = re.search(pattern, text)
    return None if match is None else [each for each in match.groups() if each]


def of(row: Any, *names: str) -> list[str]:
    return [percent(getattr(row, each)) for each in names]


def contradictions(kl: Kl, how: dict[str, Any], said: GradientVerdict) -> list[str]:
    """Return each number or word of a verdict that another of its parts denies."""
    case = Case(**{name: how[name] for name in Case._fields})
    term = judged(kl.estimator, kl.placement, case)
    row, headline = term.row, said.summary.partition(". Paper")[0]
    calls_unbiased = "unbiased" in headline
    numbers, biased = told(IN_HEADLINE, headline), not (row.is_unbiased or row.is_noise)
    medians = term.over_models
    faults = {
        "unbiased, and a bias is printed": calls_unbiased and (said.bias.near or said.bias.far),
        "unbiased, and scaled for each prompt": calls_unbiased and term.by_prompt,
        "unbiased, and the bias is not": calls_unbiased != row.is_unbiased and not term.by_prompt,
        "another objective": not row.is_noise
        and not re.match(rf"{re.escape(term.words)}($|[;,])", headline.partition(": ")[2]),
        "no gradient, and a gradient": row.is_noise != ("no gradient in expectation" in headline),
        "other numbers than the row's": numbers
        != (_times_and_beside(row) if biased and not term.by_prompt else None),
        "the factor of the group's mean is not in the headline": case.kept != 1
        and not row.is_noise
        and not term.by_prompt
        and not any(word in headline for word in ("1 - 1/", "β counts ×", "divided by")),
        "a factor that is none": case.kept == 1
        and any(word in headline for word in ("1 - 1/", "β counts ×", "deviation", "own a")),
        "β counts more, and it does not": ("β counts ×" in headline)
        != (case.advantage == "dr_grpo" and kl.placement == "loss" and not row.is_noise),
        "divided, and it is not": ("deviation" in headline)
        != (case.advantage == "grpo" and not row.is_noise),
        "a factor in the headline, and none in the bias": ("up to a factor" in said.bias.text)
        != ("up to the factor" in headline),
        "a name without its factor": case.advantage == "grpo"
        and not row.is_noise
        and "group's deviation" not in headline,
        "each prompt has its own, and has not": ("each prompt" in headline)
        != (term.by_prompt and not row.is_noise),
        "a sum that is none": ("a ×" in headline) != term.is_mixed,
        "the bias has other numbers": told(IN_BIAS, said.bias.text)
        != (None if row.is_unbiased else of(row, "pull_near", "pull_far", "bias_near", "bias_far")),
        "the medians are others": told(OVER_MODELS, said.bias.text)
        != (
            [percent(each) for each in medians]
            if medians is not None and not row.is_unbiased
            else None
        ),
        "the bias is unbiased, and the row is not": ("nbiased" in said.bias.text)
        != row.is_unbiased,
        "by prompt, and a number": term.by_prompt != (said.bias.near is None),
        "by prompt, and the bias does not say so": term.by_prompt
        != said.bias.text.startswith("No one number"),
        "pulls as the true KL, and does not": ("Pulls as the true KL" in said.plain)
        != row.is_unbiased,
        "one strength, and each prompt has its own": ("each prompt's own" in said.plain)
        != (term.by_prompt and not row.is_noise),
        "no pull, and a pull": said.plain.startswith("Does not pull") != row.is_noise,
        "other pulls than the row's": told(IN_PLAIN, said.plain)
        != (of(row, "pull_near", "pull_far") if biased and _is_uncounted(term) else None),
        "a number of eight rollouts that nobody asked for": case.group_size is None
        and any(
            f"{number:.3g}" in text and "G = 8" not in text
            for number in ((case.kept, 1 / case.kept) if case.kept != 1 else ())
            for text in (headline, said.bias.text, said.plain, *said.notes, *said.reasons)
        ),
        "the paper's training under another advantage": said.paper.where
        and "under" not in str(said.paper)
        and not _trained_under(said, case),
        "advised to itself": row.label in said.advice.use,
        "the table's row says another thing": summary_row(_as_data(kl, how, said, term))[4:6]
        != _cells(said),
    }
    return [fault for fault, is_so in faults.items() if is_so] + [
        *_of_signs(said, term),
        *_of_advice(said, term),
    ]


def _times_and_beside(row: Any) -> list[str]:
    return [
        text
        for pull, *rest in (row.near, row.far)
        for text in (f"{pull:.2g}", percent(math.hypot(*rest)))
    ]


def _is_uncounted(term: Any) -> bool:
    return term.is_mixed or table.signs(term.row) is None


def _trained_under(said: GradientVerdict, case: Case) -> bool:
    """Return True if the paper trained what it is cited for with the advantage asked for."""
    async_ = "§4.2" in said.paper.where
    others = bool(re.search(r"§4\.[13]|App\. D", said.paper.where))
    return {"rloo": not async_, "dr_grpo": async_ and not others}.get(case.advantage, False)


def _as_data(kl: Kl, how: dict[str, Any], said: GradientVerdict, term: Any) -> dict[str, Any]:
    paper = {"behaviour": said.paper.behaviour, "of": said.paper.of, "under": said.paper.under}
    return {
        "estimator": kl.estimator,
        "placement": kl.placement,
        "on_policy": how["on_policy"],
        "gradient_of": term.words,
        "bias": said.bias._asdict(),
        "noise": said.noise,
        "paper": paper,
    }


def _cells(said: GradientVerdict) -> tuple[str, ...]:
    return tuple(
        "by prompt" if each is None else percent(each) for each in (said.bias.near, said.bias.far)
    )


RULES = {
    "it pulls back": ("attracts", lambda pull: pull > 0),
    "it pushes away": ("repels", lambda pull: pull < 0),
    "it does not pull": ("neither", lambda pull: abs(pull) < 0.15),
}


def _of_signs(said: GradientVerdict, term: Any) -> Iterator[str]:
    """Yield signs that are stated without most models, or against the laboratory's number."""
    shares = None if term.is_mixed or term.row.is_noise else table.signs(term.row)
    counted = shares is not None and not term.row.is_unbiased
    if counted != ("random models" in said.plain):
        yield "signs that nobody counted, or no signs"
    if not counted or shares is None:
        return
    from_sampler, _, rest = said.plain.rpartition("wherever that is. ")
    if bool(from_sampler) != any(key == "sampled_k1" for _, key in term.row.terms):
        yield "a push from the rollout policy that is none, or one unsaid"
    near, _, far = rest.partition(" words)")
    parts = {"near": near, "far": near + far if "too" in far else far}
    for at, text in parts.items():
        stated = [words for words in RULES if words in text]
        rules = [
            words
            for words, (name, holds) in RULES.items()
            if shares[at][name] >= MOST and holds(getattr(term.row, f"pull_{at}"))
        ]
        if stated != rules:
            yield f"{at}: {stated} is stated, and {rules} holds"
        if ("depends on the model" in text) == bool(rules):
            yield f"{at}: a sign and none"
        own = text if "too" not in far else (near if at == "near" else far)
        counted_as = [RULES[rules[0]][0]] if rules else ["attracts", "repels", "neither"]
        for share in (percent(shares[at][name]) for name in counted_as):
            if share not in own:
                yield f"{at}: not the share {share}"


def _of_advice(said: GradientVerdict, term: Any) -> Iterator[str]:
    if term.by_prompt:
        yield from _of_advice_by_prompt(said, term)
        return
    text, over = said.advice.text, term.over_models is not None
    forms = {each.row.label: each for each, _ in table.advised(term.case, over_models=over)}
    orders = {label: each.order(over_models=over)[:2] for label, each in forms.items()}
    mine, least = term.order(over_models=over)[:2], min(orders.values())
    equal = {label for label in orders if orders[label] == least}
    if (mine > least) != bool(said.advice.use):
        yield "advises what has no less bias, or keeps what has more"
    if said.advice.use and set(said.advice.use) != equal:
        yield "advises what is worse by its own numbers, or not all that is as good"
    if any(f"{label.split('.')[0]} in" not in text for label in said.advice.use):
        yield "advises without a name"
    if said.advice.use and mine > least:
        yield from _of_numbers(text, forms[min(equal)], term, over_models=over)
    yield from _of_own_kl(text, term, mine)


def _of_numbers(text: str, best: Any, term: Any, *, over_models: bool) -> Iterator[str]:
    numbers = [
        percent(each)
        for one in ((term,) if best.row.is_unbiased else (best, term))
        for each in one.off(over_models=over_models)
    ]
    if told(OF_UNBIASED if best.row.is_unbiased else OF_BIASED, text) != numbers:
        yield "other numbers of the best or of this"
    if ("random models" in text) != over_models or ("in the laboratory" in text) == over_models:
        yield "the measure is another"


def _of_own_kl(text: str, term: Any, mine: Any) -> Iterator[str]:
    own, row = told(OWN, text), term.row
    if own is None and "--reward-kl-of policy" not in text:
        return
    plain = judged(row.estimator, row.placement, term.case._replace(reward_kl_of="policy"))
    numbers = [] if plain.row.is_unbiased else list(map(percent, plain.off()))
    if plain.order()[:2] >= mine or own != numbers:
        yield "the policy's own KL is no better"


def _of_advice_by_prompt(said: GradientVerdict, term: Any) -> Iterator[str]:
    """Yield what is wrong with advice to leave the group's deviation."""
    case, row, text = term.case._replace(advantage="rloo"), term.row, said.advice.text
    plain = judged(row.estimator, row.placement, case)
    over = plain.over_models is not None
    forms = [each for each, _ in table.advised(case, over_models=over)]
    least = min(each.order(over_models=over)[:2] for each in forms)
    keeps = plain.order(over_models=over)[:2] <= least
    if (f"advantage rloo{':' if keeps else ' with '}" not in text) or "nder grpo" not in text:
        yield "keeps a term that is worse by its own numbers, or leaves one that is not"
    under = {each.row.label: each for each, _ in table.advised(term.case)}
    if not said.advice.use or any(label not in under for label in said.advice.use):
        yield "advises under grpo what the deviation divides"


@pytest.mark.parametrize("estimator", names())
def test_no_sentence_contradicts_a_number_under_any_option(estimator: str) -> None:
    asked = list(every_option(estimator))
    assert len(asked) > 100
    for kl, how in asked:
        said = verdict(kl, **how)
        assert not contradictions(kl, how, said), (kl.label, how, said.summary, said.plain)


SAMPLED: list[tuple[str, Placement, dict[str, Any]]] = [
    ("k1", "reward", {}),
    ("k1", "loss", {}),
    ("k1", "loss", {"on_policy": False}),
    ("k1", "reward", {"on_policy": False}),
    ("k1", "reward", {"on_policy": False, "ratio": "sequence"}),
    ("k1", "reward", {"advantage": "grpo"}),
    ("k1", "reward", {"advantage": "dr_grpo"}),
    ("k1", "reward_and_loss", {"on_policy": False}),
    ("k2", "loss", {}),
    ("k2", "loss", {"on_policy": False}),
    ("k3", "reward", {}),
    ("k3", "reward", {"advantage": "grpo"}),
    ("k3", "loss", {}),
    ("k3", "loss", {"advantage": "dr_grpo"}),
    ("k3", "loss", {"advantage": "grpo"}),
    ("k3", "reward_and_loss", {"advantage": "dr_grpo", "group_size": 2}),
    ("k3", "reward_and_loss", {"advantage": "grpo"}),
    ("rho_k3", "loss", {"on_policy": False}),
    ("rho_k3", "loss", {"on_policy": False, "ratio": "sequence"}),
    ("rb", "reward", {}),
    ("top4", "loss", {}),
]


def test_the_check_sees_every_sentence_that_is_of_another_configuration() -> None:
    """Headline, bias, plain words and advice of one configuration under the numbers of another."""
    known = []
    for estimator, placement, options in SAMPLED:
        kl = Kl(estimator=estimator, placement=placement, beta=1.0)
        how = Case(**options)._asdict() | {"correction": None}
        known.append((kl, how, verdict(kl, **how)))
    compared = 0
    for kl, how, said in known:
        assert not contradictions(kl, how, said), (kl.label, how)
        for _, _, other in known:
            for wrong in _with_a_sentence_of(said, other):
                assert contradictions(kl, how, wrong), (kl.label, how, other.summary, wrong)
                compared += 1
    assert compared > 1000


def _with_a_sentence_of(said: GradientVerdict, other: GradientVerdict) -> Iterator[GradientVerdict]:
    ours, theirs = (
        each.summary.partition(": ")[2].partition(". Paper")[0] for each in (said, other)
    )
    if ours != theirs:
        yield replace(said, summary=said.summary.replace(ours, theirs))
    if said.plain != other.plain:
        yield replace(said, plain=other.plain)
    if said.bias.text != other.bias.text:
        yield replace(said, bias=said.bias._replace(text=other.bias.text))
    if set(said.advice.use) != set(other.advice.use):
        yield replace(said, advice=other.advice)


def test_the_check_sees_the_headlines_of_the_old_version() -> None:
    kl = Kl(estimator="k3", placement="reward_and_loss", beta=1.0)
    how = Case(advantage="dr_grpo", group_size=2)._asdict() | {"correction": None}
    old = "k3 in reward and loss: sequence-level reverse KL, unbiased. Paper: stable"
    assert "unbiased, and a bias is printed" in contradictions(
        kl, how, replace(verdict(kl, **how), summary=old)
    )
    grpo = how | {"advantage": "grpo"}
    k1 = Kl(estimator="k1", placement="reward", beta=1.0)
    old = "k1 in reward: sequence-level reverse KL, unbiased. Paper: stable"
    assert contradictions(k1, grpo, replace(verdict(k1, **grpo), summary=old))
    assumed = how | {"advantage": "dr_grpo", "group_size": None}
    k3 = Kl(estimator="k3", placement="loss", beta=1.0)
    said = verdict(k3, **assumed)
    unsaid = replace(said, summary=said.summary.replace(" with G = 8", ""))
    assert contradictions(k3, assumed, unsaid) == [
        "a number of eight rollouts that nobody asked for"
    ]


def test_every_sentence_lists_what_it_was_checked_under() -> None:
    known = sentences()["conditions"]
    for part, each in sentences().items():
        if part == "conditions":
            continue
        for name, sentence in each.items():
            assert (sentence["text"] or sentence.get("why", "")).strip(), name
            assert sentence["checked"], f"{part}.{name} was checked under nothing"
            assert set(sentence["checked"]) <= set(known), name


def test_every_sentence_is_said_by_some_configuration() -> None:
    """A template that nobody can print was checked by nobody."""
    said = set()
    for estimator in names():
        for kl, how in every_option(estimator):
            found = verdict(kl, clip=Clip(), **how)
            said |= {found.summary, found.plain, found.bias.text, found.advice.text, *found.notes}
    said |= {verdict(Kl(estimator="none"), on_policy=True).summary}
    hot = Kl(estimator="k3", placement="loss", beta=1.0)
    said |= {*verdict(hot, on_policy=True, reference_at_one=0.6).notes}
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
    assert "1.2 × far from it (1.6% beside it)" in halved.summary
    assert "a × sequence-level reverse KL + (1 - a) × token-level forward KL" in halved.summary
    asked = Kl(estimator="k2", placement="loss", beta=1.0)
    stale = verdict(asked, on_policy=False)
    assert "2% and 54%" in stale.bias.text
    assert stale.advice.use == ("rb.both",)
    assert (
        "1% off near the reference policy and 4.6% far from it, where this is 2.6% and 33% off"
        in stale.advice.text
    )
    assert "Where a library lacks that, use rho_k3 in the loss" in stale.advice.text
    rb = verdict(Kl(estimator="rb", placement="reward", beta=1.0), on_policy=True)
    assert "rb is made for the reward and the loss together" in rb.advice.text
    whole = verdict(
        Kl(estimator="k1", placement="reward", beta=1.0), on_policy=False, ratio="sequence"
    )
    assert "--reward-kl-of policy) k1 in the reward is unbiased" in whole.advice.text
    assert "sequence-level reverse KL - that to the rollout policy" in whole.summary
    assert "token ratio" not in whole.advice.text
