"""The answers of `orch explain`: a verdict on a KL term, as plain data and in labelled sentences.

This module does not import NumPy: the stored verdicts need none.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from orchestrator.estimators import NONE, TABLE, choices
from orchestrator.kl.catalogue import Naming
from orchestrator.kl.verdicts import percent, verdict
from orchestrator.settings import AdvantageEstimator, Clip, Kl, Placement

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
