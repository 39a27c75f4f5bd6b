"""The base policies that orch ships, and their measurements, without loading torch."""

from functools import cache
from pathlib import Path

from backends.micro.skills import SKILLS, Skill
from orchestrator.errors import EnvironmentFault
from orchestrator.settings import Frozen

POLICIES = Path(__file__).parent / "policies"
PREFIX = "micro:"
"""`micro:elder` names a shipped policy, `micro:sort` an embedded task."""


class Recipe(Frozen):
    """The recipe of a base policy's pretraining."""

    seed: int
    num_steps: int
    noise: float
    mixture: dict[Skill, dict[str, float]]
    """Skill -> strategy -> share of the answers that follow it."""


class PolicyMeasurements(Frozen):
    """The measurements of a base policy, taken when it was made."""

    name: str
    recipe: Recipe
    torch: str
    """The version of torch that made and measured it."""
    accuracy: dict[Skill, float]
    """Exact expected accuracy on the held-out problems of the in-loop evaluation."""
    chances: dict[Skill, tuple[float, ...]]
    """Probability of the right answer to each of them, whose mean is the accuracy."""


@cache
def names() -> tuple[str, ...]:
    """Return the name of every shipped policy, sorted."""
    return tuple(sorted(p.parent.name for p in POLICIES.glob("*/manifest.json")))


@cache
def manifest(name: str) -> PolicyMeasurements:
    """Return the manifest of a shipped policy. Raise EnvironmentFault if its file is damaged."""
    path = POLICIES / name / "manifest.json"
    try:
        return PolicyMeasurements.model_validate_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise EnvironmentFault(
            f"{path} cannot be read; install orch again, or make the policy anew with "
            f"`python -m backends.micro.pretrain {name}`"
        ) from error


def policy_of(path: str) -> str | None:
    """Return `elder` for `micro:elder`, or None for a path that names no shipped policy."""
    name = path.removeprefix(PREFIX)
    return name if path.startswith(PREFIX) and name in names() else None


def skill_of(path: str) -> Skill | None:
    """Return `sort` for `micro:sort`, or None for a path that names no embedded task."""
    return next((skill for skill in SKILLS if path == PREFIX + skill), None)
