"""How a KL term enters a library's update: which tokens and rollouts it moves, by what weight."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from orchestrator.errors import UnsupportedSetting
from orchestrator.matrix.batches import (
    AT,
    GROUP,
    LENGTHS,
    SIZE,
    STEP,
    as_array,
    ragged,
    ratios,
    scaled,
    two_groups,
)
from orchestrator.matrix.cells import (
    ADVANTAGES,
    AGGREGATIONS,
    BETA,
    CONSTANT_TOKENS,
    settings,
    term,
    translated,
)
from orchestrator.matrix.curves import flat
from orchestrator.matrix.inquiry import Inquiry
from orchestrator.semantics.model import Table
from orchestrator.settings import Placement, Settings
from orchestrator.types import LaunchPlan

CLOSE = 1e-4
_PLACES: tuple[Placement | None, ...] = ("loss", None)
BATCHES = {
    "as it is": two_groups(), "raised": two_groups(STEP), "lowered": two_groups(-STEP),
    "ten times": scaled(two_groups(), 10.0, 10.0),
}  # fmt: skip


def prepare(inquiry: Inquiry) -> dict[str, str]:
    """Ask about k1 in the reward with each advantage, and in the loss with each aggregation; the
    fields that a backend refuses in some."""
    for name, batch in BATCHES.items():
        inquiry.batch(name, batch)
    inquiry.batch("ragged", ragged())
    inquiry.batch("ratios", ratios())
    refused: dict[str, str] = {}
    for advantage in ADVANTAGES:
        kl = term("k1", "reward")
        wanted = settings(
            inquiry.library, inquiry.version, kl, advantage=advantage, group_size=SIZE
        )
        plan = _plan(wanted, advantage, refused)
        if plan:
            ask_about(inquiry, ("advantage", advantage), inquiry.launch(plan))
    for aggregation in AGGREGATIONS:
        for placement in _PLACES:
            kl = term("k1", placement)
            wanted = settings(
                inquiry.library,
                inquiry.version,
                kl,
                advantage="dr_grpo",
                aggregation=aggregation,
                group_size=GROUP,
            )
            plan = _plan(wanted, aggregation, refused)
            if plan:
                key = ("aggregation", aggregation, placement)
                what = "update" if placement else "loss"
                launch = inquiry.launch(plan)
                inquiry.question(key, what, launch, "ragged")
                if key == ("aggregation", "token_mean", None):
                    inquiry.question(("ratios",), "loss", launch, "ratios")
    return refused


def ask_about(inquiry: Inquiry, key: tuple[Any, ...], launch: int) -> None:
    """Ask how a KL in the reward of a launch enters."""
    for batch in BATCHES:
        inquiry.question((*key, batch), "update", launch, batch)


def _plan(wanted: Settings, what: str, refused: dict[str, str]) -> LaunchPlan | None:
    """The launch; of a library that is never on-policy, with a staleness of one step."""
    try:
        return translated(wanted)
    except UnsupportedSetting as error:
        if error.field == "max_staleness_steps" and not wanted.max_staleness_steps:
            return _plan(wanted.model_copy(update={"max_staleness_steps": 1}), what, refused)
        refused[what] = error.field
        return None


def reward(
    answers: Mapping[Any, Mapping[str, Any]], key: tuple[Any, ...], beta: float = BETA
) -> dict[str, Any]:
    """How a KL in the reward enters: `within` its rollout, and what of `others` it moves.

    within: response (each token of the response), to_go (its token and those before it), token
    (itself), none. others: leave_one_out or group_mean (inside such a baseline), batch (whitening),
    none (outside).
    """
    error = next((answers[(*key, b)]["error"] for b in BATCHES if "error" in answers[(*key, b)]), 0)
    if error:
        return {"error": error}
    raised, lowered = (_advantages(answers[(*key, name)]) for name in ("raised", "lowered"))
    moved = -(raised - lowered) / (2 * STEP * beta)
    plain, large = (_advantages(answers[(*key, name)]) for name in ("as it is", "ten times"))
    bounded = bool(np.abs(large).max() < 5 * np.abs(plain).max())
    own, group = moved[AT[0]], moved[1:SIZE]
    return {
        "within": _within(own),
        "others": _others(own, group, moved[SIZE:]),
        "divided_by_deviation": bounded,
        "moved": [[float(f"{x:.4g}") for x in row] for row in moved[:SIZE]],
    }


def _advantages(answer: Mapping[str, Any]) -> Table:
    """[N, T] what multiplies each token's score, on-policy; the loss is a mean over tokens."""
    return -as_array(answer, "gradient") * sum(LENGTHS)


def _within(own: Table) -> str:
    strongest = np.abs(own).max()
    if strongest < CLOSE:
        return "none"
    same = np.abs(own / strongest - 1) < CLOSE
    shapes = {(True, True, True): "response", (True, True, False): "to_go",
              (False, True, False): "token"}  # fmt: skip
    a, b, c = map(bool, same)
    return shapes.get((a, b, c), "other")


def _others(own: Table, group: Table, elsewhere: Table) -> str:
    if np.abs(elsewhere).max() > CLOSE:
        return "batch"
    strongest = float(np.abs(own).max())
    if strongest < CLOSE or np.abs(group).max() < CLOSE:
        return "none"
    share = float(group[0, 0]) / strongest
    names = {-1 / (SIZE - 1): "leave_one_out" if abs(strongest - 1) < CLOSE else "group_mean"}
    return next((name for value, name in names.items() if abs(share - value) < CLOSE), "group")


def loss(answers: Mapping[Any, Mapping[str, Any]], aggregation: str) -> dict[str, Any]:
    """Which weights tokens have, in the policy loss and in a KL in the loss, of two responses of 3
    and 1 tokens."""
    told = {
        "policy": answers[("aggregation", aggregation, None)],
        "kl": answers.get(("aggregation", aggregation, "loss")),
    }
    found: dict[str, Any] = {}
    for what, answer in told.items():
        if answer is None:
            found[what] = "refused"
            continue
        if "error" in answer:
            return {"error": answer["error"]}
        weights = as_array(answer, "gradient") / (BETA if what == "kl" else -1.0)
        found[what] = _aggregation(weights)
        found[f"{what}_weights"] = [[float(f"{x:.6g}") for x in row] for row in weights + 0.0]
    return found


def ratio(answers: Mapping[Any, Mapping[str, Any]]) -> dict[str, Any]:
    """The log-ratio to the rollout policy above which the policy loss, without a clip, has no
    gradient (None: there is none up to 30)."""
    gradient = as_array(answers[("ratios",)], "gradient")[0]
    return {"flat_above": flat(gradient)[1]}


def _aggregation(weights: Table) -> str:
    known = {
        "token_mean": (1 / 4, 1 / 4),
        "sequence_mean": (1 / 6, 1 / 2),
        "constant": (1 / (2 * CONSTANT_TOKENS),) * 2,
    }
    for name, (long, short) in known.items():
        expected = np.array([[long] * 3, [short, 0.0, 0.0]])
        if np.abs(weights - expected).max() < CLOSE:
            return name
    return "other"
