"""The most frequent questions about KL terms, by name, each answered with derived numbers.

A question is data: its text, the answer, a recommendation, and configurations. The exact laboratory
derives the objective, bias and noise of the configurations when the answer is printed. The order
comes from a sample of public GitHub threads, read in November 2026.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import exp, log, log10, sqrt
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from orchestrator.errors import LaboratoryError
from orchestrator.estimators import TABLE
from orchestrator.kl.configuration import KlConfiguration
from orchestrator.kl.estimators import UNCLAMPED, Clamp, EngineWeight, weights
from orchestrator.kl.groups import group_mean, group_std
from orchestrator.kl.table import row_of
from orchestrator.lab.exact.derivation import FAR, NEAR, NUM_TOKENS, ROUNDING, judged
from orchestrator.lab.exact.figures import Curves, draw_curves, draw_terms
from orchestrator.lab.exact.laboratory import LabSetting, ToyPolicy, estimates, exact
from orchestrator.lab.exact.objectives import gradients
from orchestrator.lab.exact.surrogates import (
    FAR_AHEAD,
    MISMATCH,
    PolicyLoss,
    ThreePolicies,
    forces,
)
from orchestrator.settings import Placement

SETTINGS = (
    "Exact, on the laboratory's model: T = 32 near the reference policy (0.08 nats) and far from "
    "it (18 nats), and eight tokens where k of them are kept (0.02 and 23 nats). What corrections "
    "and clips do is of T = 10, a task reward for more ones than zeros, and first order in β. "
    "Other policies have other numbers; the objective with a name is the same for every one."
)
"""The source of the numbers and their limits."""

Table = tuple[Sequence[str], list[Sequence[str]]]
"""Columns, rows."""


@dataclass(frozen=True, slots=True)
class Question:
    """A question with its answer. `tables` computes its numbers."""

    name: str
    asks: str
    answer: str
    instead: str
    terms: tuple[tuple[KlConfiguration, bool], ...] = ()
    """Pairs of a configuration and a flag, True for on-policy."""
    more: Callable[[], Table] | None = None
    estimators: tuple[str, ...] = ()
    """The estimators in the question's picture."""
    curves: Callable[[], list[Curves]] | None = None
    """Where the picture is not one of estimators, its curves."""


def tables(question: Question) -> Iterator[Table]:
    """Compute and yield the tables of an answer."""
    if question.terms:
        yield _TERMS, [_term(*each) for each in question.terms]
    if question.more is not None:
        yield question.more()


def draw(question: Question, path: Path) -> None:
    """Draw the question's picture. Raise LaboratoryError without one, or for an unwritable file."""
    if question.curves is None and not question.estimators:
        raise LaboratoryError(f"'{question.name}' has no picture: its answer is a table")
    if question.curves is None:
        draw_terms(question.estimators, path)
    else:
        draw_curves(question.curves(), path)


_TERMS = ("term", "policy", "its gradient is that of", "bias near", "far", "pull near", "noise")


def _term(configuration: KlConfiguration, on_policy: bool) -> Sequence[str]:
    row = row_of(judged(configuration, on_policy=on_policy))
    return (
        configuration.label,
        "on" if on_policy else "off",
        row.naming.formula + (", where no bound holds" if configuration.clamp != UNCLAMPED else ""),
        *(f"{100 * each:.3g}%" for each in (row.bias_near, row.bias_far, row.pull_near)),
        f"{row.noise_near:.2g}",
    )


_FORCES = ("policy loss", "KL term", "pull of reward", "off by", "pull of KL", "off by", "β counts")


def _forces(who: ThreePolicies, cases: Sequence[tuple[str, PolicyLoss, str]]) -> Table:
    rows: list[Sequence[str]] = []
    for words, how, estimator in cases:
        placement: Placement = "reward" if estimator == "k1" else "loss"
        force = forces(who, how, estimator, placement)
        numbers = (*force.reward, *force.kl, force.beta_factor)
        term = f"{estimator}.{placement}" + (", corrected" if how.corrects_kl else "")
        rows.append((words, term, *(f"{x:.3g}" for x in numbers[:-1]), f"× {numbers[-1]:.3g}"))
    return _FORCES, rows


def corrections() -> Table:
    """Return the effects of engine corrections on beta."""
    cases = []
    for words, how in (
        ("no correction", {}),
        ("TIS, token ≤ 2", {"correction": "tis_token"}),
        ("TIS, token ≤ 1.05", {"correction": "tis_token", "most": 1.05}),
        ("TIS, sequence ≤ 2", {"correction": "tis_sequence"}),
        ("MIS, token ≤ 1.05", {"correction": "mis_token", "most": 1.05}),
        ("IcePop, token 0.5 to 5", {"correction": "mis_token", "least": 0.5, "most": 5.0}),
        ("MIS, sequence ≤ 1.1", {"correction": "mis_sequence", "most": 1.1}),
        ("geometric mean 0.98 to 1.02", {"correction": "geometric", "least": 0.98, "most": 1.02}),
    ):
        options: dict[str, Any] = how
        cases.append((words, PolicyLoss(**options), "rho_k3"))
        if options:
            cases.append((words, PolicyLoss(**options, corrects_kl=True), "rho_k3"))
    return _forces(MISMATCH, cases)


def clips() -> Table:
    """Return the effects of clips and ratio levels on beta, in the reward and in the loss."""
    return _forces(
        FAR_AHEAD,
        [
            (words, how, estimator)
            for words, how in (
                ("token ratio, no clip", PolicyLoss()),
                ("PPO clip 0.2", PolicyLoss("ppo_clip")),
                ("CISPO, bounded at 0.2", PolicyLoss("cispo")),
                ("GSPO, clip 0.2", PolicyLoss("gspo")),
                ("GSPO, clip 3e-4 and 4e-4", PolicyLoss("gspo", 3e-4, 4e-4)),
            )
            for estimator in ("k1", "rho_k3")
        ],
    )


def difficulties(group_size: int = 8) -> Table:
    """Return the effects of the group's standard deviation on beta, by difficulty of the prompt."""
    rows: list[Sequence[str]] = []
    for success in (0.02, 0.1, 0.3, 0.5, 0.7, 0.9, 0.98):
        scale = group_std(success, group_size)
        numbers = (f"× {scale.beta_in_loss:.3g}", f"× {scale.beta_in_reward:.3g}")
        rows.append((f"{success:g}", f"× {scale.reward:.3g}", *numbers, f"{scale.equal:.1%}"))
    mean = group_mean(0.5, group_size)
    factors = (f"× {x:.3g}" for x in (mean.reward, mean.beta_in_loss, mean.beta_in_reward))
    rows.append(("any, dr_grpo", *factors, "as above"))
    columns = ("solved with", "reward counts", "β in loss", "β in reward", "equal groups")
    return columns, [*rows]


def _difficulty_curves(group_size: int = 8) -> list[Curves]:
    rates = [i / 100 for i in range(2, 99)]
    of = [group_std(rate, group_size) for rate in rates]
    counts = {
        "rloo": [1.0] * len(of),
        "beta in the loss": [each.beta_in_loss for each in of],
        "beta in the reward": [each.beta_in_reward for each in of],
    }
    equal = {
        f"groups of {size}": [group_std(rate, size).equal for rate in rates]
        for size in (group_size, 2 * group_size, group_size // 2)
    }
    axis = "success rate of the prompt"
    return [
        Curves(f"what beta counts by, groups of {group_size}", axis, rates, counts),
        Curves("share of groups with equal rewards", axis, rates, equal, (0, 1)),
    ]


def _correction_curves() -> list[Curves]:
    """Return weights by a token's log-ratio, and what beta counts by, by the upper bound."""
    log_ratios = [i / 50 for i in range(-100, 101)]
    ratio = [exp(x) for x in log_ratios]
    kinds = (
        ("TIS, at most 2", EngineWeight("tis_token", 0.0, 2.0)),
        ("IcePop, 0.5 to 5", EngineWeight("mis_token", 0.5, 5.0)),
        ("rejection, 0.5 to 5", EngineWeight("reject_token", 0.5, 5.0)),
    )
    by_ratio: dict[str, Sequence[float]] = {"the ratio itself": ratio}
    for name, weight in kinds:
        by_ratio[name] = weights(weight, np.array(log_ratios)[:, None])[:, 0].tolist()
    bounds = [1.01 + i / 200 for i in range(39)]
    by_bound: dict[str, Sequence[float]] = {"no correction": [_counts("none", 2.0)] * len(bounds)}
    for name, kind in (("TIS, token", "tis_token"), ("MIS, token", "mis_token")):
        by_bound[name] = [_counts(kind, bound) for bound in bounds]
    by_bound["MIS, on the KL too"] = [_counts("mis_token", bound, True) for bound in bounds]
    return [
        Curves("weight of a token", "log proximal policy / engine", log_ratios, by_ratio, (0, 6)),
        Curves("what beta of rho_k3 in the loss counts by", "upper bound", bounds, by_bound),
    ]


def _counts(kind: Any, most: float, corrects_kl: bool = False) -> float:
    how = PolicyLoss(correction=kind, most=most, corrects_kl=corrects_kl)
    return forces(MISMATCH, how, "rho_k3", "loss").beta_factor


class _Pull(NamedTuple):
    """The gradient of k1 in the reward towards a reference, in lengths of the frozen one's."""

    pull: float
    """Its projection on the gradient towards the frozen reference policy."""
    off: float
    noise: float
    """Standard deviation of one sequence's gradient."""


def _pulled(share: float) -> _Pull:
    """Return the pull of a reference that went this share of the way to the policy."""
    policy, reference = (np.array(each) for each in FAR[:2])
    frozen = _at(policy, reference)
    true = gradients(frozen)["sequence_reverse_kl"]
    moved = _at(policy, reference + share * (policy - reference))
    term = exact(moved, [KlConfiguration("k1", "reward")])
    mean, size = term.mean[0], float(true @ true)
    off = float(np.linalg.norm(mean - true)) / sqrt(size)
    return _Pull(
        max(0.0, round(float(mean @ true) / size, 9)),
        off if off > ROUNDING else 0.0,
        sqrt(float(term.variance[0].sum()) / size),
    )


def _at(policy: Any, reference: Any) -> LabSetting:
    return LabSetting(ToyPolicy(*policy), ToyPolicy(*reference), NUM_TOKENS)


def _moving() -> Table:
    rows = []
    for share in (0.0, 0.2, 0.6, 0.9, 1.0):
        of = _pulled(share)
        rows.append((f"{share:g}", f"{of.pull:.3g}", f"{100 * of.off:.3g}%", f"{of.noise:.2g}"))
    columns = ("share of the way to the policy", "pull towards the frozen reference", "bias")
    return (*columns, "noise"), [*rows]


def _moving_curves() -> list[Curves]:
    shares = [i / 20 for i in range(21)]
    of = [_pulled(share) for share in shares]
    pulls = {"frozen reference": [1.0] * len(of), "pull towards it": [each.pull for each in of]}
    others = {
        "noise, frozen": [of[0].noise] * len(of),
        "bias": [each.off for each in of],
        "noise": [each.noise for each in of],
    }
    axis = "share of the way from the reference to the policy"
    return [
        Curves("pull of k1 in the reward", axis, shares, pulls),
        Curves("bias and noise, in lengths of the frozen gradient", axis, shares, others),
    ]


def _logged() -> Table:
    at = [estimates(LabSetting(where[0], where[1], NUM_TOKENS)) for where in (NEAR, FAR)]
    rows = []
    for name in at[0]:
        parts = [(each[name][0] / each["k1"][0], each[name][1] ** 0.5) for each in at]
        rows.append((name, *(f"{x:.3g}" for part in parts for x in part)))
    columns = ("logged mean of", "of the KL, near", "deviation", "of the KL, far", "deviation")
    return columns, [*rows]


def _best_rate(success: float, beta: float) -> float:
    """Return the success rate of the best policy of E[R] - beta KL."""
    return 1 / (1 + exp(-min(log(success / (1 - success)) + 1 / beta, 700)))


def _betas() -> Table:
    rows = []
    for beta in (1.0, 0.3, 0.1, 0.05, 0.01):
        ends = [_best_rate(p, beta) for p in (0.01, 0.1, 0.5)]
        rows.append((f"{beta:g}", *(f"{end:.3g}" for end in ends)))
    return ("β", "from 0.01 to", "from 0.1 to", "from 0.5 to"), [*rows]


def _beta_curves() -> list[Curves]:
    rates = [i / 100 for i in range(1, 100)]
    betas = [10 ** (i / 25 - 2) for i in range(51)]
    by_rate = {"before": rates} | {
        f"β = {beta:g}": [_best_rate(p, beta) for p in rates] for beta in (1.0, 0.3, 0.1)
    }
    by_beta = {f"from {p:g}": [_best_rate(p, beta) for beta in betas] for p in (0.5, 0.1, 0.01)}
    return [
        Curves("best success rate", "success rate of the reference policy", rates, by_rate),
        Curves("best success rate, by log10 β", "log10 β", [log10(b) for b in betas], by_beta),
    ]


def _of(label: str, on: bool = True, **how: Any) -> tuple[KlConfiguration, bool]:
    estimator, _, place = label.partition(".")
    placement: Any = "reward_and_loss" if place == "both" else place
    return KlConfiguration(estimator, placement, **how), on


_ALL = (
    Question(
        "deepseek-v3.2",
        "k3 in the loss has the wrong gradient: does DeepSeek-V3.2's ratio repair it?",
        "Yes, for tokens: k3 weighted by π/μ, with the ratio's gradient, is the token-level "
        "reverse KL at the sampled states. It leaves out what a token does to later states.",
        "rho_k3 in the loss (TRL ≥ 1.10, its default); rb in both for the sequence's KL, or k1 in "
        "the reward where no library has rb",
        (_of("k3.loss"), _of("rho_k3.loss"), _of("rho_k3.loss", False), _of("rb.both")),
        estimators=("rho_k3",),
    ),
    Question(
        "kl-twice",
        "Which KL is on: in the reward, in the loss, or twice?",
        "Both at once is what autograd of E[KL] asks for: k1 in both is k1 in the reward plus "
        "noise, k3 in both is unbiased, and k2 in both is the mean of k2, not the KL.",
        "one placement: k1 in the reward; orch audit says which a launch has",
        (_of("k1.reward"), _of("k1.loss"), _of("k1.both"), _of("k2.both"), _of("k3.both")),
        estimators=("k1",),
    ),
    Question(
        "tis+kl",
        "What does a correction of the engine's mismatch (TIS, MIS, IcePop) do to the KL?",
        "It multiplies the policy loss. The rows below are each term on another policy's samples "
        "without any weight, then what the weights make of reward and KL: where it leaves a KL in "
        "the loss alone, what it takes from the policy loss makes β count more.",
        "the same correction on the KL in the loss, or a KL in the reward, which it multiplies too",
        (_of("k1.reward", False), _of("k3.loss", False), _of("rho_k3.loss", False)),
        corrections,
        curves=_correction_curves,
    ),
    Question(
        "opd-top-k",
        "On-policy distillation with a KL over the top k tokens: in the loss or in the reward?",
        "A truncated sum is no divergence: its gradient also moves mass out of the policy's k "
        "tokens (reverse), or into the teacher's (forward). With the tail as one token it is one. "
        "In the advantage of its own token a KL over the vocabulary depends on no action: its "
        "gradient is zero on-policy; charged to the whole response it lacks the token's own part. "
        "Jensen-Shannon is a quarter of the KL near the teacher.",
        "full in the loss, or top-k with its tail; rb in both for the sequence's KL. A spec names "
        "the teacher in kl.reference; its task_reward: false leaves the KL alone to train",
        (
            _of("top4.loss"),
            _of("top4_tail.loss"),
            _of("top4_forward.loss"),
            _of("top4_js.loss"),
            _of("full.loss"),
            _of("full_forward.loss"),
            _of("js.loss"),
            _of("full.reward"),
            _of("full_forward.reward"),
            _of("js.reward"),
            _of("full.reward", charge="token"),
            _of("rb.both"),
        ),
        estimators=tuple(name for name, each in TABLE.items() if each.top),
    ),
    Question(
        "clamps",
        "A clamp keeps the KL from overflowing: what else does it do?",
        "Beyond it a loss has no gradient: the pull stops where the policy is farthest. Here it is "
        "±1 on the log-ratio, tighter than any library's, as the model has no token beyond ±20.",
        "k2 or rho_k3 without a clamp of the value; bound the log-ratio at 20, not the estimate",
        (
            _of("k3.loss"),
            _of("k3.loss", clamp=Clamp(1.0, None)),
            _of("k1.reward"),
            _of("k1.reward", clamp=Clamp(1.0, None)),
        ),
        estimators=("k3",),
    ),
    Question(
        "same-settings",
        "The same settings, other curves in another library?",
        "A KL in the reward is charged to the whole response (verl, SkyRL), to the token and those "
        "before it (OpenRLHF), or to its own token (Prime-RL): one name, three gradients.",
        "orch compare --configs for two libraries' launches; k1_to_go where one may choose",
        (
            _of("k1.reward"),
            _of("k1_to_go.reward"),
            _of("k1.reward", charge="token"),
            _of("k1.reward", centring="same_batch_mean", group_size=8),
        ),
        estimators=("k1",),
    ),
    Question(
        "collapse",
        "Is it the KL that collapses the run?",
        "k1 in the loss pulls nowhere on-policy, and away from its samples off-policy; k3 in the "
        "reward is no KL. The paper saw the first collapse with four updates a batch, "
        "the second on-policy.",
        "k1 in the reward; rho_k3 in the loss off-policy",
        (
            _of("k1.loss"),
            _of("k1.loss", False),
            _of("k3.reward"),
            _of("k3.reward", False),
            _of("k1.reward", False),
        ),
        estimators=("k1",),
    ),
    Question(
        "moving-reference",
        "What does a reset or an average of the reference policy (EMA) leave of the KL?",
        "The terms below are exact towards the reference that they are given, and the pull is "
        "towards where the reference is now: after a reset it is zero, and the sampler "
        "as the reference holds back one update, not the run.",
        "a frozen reference where β is to bound the whole run (experiments/reference_reset.yaml)",
        (_of("k1.reward"), _of("rb.both")),
        _moving,
        curves=_moving_curves,
    ),
    Question(
        "logged-kl",
        "What does the logged KL mean?",
        "The means of k1 and k3 are the KL, those of k2 and abs are not; k3 is never negative, and "
        "its deviation is not always smaller. A logged mean does not say what is followed: the "
        "gradients of the same three in the loss come first.",
        "the mean of k1 over responses, or of full, which has no noise of the token",
        (_of("k1.loss"), _of("k2.loss"), _of("k3.loss")),
        _logged,
        estimators=("k3",),
    ),
    Question(
        "which-beta",
        "Which β?",
        "The optimum of E[R] - β KL, for a reward of 0 or 1, takes a prompt's success rate p to "
        "sigmoid(logit p + 1/β): exact for one right answer, whatever the model. "
        "That is of a KL term without bias; of another β counts by its pull.",
        "the largest β whose column holds the accuracy that is asked for; orch tune searches it",
        (_of("k1.reward"), _of("rb.both"), _of("rho_k3.loss"), _of("k2.loss"), _of("k3.loss")),
        _betas,
        curves=_beta_curves,
    ),
    Question(
        "gspo+k3",
        "GSPO's ratio on k3: which objective is that?",
        "None with a name: the geometric mean gives a token the estimates of all others, over T.",
        "the token ratio on the KL, whatever the policy loss has; or the product over the sequence",
        (
            _of("rho_k3.loss", ratio="sequence_mean"),
            _of("rho_k3.loss", False, ratio="sequence_mean"),
            _of("rho_k3.loss", False),
            _of("rho_k3.loss", False, ratio="sequence"),
        ),
        clips,
        estimators=("rho_k3",),
    ),
    Question(
        "group-std",
        "GRPO divides by the group's standard deviation: what does that make of β?",
        "It divides the reward and not a KL in the loss, whose β counts by the deviation: less on "
        "hard and easy prompts. A KL in the reward is divided too; in groups of equal rewards it "
        "alone is scaled to unit deviation, whatever β.",
        "rloo, or dr_grpo, whose one factor is the same for every prompt (its mean contains the "
        "rollout itself; its constant length divides reward and KL alike)",
        more=difficulties,
        curves=_difficulty_curves,
    ),
)
QUESTIONS = {question.name: question for question in _ALL}
"""By name: first the ten most frequent questions in order, then the questions on GSPO and GRPO."""
