"""The paper's observations of training with each KL configuration, and its equation numbers.

The paper is A Comedy of Estimators (arXiv 2512.21852v1). On-policy: Qwen2.5-7B and
Llama-3.1-8B-Instruct on MATH, β 0.05 to 1, RLOO (§4.1). Minibatches: Qwen2.5-7B, four updates a
batch (Fig. 2 centre, Fig. 11). Async: level 10, β 0.005, Dr. GRPO (§4.2).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

Regime = Literal["on_policy", "minibatches", "async"]
Behaviour = Literal["stable", "unstable", "collapse", "not studied"]

TRAINED_WITH: Mapping[Regime, str] = {
    "on_policy": "rloo",
    "minibatches": "rloo",
    "async": "dr_grpo",
}
"""Experiment -> the advantage of its runs."""

SEVERITY: tuple[Behaviour, ...] = ("not studied", "stable", "unstable", "collapse")


@dataclass(frozen=True, slots=True)
class Observation:
    """A behaviour of training, its details, and the section and figure of the paper."""

    behaviour: Behaviour
    text: str
    where: str
    of: str = ""
    """The estimator that the paper trained, if it is another with the same gradient."""
    under: str = ""
    """The advantages that the paper trained with, if they are not the one asked for."""

    @property
    def source(self) -> str:
        """Return what the paper trained, if it is not what was asked for, and where it says so."""
        trained = (self.of and f"as {self.of}", self.under and f"under {self.under}")
        return ", ".join(filter(None, (*trained, self.where)))

    def __str__(self) -> str:
        return f"{self.behaviour} ({self.source})" if self.source else self.behaviour

    def inherited_from(self, estimator: str) -> "Observation":
        """Return the observation as one of another estimator, which the paper did train."""
        return self if self is NOT_STUDIED else replace(self, of=estimator)

    def asked_under(self, advantage: str, regimes: tuple[Regime, ...]) -> "Observation":
        """Return the observation with the paper's advantages, if `advantage` is another."""
        trained = " and ".join(dict.fromkeys(TRAINED_WITH[each] for each in regimes))
        same = self is NOT_STUDIED or trained == advantage
        return self if same else replace(self, under=trained)


NOT_STUDIED = Observation("not studied", "The paper does not train with this configuration.", "")

OBSERVATIONS: Mapping[tuple[str, Regime], Observation] = {
    ("k1.reward", "on_policy"): Observation(
        "stable",
        "Stable at every β; best in and out of domain, better at smaller β.",
        "§4.1, Fig. 4-6",
    ),
    ("k1.reward", "minibatches"): Observation(
        "stable", "Stable with four updates a batch.", "App. D.2, Fig. 11"
    ),
    ("k1.reward", "async"): Observation(
        "stable",
        "When asynchronous it steadies training that is unstable without KL.",
        "§4.2, Fig. 7-8",
    ),
    ("k1.loss", "on_policy"): Observation(
        "unstable",
        "Qwen unstable at β 0.3 and 1 (the caption of Fig. 2 says 0.1 and 1), Llama at every β "
        "but 0.1; where stable, as without KL.",
        "§4.1, Fig. 2",
    ),
    ("k1.loss", "minibatches"): Observation(
        "collapse", "Collapses at every β with four updates a batch.", "§4.1, Fig. 2 centre"
    ),
    ("k1.loss", "async"): Observation("unstable", "Unstable when asynchronous.", "§4.2, Fig. 7"),
    ("k3.reward", "on_policy"): Observation(
        "collapse", "Collapses completely or partly at every β, both models.", "§4.1, Fig. 3"
    ),
    ("k3.reward", "minibatches"): Observation(
        "unstable", "More unstable than with one update a batch.", "App. D.2"
    ),
    ("k3.reward", "async"): Observation("unstable", "Unstable when asynchronous.", "§4.2, Fig. 7"),
    ("k3.loss", "on_policy"): Observation(
        "stable",
        "Stable at every β, but scores below k1 in the reward, in and out of domain.",
        "§4.1, Fig. 4-6",
    ),
    ("k3.loss", "async"): Observation(
        "stable", "Stable, but scores below k1 in the reward.", "§4.2, Fig. 7-8"
    ),
    ("k1.both", "on_policy"): Observation(
        "stable", "As k1 in the reward, above k3 in the loss (β 0.1).", "§4.3, Fig. 9"
    ),
    ("k3.both", "on_policy"): Observation(
        "stable", "As k1 in the reward, above k3 in the loss (β 0.1).", "§4.3, Fig. 9"
    ),
    ("none", "on_policy"): Observation(
        "stable", "The baseline of Fig. 2; k1 in the loss does as well where it is stable.", "§4.1"
    ),
    ("none", "async"): Observation(
        "unstable", "Unstable without any KL term in some cases.", "§4.2, Fig. 7"
    ),
}
"""(label, regime) -> observation. The label is `k1.reward` etc., or `none` without a KL term."""


def observation(label: str, regimes: tuple[Regime, ...]) -> Observation:
    """Return the paper's observation in these regimes: the worst behaviour with all texts.

    Return NOT_STUDIED if the paper has none.
    """
    studied = [OBSERVATIONS[label, each] for each in regimes if (label, each) in OBSERVATIONS]
    if not studied:
        return NOT_STUDIED
    worst = max(studied, key=lambda each: SEVERITY.index(each.behaviour))
    if len(studied) == 1:
        return worst
    text = " ".join(each.text for each in studied)
    return Observation(worst.behaviour, text, "; ".join(each.where for each in studied))


EQUATIONS: Mapping[str, str] = {
    "k1.reward": "paper eq. 12, 32",
    "k1.loss": "paper eq. 13, 31",
    "k3.reward": "paper eq. 15, 45",
    "k3.loss": "paper eq. 16, 41",
    "k1.reward_and_loss": "paper eq. 6, 29",
    "k2.reward_and_loss": "paper eq. 6, 29",
    "k3.reward_and_loss": "paper eq. 6, 29",
    "k2.reward": "blog §7.1, and the laboratory",
    "k2.loss": "blog §6.3, for tokens",
    "rho_k1.loss": "blog §6.2, for tokens",
    "rho_k2.loss": "blog §6.2, for tokens",
    "sg_rho_k2.loss": "blog §6.2, for tokens",
    "rho_k3.loss": "blog §6.2, for tokens",
}
"""Label -> equations of the expected gradient, on-policy or with the token ratio in the loss."""
