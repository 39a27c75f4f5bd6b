"""What the gradient of a KL configuration really is, told for one cell.

The objectives come from verdicts.json, which derivation.py computes; the words, the paper's
observations and the advice are put beside them here. Nothing heavy is imported: `orch plan` asks
for thousands of verdicts.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.resources import files
from typing import Any, NamedTuple

from orchestrator.dialect import PLAIN, Dialect
from orchestrator.errors import LaboratoryError
from orchestrator.semantics.advice import Advice, advise, equation, of_advantage, of_old_samples
from orchestrator.semantics.catalogue import Naming, Objective
from orchestrator.semantics.paper import NOT_STUDIED, Observation, Regime, observed
from orchestrator.settings import AdvantageEstimator, Clip, Estimator, Kl, Placement, Settings


class Bias(NamedTuple):
    """How far the expected gradient is from that of the sequence reverse KL, in its lengths.

    Exact, on the laboratory's model at T = 32: `near` the reference policy (0.08 nats) and `far`
    from it (18 nats). 0: unbiased.
    """

    text: str
    near: float
    far: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one KL term optimises, what is wrong with it, what was seen, and what to do."""

    objective: Objective
    summary: str
    """One line for `orch plan`."""
    bias: Bias
    paper: Observation
    equation: str
    advice: Advice
    notes: tuple[str, ...] = ()
    """What the advantage, the group and the clip do to the term."""
    terms: tuple[tuple[int, str], ...] = ()
    """The signed candidates (catalogue.py) whose sum is the expected gradient."""
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
) -> Verdict:
    """The verdict on a KL term.

    `ratio`: the importance ratio, `token` (PPO) or `sequence`; `reward_kl_of`: whose
    log-probabilities the KL in the reward is computed from: the `rollout` policy's, as libraries
    do once per rollout batch, or the `policy`'s (paper eq. 7); `regimes`: which of the paper's
    experiments are like this one (empty: all the on- or off-policy ones).
    Raises LaboratoryError on a combination without meaning (the sequence ratio with both
    placements, say).
    """
    like = regimes or (("on_policy",) if on_policy else ("minibatches", "async"))
    if kl.placement is None or kl.beta == 0:
        return _no_kl(kl, observed("none", like))
    row = _row(kl.estimator, kl.placement, on_policy, ratio, reward_kl_of)
    naming = Naming(Objective(row["objective"]), tuple((s, key) for s, key in row["terms"]))
    bias = _bias(row)
    lag = () if on_policy else of_old_samples(kl, clip, ratio, reward_kl_of)
    paper = observed(_studied_as(kl, on_policy), like) if ratio == "token" else NOT_STUDIED
    return Verdict(
        objective=naming.kind,
        summary=_summary(kl, naming, bias, paper, on_policy),
        bias=bias,
        paper=paper,
        equation=equation(kl.estimator, kl.placement, on_policy, ratio, naming),
        advice=advise(kl.estimator, kl.placement, on_policy, naming.kind, row["pull_near"]),
        notes=(*of_advantage(kl, advantage, group_size), *lag),
        terms=naming.terms,
        noise=row["noise_near"],
    )


def verdict_of(settings: Settings, dialect: Dialect = PLAIN) -> Verdict:
    """The verdict on a cell. On-policy: one minibatch a batch, and no staleness.

    dialect: what the cell's library means by it. A KL in the reward that is computed when a batch's
    first train step begins is the updated policy's, where that is the only step.
    """
    regimes: list[Regime] = []
    if settings.batch.num_minibatches > 1:
        regimes.append("minibatches")
    if settings.max_staleness_steps > 0:
        regimes.append("async")
    return verdict(
        settings.kl,
        on_policy=not regimes,
        advantage=settings.advantage.estimator,
        group_size=settings.rollout.group_size,
        clip=settings.loss.clip,
        reward_kl_of="policy" if _of_policy(settings, dialect) else "rollout",
        regimes=tuple(regimes) or ("on_policy",),
    )


def _of_policy(settings: Settings, dialect: Dialect) -> bool:
    """Whether the reward's KL is of the policy being updated, and importance ratios are to the
    one that sampled."""
    at_start = dialect.kl_reward_policy == "batch_start" and dialect.ratio_to == "rollout"
    return at_start and settings.batch.num_minibatches == 1


@cache
def table() -> tuple[Mapping[str, Any], ...]:
    """The derived rows, as stored."""
    text = files("orchestrator.semantics").joinpath("verdicts.json").read_text(encoding="utf-8")
    return tuple(json.loads(text))


KEYS = ("estimator", "placement", "on_policy", "ratio", "reward_kl_of")


@cache
def _rows() -> Mapping[tuple[object, ...], Mapping[str, Any]]:
    return {tuple(row[key] for key in KEYS): row for row in table()}


def _row(
    estimator: Estimator, placement: Placement, on_policy: bool, ratio: str, reward_kl_of: str
) -> Mapping[str, Any]:
    of = "policy" if on_policy or placement == "loss" else reward_kl_of
    row = _rows().get((estimator, placement, on_policy, ratio, of))
    if row is None:
        raise LaboratoryError(
            f"there is no verdict on {estimator} in {placement} with ratio '{ratio}' and "
            f"reward_kl_of '{of}': the sequence ratio is for a plain estimator in the reward and "
            "for a rho estimator in the loss; use ratio 'token'"
        )
    return row


def _no_kl(kl: Kl, paper: Observation) -> Verdict:
    why = "no KL term" if kl.estimator == "none" else f"{kl.label} with β = 0: no KL term"
    return Verdict(
        objective=Objective.NONE,
        summary=f"{why}: nothing keeps the policy near the reference policy",
        bias=Bias("There is no KL term whose gradient could be biased.", 0.0, 0.0),
        paper=paper,
        equation="0",
        advice=Advice("Keep it as the baseline of the others.", ()),
    )


def _studied_as(kl: Kl, on_policy: bool) -> str:
    """The label of the same gradient in the paper: in the reward `k3+` is k3, and on-policy every
    rho there is 1."""
    estimator: str = kl.estimator
    if kl.placement == "reward":
        estimator = estimator.removesuffix("+")
        if on_policy:
            estimator = estimator.removeprefix("sg_").removeprefix("rho_")
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


def _summary(kl: Kl, naming: Naming, bias: Bias, paper: Observation, on_policy: bool) -> str:
    place = str(kl.placement).replace("_", " ")
    when = "" if on_policy else ", off-policy"
    if naming.kind is Objective.ZERO:
        what = "no gradient in expectation: noise, and no regularisation"
    elif bias.near == bias.far == 0:
        what = f"{naming.words}, unbiased"
    else:
        what = f"{naming.words}; biased by {percent(bias.near)} near the reference policy"
    return f"{kl.estimator} in {place}{when}: {what}. Paper: {paper}"


def percent(share: float) -> str:
    """A share for people: 0.013 -> `1.3%`, 1.483 -> `148%`."""
    return f"{100 * share:.0f}%" if abs(share) >= 0.1 else f"{100 * share:.2g}%"
