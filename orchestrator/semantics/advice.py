"""The equation behind a verdict, what else touches the term, and what to use instead."""

from dataclasses import dataclass

from orchestrator.semantics.catalogue import Naming, Objective
from orchestrator.settings import AdvantageEstimator, Clip, Estimator, Kl, Placement


@dataclass(frozen=True, slots=True)
class Advice:
    """What to do, and the labels of what to use instead (none: keep it)."""

    text: str
    use: tuple[str, ...]


ON_POLICY = ("k1.reward", "k2.loss")
OFF_POLICY = ("rho_k3.loss", "k1.reward")

_SOURCES: dict[str, str] = {
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
"""Where the equation can be read, on-policy or with the token ratio in the loss."""


def equation(
    estimator: Estimator, placement: Placement, on_policy: bool, ratio: str, naming: Naming
) -> str:
    """The expected gradient of the term = the gradient it is, and where that can be read."""
    samples = "q" if on_policy else "μ"
    weighted = "rho" in estimator
    if ratio == "sequence":
        reward, loss = "Π_t w_t (Σ_t KL_t)(Σ_t s_t)", "Σ_t ∇KL_t"
    else:
        reward = "(Σ_t KL_t)(Σ_t s_t)" if on_policy else "(Σ_t KL_t)(Σ_t w_t s_t)"
        loss = "Σ_t ∇KL_t"
    left = {"reward": reward, "loss": loss, "reward_and_loss": f"{reward} + {loss}"}[placement]
    known = ratio == "token" and (on_policy or (weighted and placement == "loss"))
    source = _SOURCES.get(f"{estimator}.{placement}") if known else None
    told = f"KL_t = {estimator}; {source or 'the laboratory'}"
    return f"E_{samples}[{left}] = {naming.formula}   ({told})"


def advise(
    estimator: Estimator, placement: Placement, on_policy: bool, kind: Objective, pull: float
) -> Advice:
    """What to use instead, by the objective found and its pull near the reference policy."""
    if on_policy:
        return _on_policy(kind, pull)
    return _off_policy(estimator, placement, kind, pull)


def _on_policy(kind: Objective, pull: float) -> Advice:
    if kind is Objective.SEQUENCE_REVERSE_KL:
        return Advice("Keep it while training stays on-policy.", ())
    if kind is Objective.TOKEN_REVERSE_KL:
        return Advice(
            "Keep it for a reverse KL of each token at the states visited; it leaves out what a "
            "token does to later states. For the sequence's reverse KL use k1 in the reward.",
            ("k1.reward",),
        )
    if kind is Objective.TOKEN_FORWARD_KL:
        return Advice(
            "It pulls towards covering the reference policy, token by token, and does so "
            "steadily. For a reverse KL use k1 in the reward, or k2 in the loss.",
            ON_POLICY,
        )
    return Advice("Use k1 in the reward, or k2 in the loss." + _warning(pull), ON_POLICY)


def _off_policy(estimator: Estimator, placement: Placement, kind: Objective, pull: float) -> Advice:
    if kind in (Objective.SEQUENCE_REVERSE_KL, Objective.TOKEN_REVERSE_KL):
        return Advice("Keep it: the ratio corrects for the rollout policy's tokens.", ())
    if placement == "reward" and estimator.removesuffix("+") == "k1":
        return Advice(
            "Usable: the token ratio makes it PPO's surrogate of the sequence reverse KL, whose "
            "bias goes to zero with the staleness. Keep the staleness small, or use rho_k3 in "
            "the loss.",
            ("rho_k3.loss",),
        )
    return Advice("Use rho_k3 in the loss, or k1 in the reward." + _warning(pull), OFF_POLICY)


WEAK = 0.2
"""Below this share of the reverse KL's pull near the reference policy, a term hardly counts."""


def _warning(pull: float) -> str:
    if pull < 0:
        return " It pushes the policy away from the samples it learns from."
    return " It hardly regularises near the reference policy." if pull < WEAK else ""


def of_old_samples(kl: Kl, clip: Clip | None, ratio: str, reward_kl_of: str) -> list[str]:
    """What the importance ratio, the clip and the lag do to the term, off-policy."""
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
    if kl.placement != "reward" and "rho" not in kl.estimator:
        notes.append("a loss without an importance ratio is a mean over the rollout policy")
    return notes


def of_advantage(kl: Kl, advantage: AdvantageEstimator, group_size: int | None) -> list[str]:
    """What the baseline and the normalisation of the advantage do to the term."""
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
