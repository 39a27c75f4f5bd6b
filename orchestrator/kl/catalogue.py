"""The objectives a KL term's gradient may belong to: their kinds, words and formulas.

q is the policy, p the reference policy, μ the rollout policy; c the state (the tokens so far),
which token-level objectives hold fixed; w = q / μ of a token. Plain data without NumPy, so that
`orch plan` can name objectives cheaply.
"""

from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

from orchestrator.settings import Estimator


class ObjectiveKind(StrEnum):
    """The kind of objective whose gradient a KL term is, in expectation."""

    SEQUENCE_REVERSE_KL = "sequence_reverse_kl"
    TOKEN_REVERSE_KL = "token_reverse_kl"  # noqa: S105  (not a password)
    SEQUENCE_FORWARD_KL = "sequence_forward_kl"
    TOKEN_FORWARD_KL = "token_forward_kl"  # noqa: S105  (not a password)
    ZERO = "zero"
    SURROGATE = "surrogate"
    """Some other objective, which the words name."""
    MIXTURE = "mixture"
    """A signed sum of objectives."""
    NONE = "none"
    """There is no KL term."""
    UNKNOWN = "unknown"
    """No combination of the candidates; only a probe can end here."""


class Candidate(NamedTuple):
    """An objective: its kind, its name in words, its gradient as a formula."""

    kind: ObjectiveKind
    words: str
    formula: str


PLAIN: Mapping[Estimator, str] = {"k1": "k1", "k2": "k2", "k3": "k3", "abs": "|log r|"}
"""The plain estimators, as formulas write them."""

SURROGATES: tuple[Estimator, ...] = ("k2", "abs")
"""Those whose mean is not the reverse KL."""


def _kl_objectives() -> Iterator[tuple[str, Candidate]]:
    o = ObjectiveKind
    yield (
        "sequence_reverse_kl",
        Candidate(o.SEQUENCE_REVERSE_KL, "sequence-level reverse KL", "∇ KL(q‖p)"),
    )
    yield (
        "sequence_forward_kl",
        Candidate(o.SEQUENCE_FORWARD_KL, "sequence-level forward KL", "∇ KL(p‖q)"),
    )
    for at, states, where in _STATES:
        head = f"Σ_t E_(c~{states}) ∇"
        yield (
            f"token_reverse_kl{at}",
            Candidate(
                o.TOKEN_REVERSE_KL, f"token-level reverse KL{where}", f"{head} KL(q(·|c)‖p(·|c))"
            ),
        )
        yield (
            f"token_forward_kl{at}",
            Candidate(
                o.TOKEN_FORWARD_KL, f"token-level forward KL{where}", f"{head} KL(p(·|c)‖q(·|c))"
            ),
        )


_STATES = (("", "q", ""), ("@rollout", "μ", " at the rollout policy's states"))


def _surrogates() -> Iterator[tuple[str, str, str]]:
    """Key, words, formula of every other objective."""
    for k in SURROGATES:
        yield f"mean_{k}", f"mean of {PLAIN[k]} over sequences", f"∇ E_q Σ_t {PLAIN[k]}"
    for k, name in PLAIN.items():
        words = f"mean of the {name} the rollout policy had, held fixed"
        yield f"frozen_{k}", words, f"∇ E_q Σ_t sg({name} of μ)"
    for at, states, where in _STATES:
        head = f"Σ_t E_(c~{states}) ∇"
        yield (
            f"total_variation{at}",
            f"token-level total variation (twice){where}",
            f"{head} Σ_y |q - p|",
        )
        for k in SURROGATES:
            words = f"token-level mean of {PLAIN[k]}{where}"
            yield f"token_{k}{at}", words, f"{head} E_(y~q(·|c)) {PLAIN[k]}"
    unlikelihood = "unlikelihood of the rollout policy's samples"
    yield "sampled_k1", unlikelihood, "∇ E_μ log q = -∇ KL(μ‖q)"
    for k in ("k2", "k3", "abs"):
        words = f"mean of {PLAIN[k]} under the frozen rollout policy"
        yield f"sampled_{k}", words, f"∇ E_μ Σ_t {PLAIN[k]}"
    for key, (cost, whose) in _COSTS.items():
        words = f"PPO's local surrogate with cost {cost}{' of the rollout policy' if whose else ''}"
        formula = f"Σ_t E_(c~μ) ∇ E_(y~q(·|c)) [sg({cost}{whose}) + future under μ]"
        yield key, words, formula


_COSTS = {
    **{f"ppo_{k}": (name, "") for k, name in PLAIN.items()},
    **{f"ppo_rho_{k}": (f"w {name}", "") for k, name in PLAIN.items()},
    **{f"ppo_{k}@rollout_kl": (name, " of μ") for k, name in PLAIN.items()},
}

CATALOGUE: Mapping[str, Candidate] = {
    **dict(_kl_objectives()),
    **{key: Candidate(ObjectiveKind.SURROGATE, *rest) for key, *rest in _surrogates()},
}
"""Every candidate by its key, the plainest objectives first."""


class Naming(NamedTuple):
    """`gradient = scale * sum of (sign * candidate)`; no terms and kind unknown if none fits."""

    kind: ObjectiveKind
    terms: tuple[tuple[int, str], ...]
    scale: float = 1.0

    @property
    def words(self) -> str:
        return self._joined([CATALOGUE[key].words for _, key in self.terms])

    @property
    def formula(self) -> str:
        return self._joined([CATALOGUE[key].formula for _, key in self.terms])

    def _joined(self, names: Sequence[str]) -> str:
        if self.kind is ObjectiveKind.ZERO:
            return "0"
        if not names:
            return "no objective orch knows"
        signed = [
            f"{'-' if sign < 0 else '+'} {name}"
            for (sign, _), name in zip(self.terms, names, strict=True)
        ]
        text = " ".join(sorted(signed, key=lambda each: each[0])).removeprefix("+ ")
        return text if self.scale == 1 else f"{self.scale:.6g} × ({text})"
