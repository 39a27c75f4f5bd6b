"""Measure what stands beside a KL term: ratio levels, controllers of beta, references that move.

Each is asked of a cell where the backend accepts one, and else of a launch in the library's own
words. The answers are compared with closed forms; one that fits none is `?`.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from orchestrator import plugins
from orchestrator.errors import UnsupportedSetting
from orchestrator.estimators import entry
from orchestrator.kl.laboratory import FloatTable
from orchestrator.probes.cells import BETA, fitting, term, translated
from orchestrator.probes.protocol import Inquiry, ProbeBatch, as_array, two_groups
from orchestrator.probes.weights import CLOSE, batches, rollouts
from orchestrator.settings import BetaController, Kl, ReferencePolicy, Settings

Answered = Mapping[Any, Mapping[str, Any]]
HORIZON, SHARE, EVERY, STEPS = 100, 0.6, 2, 4
TOKEN_MEAN, OWN = "all tokens", "each response's own tokens"


class AskedBeside(NamedTuple):
    """A launch whose ratio level, controller or reference is measured."""

    subject: str
    """level, controller or reference."""
    name: str
    is_cell: bool
    estimator: str | None = None
    """For a ratio level: the estimator of the KL in the loss."""


def ask_beside(inquiry: Inquiry) -> list[AskedBeside]:
    """Add the questions about all three. Return what was asked."""
    named = batches()
    moved = named["weights, moved"]
    at_old = {key: value for key, value in moved.items() if key != "engine"}
    inquiry.batch("level", ProbeBatch(**at_old))  # type: ignore[typeddict-item]  # a batch less a key
    of_kl = {**at_old, "ref": rollouts().reference.tolist(), "advantages": (0 * _mask()).tolist()}
    inquiry.batch("level, KL", ProbeBatch(**of_kl))  # type: ignore[typeddict-item]  # as above
    inquiry.batch("controlled", _controlled())
    return [*_levels(inquiry), *_controllers(inquiry), *_references(inquiry)]


def _mask() -> FloatTable:
    return rollouts().mask


def _levels(inquiry: Inquiry) -> Iterator[AskedBeside]:
    probes = plugins.probes(inquiry.library)
    for label, own in getattr(probes, "ratio_levels", lambda _: {})(inquiry.version).items():
        launch = inquiry.raw({"argv": own["argv"], "files": own["files"]})
        for batch in ("level", "level, KL")[: 1 + (own["estimator"] is not None)]:
            inquiry.question(("level", label, batch), "loss", launch, batch)
        yield AskedBeside("level", label, False, own["estimator"])


def _controllers(inquiry: Inquiry) -> Iterator[AskedBeside]:
    probes = plugins.probes(inquiry.library)
    own = getattr(probes, "controller", None)
    for i, target in enumerate(targets()):
        kl = Kl(
            estimator="k1",
            placement="reward",
            beta=BETA,
            controller=BetaController(target=target, horizon=HORIZON),
        )
        wanted = _accepted(inquiry, kl)
        if wanted is not None:
            launch = inquiry.launch(translated(wanted))
        elif own is not None:
            launch = inquiry.raw(own(inquiry.version, target, HORIZON, BETA))
        else:
            return
        inquiry.question(("controller", i), "controller", launch, "controlled")
    name = "kl.controller" if wanted is not None else probes.CONTROLLER
    yield AskedBeside("controller", name, wanted is not None)


def _references(inquiry: Inquiry) -> Iterator[AskedBeside]:
    for label in ("k3", "k2"):
        kl = term(label, "loss").model_copy(
            update={"reference": ReferencePolicy(kind="ema", share=SHARE, every_steps=EVERY)}
        )
        wanted = _accepted(inquiry, kl)
        if wanted is None:
            continue
        launch = inquiry.launch(translated(wanted))
        inquiry.question(("reference",), "reference", launch, "controlled")
        name = f"kl.reference ema, share {SHARE:g}, every {EVERY} steps"
        yield AskedBeside("reference", name, True)
        return


def _accepted(inquiry: Inquiry, kl: Kl) -> Settings | None:
    try:
        return fitting(inquiry.library, inquiry.version, kl)
    except UnsupportedSetting:
        return None


def measured_beside(subjects: Sequence[AskedBeside], answers: Answered) -> list[dict[str, Any]]:
    """Return one entry for each subject."""
    how = {"level": _level, "controller": _controller, "reference": _reference}
    return [
        {
            "subject": each.subject,
            "name": each.name,
            "cell": each.is_cell,
            **how[each.subject](each, answers),
        }
        for each in subjects
    ]


# The level of the importance ratio, of the policy loss and of a KL in the loss.


def ratios_of_levels() -> dict[str, FloatTable]:
    """Return the ratio of policy to proximal policy at each level, [N, T]."""
    of = rollouts()
    log_ratio = (of.moved - of.proximal) * of.mask
    whole = log_ratio.sum(-1, keepdims=True)
    return {
        "token": np.exp(log_ratio),
        "sequence": np.exp(whole) + 0 * log_ratio,
        "sequence_mean": np.exp(whole / of.mask.sum(-1, keepdims=True)) + 0 * log_ratio,
    }


def _level(subject: AskedBeside, answers: Answered) -> dict[str, Any]:
    of = rollouts()
    replies = {key: each for key, each in answers.items() if key[:2] == ("level", subject.name)}
    error = next((each["error"] for each in replies.values() if "error" in each), None)
    if error:
        return {"error": error}
    policy = -as_array(replies["level", subject.name, "level"], "gradient") * of.tokens
    entry_of = {"policy": _fitted(policy, ratios_of_levels())}
    if subject.estimator is not None:
        gradient = as_array(replies["level", subject.name, "level, KL"], "gradient") * of.tokens
        entry_of["kl"] = _fitted(gradient / BETA, kl_gradients(subject.estimator))
    return entry_of


def kl_gradients(estimator: str) -> dict[str, FloatTable]:
    """Return the gradients of a KL in the loss: without a ratio, and with each level of it."""
    of, form, ratio = rollouts(), entry(estimator), ratios_of_levels()
    x = (of.moved - of.reference) * of.mask
    value, slope = form.value(x), form.slope(x)
    summed = (value * of.mask).sum(-1, keepdims=True)
    mean = summed / of.mask.sum(-1, keepdims=True)
    return {
        "none": slope,
        "token": ratio["token"] * (slope + value),
        "sequence": ratio["sequence"] * (slope + summed),
        "sequence_mean": ratio["sequence_mean"] * (slope + mean),
    }


def _fitted(values: FloatTable, closed: Mapping[str, FloatTable]) -> dict[str, Any]:
    """Return the level whose gradient this is, and the divisor of its mean."""
    of = rollouts()
    own = of.tokens / len(of.mask) / of.mask.sum(-1, keepdims=True)
    best: tuple[float, str, str] = (float("inf"), "?", TOKEN_MEAN)
    for level, table in closed.items():
        for divisor, factor in ((TOKEN_MEAN, 1.0), (OWN, own)):
            wanted = table * of.mask * factor
            off = float(np.abs(values - wanted).max() / np.abs(wanted).max())
            best = min(best, (off, level, divisor))
    off, level, divisor = best
    if off > CLOSE:
        return {"level": "?", "deviation": float(f"{off:.1g}")}
    return {"level": level, "divisor": divisor, "deviation": float(f"{off:.1g}")}


# The controller of beta.


def _controlled() -> ProbeBatch:
    """Return rollouts whose policy gives every token more than the reference policy."""
    rng = np.random.default_rng(6)
    batch = two_groups()
    ref = np.asarray(batch["old"]) - rng.uniform(0.0, 0.5, np.asarray(batch["old"]).shape)
    return ProbeBatch(**{**batch, "ref": ref.tolist()})


def followed_kls() -> dict[str, float]:
    """Return the KLs that a controller may follow."""
    batch = _controlled()
    mask = np.asarray(batch["mask"])
    kl = (np.asarray(batch["old"]) - np.asarray(batch["ref"])) * mask
    return {
        "the mean over responses of their mean over tokens": float(
            (kl.sum(1) / mask.sum(1)).mean()
        ),
        "the mean over tokens": float(kl.sum() / mask.sum()),
        "the mean over responses of their sum": float(kl.sum(1).mean()),
    }


def targets() -> list[float]:
    """Return targets at both bounds of a step, and near each KL that may be followed."""
    return [1e-3, 1e3, *(round(1.1 * each, 6) for each in followed_kls().values())]


def _controller(_: AskedBeside, answers: Answered) -> dict[str, Any]:
    replies = [answers["controller", i] for i in range(len(targets()))]
    error = next((each["error"] for each in replies if "error" in each), None)
    if error:
        return {"error": error}
    betas = np.array([each["beta"] for each in replies])
    mask = np.asarray(_controlled()["mask"])
    for words, current in followed_kls().items():
        for unit, count in (("responses", len(mask)), ("tokens", float(mask.sum()))):
            steps = np.clip(current / np.array(targets()) - 1, -0.2, 0.2)
            off = float(np.abs(betas - BETA * (1 + steps * count / HORIZON)).max())
            if off <= CLOSE:
                return {"follows": words, "counts": unit, "deviation": float(f"{off:.1g}")}
    return {"follows": "?"}


# A reference policy that moves.


def _reference(_: AskedBeside, answers: Answered) -> dict[str, Any]:
    reply = answers[("reference",)]
    if "error" in reply:
        return {"error": reply["error"]}
    expected, at = [], 0.0
    for step in range(1, STEPS + 1):
        at += SHARE * (1 - at) * (step % EVERY == 0)
        expected.append(at)
    off = float(np.abs(np.array(reply["reference"]) - np.array(expected)).max())
    return {"agrees": off <= CLOSE, "deviation": float(f"{off:.1g}")}
