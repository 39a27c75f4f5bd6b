"""The most frequent questions about KL terms, by name, each answered with derived numbers.

orchestrator/kl/questions.yaml has the texts and names the configurations. The exact laboratory
derives the objective, bias and noise of the configurations when the answer is printed.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import exp, log, log10, sqrt
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from orchestrator.errors import LaboratoryError
from orchestrator.kl import table
from orchestrator.kl.configuration import KlConfiguration
from orchestrator.kl.estimators import UNCLAMPED, Clamp, EngineWeight, weights
from orchestrator.kl.groups import group_mean, group_std
from orchestrator.kl.table import row_of
from orchestrator.kl.verdicts import PLACEMENTS, percent, sentences
from orchestrator.lab.exact.derivation import FAR, NEAR, NUM_TOKENS, ROUNDING, judged
from orchestrator.lab.exact.figures import Curves, draw_curves, draw_terms
from orchestrator.lab.exact.laboratory import LabSetting, ToyPolicy, estimates, exact
from orchestrator.lab.exact.objectives import gradients
from orchestrator.lab.exact.surrogates import (
    FAR_AHEAD,
    MISMATCH,
    PolicyLoss,
    forces,
)

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
    checked: tuple[str, ...]
    """The conditions under which its sentences were checked."""
    terms: tuple[tuple[KlConfiguration, bool], ...]
    """Pairs of a configuration and a flag, True for on-policy."""
    computed: tuple[Callable[[], Table], ...]
    rows: tuple[Table, ...]
    """Tables of facts that are not computed."""
    estimators: tuple[str, ...]
    """The estimators in the question's picture."""
    curves: Callable[[], list[Curves]] | None
    """Where the picture is not one of estimators, its curves."""


def _question(name: str, texts: Mapping[str, Any]) -> Question:
    """Return a question of questions.yaml, with the ensemble's numbers in its answer."""
    known, curves, fixed = sentences()["conditions"], texts.get("curves"), texts.get("rows")
    return Question(
        name,
        texts["asks"],
        texts["answer"].format_map(_Facts()),
        texts["instead"],
        checked=tuple(known[each] for each in texts["checked"]),
        terms=tuple(map(_configuration, texts.get("terms", ()))),
        computed=(
            *((partial(_forces, texts["forces"]),) if "forces" in texts else ()),
            *(_COMPUTED[each] for each in texts.get("tables", ())),
        ),
        rows=() if fixed is None else ((fixed["columns"], fixed["rows"]),),
        estimators=tuple(texts.get("estimators", ())),
        curves=None if curves is None else _CURVES[curves],
    )


class _Facts(dict[str, str]):
    """The ensemble's medians as texts: `old_policy_ratio_off_near` -> `1.2%`."""

    def __missing__(self, name: str) -> str:
        fact, _, regime = name.rpartition("_")
        return percent(table.fact(fact, regime)[0])


def _configuration(text: str) -> tuple[KlConfiguration, bool]:
    """Return the configuration of `k1.reward off ratio=sequence`, and True if it is on-policy."""
    label, *words = text.split()
    estimator, _, place = label.partition(".")
    options: dict[str, Any] = dict(word.split("=") for word in words if "=" in word)
    if "clamp" in options:
        options["clamp"] = Clamp(float(options["clamp"]), None)
    if "group_size" in options:
        options["group_size"] = int(options["group_size"])
    return KlConfiguration(estimator, PLACEMENTS[place], **options), "off" not in words


def tables(question: Question) -> Iterator[Table]:
    """Compute and yield the tables of an answer."""
    if question.terms:
        yield _TERMS, [_term(*each) for each in question.terms]
    yield from (compute() for compute in question.computed)
    yield from question.rows


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
_EXAMPLES = {"mismatch": MISMATCH, "far_ahead": FAR_AHEAD}


def _forces(texts: Mapping[str, Any]) -> Table:
    """Return the forces of the cases of a question, in one of the laboratory's examples."""
    rows: list[Sequence[str]] = []
    for words, label, options in texts["cases"]:
        estimator, _, place = label.partition(".")
        how = PolicyLoss(**options)
        force = forces(_EXAMPLES[texts["example"]], how, estimator, PLACEMENTS[place])
        term = label + (", corrected" if how.corrects_kl else "")
        numbers = (f"{x:.3g}" for x in (*force.reward, *force.kl))
        rows.append((words, term, *numbers, f"× {force.beta_factor:.3g}"))
    return _FORCES, rows


BETAS = (0.1, 0.01, 0.001)


def difficulties(group_size: int = 8) -> Table:
    """Return the effects of the group's standard deviation on beta, by difficulty of the prompt."""
    rows: list[Sequence[str]] = []
    for success in (0.02, 0.1, 0.3, 0.5, 0.7, 0.9, 0.98):
        of = group_std(success, group_size)
        factors = (of.reward, of.beta_in_loss, of.beta_in_reward, *map(of.over_all, BETAS))
        rows.append((f"{success:g}", *(f"× {each:.3g}" for each in factors), f"{of.equal:.1%}"))
    mean = group_mean(0.5, group_size)
    factors = (mean.reward, mean.beta_in_loss, mean.beta_in_reward, *map(mean.over_all, BETAS))
    rows.append(("any, dr_grpo", *(f"× {each:.3g}" for each in factors), "as above"))
    columns = ("solved with", "reward counts", "β in loss", "β in reward, unequal groups")
    everywhere = (f"all groups, β {beta:g}" for beta in BETAS)
    return (*columns, *everywhere, "equal groups"), rows


def _difficulty_curves(group_size: int = 8) -> list[Curves]:
    rates = [i / 100 for i in range(2, 99)]
    of = [group_std(rate, group_size) for rate in rates]
    counts = {
        "rloo": [1.0] * len(of),
        "beta in the loss": [each.beta_in_loss for each in of],
        "beta in the reward, unequal groups": [each.beta_in_reward for each in of],
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


def _logged_elsewhere() -> Table:
    """Return how far the logged means are from the KL where the samples are not the policy's."""
    rows: list[Sequence[str]] = [
        (
            f"{estimator}, {words}",
            *(
                percent(each)
                for at in ("near", "far")
                for each in table.fact(f"logged_{estimator}_{how}", at)
            ),
        )
        for how, words in (("stale", "stale samples"), ("top_p", "top-p 0.9"))
        for estimator in ("k1", "k3")
    ]
    columns = ("logged mean of", "off by, near (median)", "one of twenty", "far (median)")
    return (*columns, "one of twenty"), rows


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


_COMPUTED: Mapping[str, Callable[[], Table]] = {
    "difficulties": difficulties,
    "moving": _moving,
    "logged": _logged,
    "logged_elsewhere": _logged_elsewhere,
    "betas": _betas,
}
_CURVES: Mapping[str, Callable[[], list[Curves]]] = {
    "difficulty_curves": _difficulty_curves,
    "correction_curves": _correction_curves,
    "moving_curves": _moving_curves,
    "beta_curves": _beta_curves,
}
QUESTIONS = {name: _question(name, texts) for name, texts in sentences("questions").items()}
"""The questions of questions.yaml by name, in its order."""
