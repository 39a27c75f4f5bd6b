"""Verdicts on KL terms: the objective whose gradient a term computes, and advice.

A verdict on `k3 in the loss, on-policy` names the objective of the term's expected gradient, its
distance from the gradient of the sequence-level reverse KL, the paper's observations of such
training, and the effects of the advantage, the clip and the staleness on the term. `verdict` judges
a KL term, `verdict_of` a cell.

Objective and bias come from verdicts.json, which derivation.py computes with the exact laboratory.
This module adds words, observations and advice. `explanation` and the functions after it answer
`orch explain`: a verdict as plain data, in labelled sentences, and as a row. The module does not
import NumPy, because `orch plan` needs thousands of verdicts quickly.
"""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache, lru_cache
from importlib.resources import files
from typing import Any, NamedTuple

from orchestrator.errors import LaboratoryError
from orchestrator.estimators import NONE, TABLE, choices, entry
from orchestrator.kl.catalogue import Naming, ObjectiveKind
from orchestrator.kl.configuration import KlConfiguration
from orchestrator.kl.library_semantics import PLAIN, Dialect
from orchestrator.kl.paper import EQUATIONS, NOT_STUDIED, Observation, Regime, observation
from orchestrator.settings import AdvantageEstimator, Clip, Kl, Placement, RatioLevel, Settings


class Bias(NamedTuple):
    """The distance of the expected gradient from the gradient of the sequence reverse KL.

    Its unit is the length of the gradient of the sequence reverse KL; 0 is unbiased. It is exact on
    the laboratory's model with T = 32, `near` the reference policy (0.08 nats) and `far` from it
    (18 nats).
    """

    text: str
    near: float
    far: float


@dataclass(frozen=True, slots=True)
class Remedy:
    """Advice in words, with the labels of the recommended terms (none: keep the term)."""

    text: str
    use: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class GradientVerdict:
    """A verdict on one KL term: its objective, bias and noise, the paper's observation, advice."""

    objective: ObjectiveKind
    summary: str
    """One line for `orch plan`."""
    bias: Bias
    paper: Observation
    equation: str
    advice: Remedy
    notes: tuple[str, ...] = ()
    """The effects of the advantage, the group and the clip on the term."""
    terms: tuple[tuple[int, str], ...] = ()
    """The signed candidates (catalogue.py) whose sum is the expected gradient."""
    plain: str = ""
    """The strength of its pull towards the reference policy, in words without equations."""
    pull: float = 0.0
    """Projection of its expected gradient on the gradient of the sequence reverse KL, near the
    reference policy, in lengths of the latter."""
    noise: float = 0.0
    """Standard deviation of one sequence's gradient near the reference policy, in lengths of the
    gradient of the sequence reverse KL."""


@lru_cache(maxsize=4096)
def verdict(
    kl: Kl,
    *,
    on_policy: bool,
    advantage: AdvantageEstimator = "rloo",
    group_size: int | None = None,
    clip: Clip | None = None,
    ratio: str = "token",
    reward_kl_of: str = "rollout",
    regimes: tuple[Regime, ...] = (),
) -> GradientVerdict:
    """Return the verdict on a KL term.

    `ratio`: the importance ratio, `token` (PPO), `sequence` or `sequence_mean` (GSPO).
    `reward_kl_of`: the policy whose log-probabilities give the KL in the reward: `rollout` (once
    per rollout batch, as in libraries) or `policy` (paper eq. 7). `regimes`: the paper's
    experiments to cite (empty: all on- or off-policy ones). Raise LaboratoryError for a combination
    without meaning, for example the sequence ratio with both placements.

    Derive an estimator that verdicts.json lacks now. That loads NumPy and takes some tenths of a
    second.
    """
    like = regimes or (("on_policy",) if on_policy else ("minibatches", "async"))
    if kl.placement is None or kl.beta == 0:
        return _no_kl(kl, observation("none", like))
    row = _row_of(kl.estimator, kl.placement, on_policy, ratio, reward_kl_of)
    naming = Naming(ObjectiveKind(row["objective"]), tuple((s, key) for s, key in row["terms"]))
    bias = _bias(row)
    off_policy = () if on_policy else off_policy_notes(kl, clip, ratio, reward_kl_of)
    paper = observation(_studied_as(kl, on_policy), like) if ratio == "token" else NOT_STUDIED
    return GradientVerdict(
        objective=naming.kind,
        summary=_summary(kl, naming, bias, paper, on_policy),
        bias=bias,
        paper=paper,
        equation=equation(kl.estimator, kl.placement, on_policy, ratio, naming),
        advice=advise(kl.estimator, kl.placement, on_policy, naming.kind, row["pull_near"]),
        notes=(
            *advantage_notes(kl, advantage, group_size),
            *off_policy,
            *_provenance(kl.estimator),
        ),
        terms=naming.terms,
        plain=plain_words(bias, row["pull_near"], row["pull_far"]),
        pull=row["pull_near"],
        noise=row["noise_near"],
    )


def verdict_of(settings: Settings, dialect: Dialect = PLAIN) -> GradientVerdict:
    """Return the verdict on a cell. It is on-policy with one minibatch per batch and no staleness.

    `dialect`: the meaning of the settings in the cell's library. If a library computes the KL in
    the reward at the start of a batch's only train step, it is the updated policy's KL.
    """
    regimes: list[Regime] = []
    if settings.batch.num_minibatches > 1:
        regimes.append("minibatches")
    if settings.max_staleness_steps > 0:
        regimes.append("async")
    result = verdict(
        settings.kl,
        on_policy=not regimes,
        advantage=settings.advantage.estimator,
        group_size=settings.rollout.group_size,
        clip=settings.loss.clip,
        ratio=_ratio_level(settings),
        reward_kl_of="policy" if _of_policy(settings, dialect) else "rollout",
        regimes=tuple(regimes) or ("on_policy",),
    )
    correction = settings.loss.correction
    if correction is None or settings.kl.beta == 0:
        return result
    multiplied = {"policy_loss": "the policy loss", "kl": "the KL in the loss"}
    what = multiplied.get(correction.applies_to, "the policy loss and the KL in the loss")
    note = (
        f"the correction of the engine's mismatch ({correction.kind}) multiplies {what}: `orch "
        "explain tis+kl` has examples of what that makes of beta"
    )
    return replace(result, notes=(*result.notes, note))


def _ratio_level(settings: Settings) -> RatioLevel:
    """Return the ratio level that weights the KL term: the policy loss's if it is in the reward."""
    in_reward = settings.kl.placement == "reward"
    return settings.loss.ratio_level if in_reward else settings.kl.ratio_level


def _of_policy(settings: Settings, dialect: Dialect) -> bool:
    """Return True if the reward's KL is the updated policy's and ratios divide by the sampler."""
    at_start = dialect.kl_reward_policy == "batch_start" and dialect.ratio_to == "rollout"
    return at_start and settings.batch.num_minibatches == 1


@cache
def stored_rows() -> tuple[Mapping[str, Any], ...]:
    """Return the rows of verdicts.json."""
    text = files("orchestrator.kl").joinpath("verdicts.json").read_text(encoding="utf-8")
    return tuple(json.loads(text))


_KEYS = ("estimator", "placement", "on_policy", "ratio", "reward_kl_of")


@cache
def _rows() -> Mapping[tuple[object, ...], Mapping[str, Any]]:
    return {tuple(row[key] for key in _KEYS): row for row in stored_rows()}


def _row_of(
    estimator: str, placement: Placement, on_policy: bool, ratio: str, reward_kl_of: str
) -> Mapping[str, Any]:
    # On-policy and in the loss both meanings are one; the rows have it as the policy's.
    of = "policy" if on_policy or placement == "loss" else reward_kl_of
    key = (estimator, placement, on_policy, ratio, of)
    if ratio == "sequence_mean":
        return _of_the_mean(estimator, placement, on_policy, of)
    row = _rows().get(key) or _derived(estimator).get(key)
    if row is None:
        raise LaboratoryError(
            f"there is no verdict on {estimator} in {placement} with ratio '{ratio}' and "
            f"reward_kl_of '{of}': the sequence ratio is for a plain estimator in the reward and "
            "for a rho estimator in the loss; use ratio 'token'"
        )
    return row


@cache
def _of_the_mean(
    estimator: str, placement: Placement, on_policy: bool, reward_kl_of: str
) -> Mapping[str, Any]:
    """Derive and return the row for GSPO's ratio, which verdicts.json lacks."""
    from orchestrator.lab.exact.derivation import judged

    configuration = KlConfiguration(
        estimator, placement, ratio="sequence_mean", reward_kl_of=reward_kl_of
    )
    return judged(configuration, on_policy=on_policy)


def is_stored(estimator: str) -> bool:
    """Return True if verdicts.json has the rows of this estimator."""
    return estimator in _stored_estimators()


@cache
def _stored_estimators() -> frozenset[str]:
    return frozenset(row["estimator"] for row in stored_rows())


def _derived(estimator: str) -> Mapping[tuple[object, ...], Mapping[str, Any]]:
    """Derive and return the rows of an estimator that verdicts.json lacks, or no rows."""
    if is_stored(estimator):
        return {}
    from orchestrator.lab.exact.derivation import derive_one

    return {tuple(row[key] for key in _KEYS): row for row in derive_one(entry(estimator))}


def _provenance(estimator: str) -> tuple[str, ...]:
    if is_stored(estimator):
        return ()
    return (f"derived now by the laboratory: verdicts.json has no row on {estimator}",)


def _no_kl(kl: Kl, paper: Observation) -> GradientVerdict:
    why = "no KL term" if kl.estimator == NONE else f"{kl.label} with β = 0: no KL term"
    return GradientVerdict(
        objective=ObjectiveKind.NONE,
        summary=f"{why}: nothing keeps the policy near the reference policy",
        bias=Bias("There is no KL term whose gradient could be biased.", 0.0, 0.0),
        paper=paper,
        equation="0",
        advice=Remedy("Keep it as the baseline of the others.", ()),
        plain="Nothing pulls the policy back.",
    )


def _studied_as(kl: Kl, on_policy: bool) -> str:
    """Return the label of the term in the paper that has the same gradient.

    In the reward, `k3+` equals k3. On-policy in the reward, every ratio is 1.
    """
    estimator, form = kl.estimator, entry(kl.estimator)
    if kl.placement == "reward" and (form.is_straight_through or (on_policy and form.is_weighted)):
        estimator = form.base
    return f"{estimator}.{kl.label.rpartition('.')[2]}"


def _bias(row: Mapping[str, Any]) -> Bias:
    near, far = row["bias_near"], row["bias_far"]
    if near == far == 0:
        text = "Unbiased: in expectation it is the gradient of the sequence-level reverse KL."
    else:
        text = (
            f"Its expectation has {percent(row['pull_near'])} of the pull of the sequence-level "
            f"reverse KL near the reference policy and {percent(row['pull_far'])} far from it; it "
            f"is off by {percent(near)} and {percent(far)} of that gradient's length."
        )
    return Bias(text, near, far)


PULLS = (
    (0.05, "does not pull"),
    (0.15, "hardly pulls"),
    (0.4, "pulls about a quarter as hard as the true KL"),
    (0.65, "pulls half as hard as the true KL"),
    (0.9, "pulls a little less hard than the true KL"),
    (1.1, "pulls as hard as the true KL"),
    (1.3, "pulls a little harder than the true KL"),
    (1.75, "pulls half as hard again as the true KL"),
    (2.5, "pulls twice as hard as the true KL"),
)
"""(upper bound of the share of the true pull, its words)."""
SIDEWAYS = 0.3
"""Minimum part of a gradient perpendicular to the true one (in its lengths) to mention."""


def plain_words(bias: Bias, near: float, far: float) -> str:
    """Return the strength of a term's pull near the reference policy and far from it, in words.

    near, far: the term's pull along the gradient of the sequence reverse KL, as a share of it.
    """
    if bias.near == bias.far == 0:
        return "Pulls as the true KL does, near the reference policy and far from it."
    if max(map(abs, (near, far))) < PULLS[0][0] and min(bias.near, bias.far) > 1 - PULLS[0][0]:
        return "Does not pull at all: it only adds noise."
    one, other = _pull(near, bias.near), _pull(far, bias.far)
    if one == other:
        return f"{one[0].upper()}{one[1:]}, near the reference policy and far from it."
    other = other.replace(" as the true KL", "").replace(" than the true KL", "")
    return f"{one[0].upper()}{one[1:]} near the reference policy, {other} far away."


def _pull(share: float, bias: float) -> str:
    if share <= -PULLS[0][0]:
        text = "drives the policy off"
    elif share >= PULLS[-1][0]:
        text = f"pulls {share:.0f} times as hard as the true KL"
    else:
        text = next(words for most, words in PULLS if share < most)
    # `bias` is the whole distance and share - 1 its part along the true gradient (Pythagoras).
    aside = math.sqrt(max(0.0, bias**2 - (share - 1) ** 2))
    return f"{text}, and sideways," if aside > SIDEWAYS else text


def _summary(kl: Kl, naming: Naming, bias: Bias, paper: Observation, on_policy: bool) -> str:
    place = str(kl.placement).replace("_", " ")
    when = "" if on_policy else ", off-policy"
    if naming.kind is ObjectiveKind.ZERO:
        what = "no gradient in expectation: noise, and no regularisation"
    elif bias.near == bias.far == 0:
        what = f"{naming.words}, unbiased"
    else:
        what = f"{naming.words}; biased by {percent(bias.near)} near the reference policy"
    return f"{kl.estimator} in {place}{when}: {what}. Paper: {paper}"


def percent(share: float) -> str:
    """Return a share as text: `1.3%` for 0.013, `148%` for 1.483."""
    return f"{100 * share:.0f}%" if abs(share) >= 0.1 else f"{100 * share:.2g}%"


def equation(
    estimator: str, placement: Placement, on_policy: bool, ratio: str, naming: Naming
) -> str:
    """Return the equation of the term's expected gradient, with its source."""
    samples, form = "q" if on_policy else "μ", entry(estimator)
    weighted, loss, score = form.is_weighted, "Σ_t ∇KL_t", "s_t" if on_policy else "w_t s_t"
    if ratio == "sequence_mean":
        reward = "(Π_t w_t)^(1/T) (Σ_t KL_t)(Σ_t s_t)"
    elif ratio == "sequence":
        reward = "Π_t w_t (Σ_t KL_t)(Σ_t s_t)"
    elif form.credit == "sequence":
        reward = f"(Σ_t KL_t)(Σ_t {score})"
    else:
        reward = f"Σ_t {score} Σ_(u{'≥' if form.credit == 'to_go' else '>'}t) KL_u"
    expectation = {"reward": reward, "loss": loss, "reward_and_loss": f"{reward} + {loss}"}[
        placement
    ]
    known = ratio == "token" and (on_policy or (weighted and placement == "loss"))
    source = EQUATIONS.get(f"{estimator}.{placement}") if known else None
    where = f"KL_t = {estimator}; {source or 'the laboratory'}"
    return f"E_{samples}[{expectation}] = {naming.formula}   ({where})"


ON_POLICY = ("k1.reward", "k2.loss")
OFF_POLICY = ("rho_k3.loss", "k1.reward")


def advise(
    estimator: str, placement: Placement, on_policy: bool, kind: ObjectiveKind, pull: float
) -> Remedy:
    """Return advice for an objective and its pull near the reference policy."""
    if on_policy:
        return _on_policy(kind, pull)
    return _off_policy(estimator, placement, kind, pull)


def _on_policy(kind: ObjectiveKind, pull: float) -> Remedy:
    if kind is ObjectiveKind.SEQUENCE_REVERSE_KL:
        return Remedy("Keep it while training stays on-policy.", ())
    if kind is ObjectiveKind.TOKEN_REVERSE_KL:
        return Remedy(
            "Keep it for a reverse KL of each token at the states visited; it leaves out what a "
            "token does to later states. For the sequence's reverse KL use k1 in the reward.",
            ("k1.reward",),
        )
    if kind is ObjectiveKind.TOKEN_FORWARD_KL:
        return Remedy(
            "It pulls towards covering the reference policy, token by token, and does so "
            "steadily. For a reverse KL use k1 in the reward, or k2 in the loss.",
            ON_POLICY,
        )
    return Remedy("Use k1 in the reward, or k2 in the loss." + _warning(pull), ON_POLICY)


def _off_policy(estimator: str, placement: Placement, kind: ObjectiveKind, pull: float) -> Remedy:
    form = entry(estimator)
    known = kind in (ObjectiveKind.SEQUENCE_REVERSE_KL, ObjectiveKind.TOKEN_REVERSE_KL)
    if form.is_of_vocabulary and form.is_reverse_kl and placement != "reward":
        text = (
            "averaged over the vocabulary, it needs no ratio for the token; its states are the "
            "rollout policy's, so its bias goes to zero with the staleness."
        )
        return (
            Remedy(f"Keep it: {text}", ())
            if known
            else Remedy(
                f"Usable: {text} Keep the staleness small, or use rho_k3 in the loss.",
                ("rho_k3.loss",),
            )
        )
    if known:
        return Remedy("Keep it: the ratio corrects for the rollout policy's tokens.", ())
    if placement == "reward" and entry(estimator).base == "k1" and not entry(estimator).is_weighted:
        return Remedy(
            "Usable: the token ratio makes it PPO's surrogate of the sequence reverse KL, whose "
            "bias goes to zero with the staleness. Keep the staleness small, or use rho_k3 in "
            "the loss.",
            ("rho_k3.loss",),
        )
    return Remedy("Use rho_k3 in the loss, or k1 in the reward." + _warning(pull), OFF_POLICY)


WEAK = 0.2
"""A term with a smaller share of the reverse KL's pull near the reference hardly regularises."""


def _warning(pull: float) -> str:
    if pull < 0:
        return " It pushes the policy away from the samples it learns from."
    return " It hardly regularises near the reference policy." if pull < WEAK else ""


def off_policy_notes(kl: Kl, clip: Clip | None, ratio: str, reward_kl_of: str) -> list[str]:
    """Return the effects of importance ratio, clip and staleness on the term, off-policy."""
    notes = []
    if kl.placement != "loss":
        if ratio == "token":
            notes.append(
                "off-policy, the token-level ratio biases a KL in the reward: it corrects a "
                "token, but not the states before it"
            )
        if ratio == "token" and clip is not None:
            notes.append(
                f"a token whose ratio the clip [{1 - clip.low:g}, {1 + clip.high:g}] cuts gets no "
                "gradient at all from a KL in the reward"
            )
        if reward_kl_of == "rollout":
            notes.append(
                "the KL in the reward is computed once per rollout batch, with the rollout "
                "policy's log-probabilities: it lags by the staleness"
            )
    form = entry(kl.estimator)
    if kl.placement != "reward" and not (form.is_weighted or form.is_of_vocabulary):
        notes.append("a loss without an importance ratio is a mean over the rollout policy")
    return notes


def advantage_notes(kl: Kl, advantage: AdvantageEstimator, group_size: int | None) -> list[str]:
    """Return the effects of the advantage's baseline and normalisation on the term."""
    in_reward, in_loss = kl.placement != "loss", kl.placement != "reward"
    notes = []
    if advantage == "reinforce" and in_reward:
        notes.append("reinforce subtracts no baseline: the KL keeps its full variance")
    if advantage in ("grpo", "dr_grpo"):
        kept = f"1 - 1/{group_size} = {1 - 1 / group_size:.3g}" if group_size else "1 - 1/G"
        if in_reward:
            notes.append(
                "the mean of the whole group, its own rollout included, shrinks a KL in the "
                f"reward to {kept} of itself, and the task reward alike"
            )
        if in_loss:
            notes.append(
                "the mean of the whole group, its own rollout included, shrinks the task reward "
                f"to {kept} of itself but not a KL in the loss, whose β counts that much more"
            )
    if advantage == "grpo" and in_reward:
        notes.append(
            "GRPO divides by the group's standard deviation: where all task rewards of a group "
            "are equal, the KL alone is scaled to unit size, whatever β"
        )
    if advantage == "grpo" and in_loss:
        notes.append(
            "GRPO divides the task reward by the group's standard deviation, but not a KL in "
            "the loss: β counts in units of that deviation"
        )
    return notes


SYMBOLS = (
    "q is the policy, p the reference policy, μ the rollout policy; w_t = q/μ and s_t = ∇ log q\n"
    "of token t; c is the state before it. Biases are exact, on the laboratory's model (orch lab)."
)
"""The symbols of formulas and equations, in words."""
PLACEMENTS: Mapping[str, Placement] = {
    "reward": "reward",
    "loss": "loss",
    "both": "reward_and_loss",
    "reward_and_loss": "reward_and_loss",
}
"""A person's word for a placement -> the placement."""
_NOISE = (
    "near the reference policy one sequence's gradient scatters by {:.2g} lengths of the "
    "sequence-level reverse KL's"
)
COLUMNS = ("estimator", "in", "policy", "gradient of", "bias near", "far", "noise", "paper")
"""The columns of `summary_row`."""


def explanation(
    estimator: str,
    placement: str | None,
    *,
    off_policy: bool,
    advantage: AdvantageEstimator,
    group_size: int | None,
    ratio: str,
    reward_kl_of: str,
) -> dict[str, Any]:
    """Return the verdict as plain data, with the estimator, the placement and the sampling.

    placement: a word of PLACEMENTS, or None for no KL.
    """
    if estimator == NONE or placement is None:
        kl = Kl(estimator=NONE)
    else:
        kl = Kl(estimator=estimator, placement=PLACEMENTS[placement], beta=1.0)
    result = verdict(
        kl,
        on_policy=not off_policy,
        advantage=advantage,
        group_size=group_size,
        clip=Clip(),
        ratio=ratio,
        reward_kl_of=reward_kl_of,
    )
    term = {"estimator": kl.estimator, "placement": kl.placement, "on_policy": not off_policy}
    return term | asdict(result) | {"bias": result.bias._asdict()}


def every_explanation(*, off_policy: bool, **options: Any) -> list[dict[str, Any]]:
    """Return the explanation of every estimator of the table in every placement.

    Each is on-policy and off-policy, or only off-policy if `off_policy` is true. `options` are
    those of `explanation`.
    """
    return [
        explanation(estimator, placement, off_policy=off, **options)
        for off in ((True,) if off_policy else (False, True))
        for estimator in choices()
        for placement in (("reward", "loss", "both") if estimator != NONE else (None,))
    ]


def labelled_sentences(explained: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield label and text of each part of an explanation, in the order to print."""
    if explained["placement"]:
        yield "estimator", _definition(explained["estimator"])
    yield "objective", str(explained["objective"])
    if explained["placement"]:
        yield "equation", explained["equation"]
        yield "bias", explained["bias"]["text"]
        yield "noise", _NOISE.format(explained["noise"])
    paper = explained["paper"]
    where = f" ({paper['where']})" if paper["where"] else ""
    yield "paper", f"{paper['behaviour']}: {paper['text']}{where}"
    yield "advice", explained["advice"]["text"]
    for note in explained["notes"]:
        yield "note", note


def _definition(estimator: str) -> str:
    """Return `k3 = r - 1 - log r, with r = p/q (source)`."""
    form = TABLE[estimator]
    return f"{form.name} = {form.formula}, with r = p/q ({form.source})"


def summary_row(explained: Mapping[str, Any]) -> tuple[str, ...]:
    """Return one explanation as a row of the table with the columns COLUMNS."""
    placement = explained["placement"]
    return (
        explained["estimator"],
        (placement or "-").replace("reward_and_loss", "both"),
        "on" if explained["on_policy"] else "off",
        Naming(explained["objective"], explained["terms"]).words if placement else "-",
        percent(explained["bias"]["near"]),
        percent(explained["bias"]["far"]),
        f"{explained['noise']:.2g}",
        explained["paper"]["behaviour"],
    )
