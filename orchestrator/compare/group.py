"""Values of one axis set against each other, everything else equal: `orch compare --by backend`."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from orchestrator.compare.configurations import Configuration
from orchestrator.compare.contrast import over_seeds
from orchestrator.compare.estimates import ALPHA, Estimate, estimate, holm, tails


@dataclass(frozen=True)
class Difference:
    """`left` minus `right`, paired on common seeds, over the settings both appear in."""

    axis: str
    left: str
    right: str
    metric: str
    effect: Estimate
    settings: tuple[str, ...]
    """What was held equal in each pair."""
    p: float
    p_corrected: float
    """Holm, over all differences of this axis."""

    @property
    def verdict(self) -> str:
        """`differs`, or `not told apart`: the absence of evidence, never evidence of equality."""
        return "differs" if self.p_corrected < ALPHA else "not told apart"


def by(found: Sequence[Configuration], axis: str, metric: str) -> list[Difference]:
    """Every pair of values of an axis (`kl`, `beta`, `model`, `backend`, ...), in order.

    Pairs that share no setting or no seed are left out. Raises KeyError for an axis no
    configuration has.
    """
    values = list(dict.fromkeys(v for c in found if (v := value_of(c, axis)) is not None))
    if not values:
        raise KeyError(axis)
    pairs = [
        (left, right, effect, settings)
        for left, right in combinations(values, 2)
        for effect, settings in [_effect(found, axis, (left, right), metric)]
        if effect is not None
    ]
    p_values = [min(1.0, 2 * min(tails(effect, 0.0))) for _, _, effect, _ in pairs]
    return [
        Difference(axis, left, right, metric, effect, settings, p, corrected)
        for (left, right, effect, settings), p, corrected in zip(
            pairs, p_values, holm(p_values), strict=True
        )
    ]


def value_of(configuration: Configuration, axis: str) -> str | None:
    """What a configuration is called on an axis; None if it has no such axis."""
    if axis == "kl":
        return configuration.kl
    if axis in ("beta", "kl.beta"):
        return None if configuration.beta is None else f"{configuration.beta:g}"
    return configuration.study if axis == "study" else configuration.traits.get(axis)


def versus_none(found: Sequence[Configuration], metric: str) -> dict[int, Estimate]:
    """Index of a configuration -> its difference to the run without KL, paired on seeds."""
    baselines = {
        _setting(c, ("kl", "beta")): c.by_seed(metric) for c in found if c.beta is None
    }  # fmt: skip
    differences = {}
    for index, c in enumerate(found):
        base = baselines.get(_setting(c, ("kl", "beta")), {}) if c.beta is not None else {}
        own = c.by_seed(metric)
        if own.keys() & base.keys():
            differences[index] = estimate(own[seed] - base[seed] for seed in own.keys() & base)
    return differences


Setting = tuple[tuple[str, str | None], ...]


def _setting(configuration: Configuration, without: Sequence[str]) -> Setting:
    names = ["study", "kl", "beta", *configuration.traits]
    return tuple((name, value_of(configuration, name)) for name in names if name not in without)


def _effect(
    found: Sequence[Configuration], axis: str, pair: tuple[str, str], metric: str
) -> tuple[Estimate | None, tuple[str, ...]]:
    """A run without KL has no beta, and is set against the mean over the other's."""
    without = (axis, "beta") if axis == "kl" and "none" in pair else (axis,)
    settings: dict[Setting, dict[str, list[dict[int, float]]]] = {}
    for configuration in found:
        value, at = value_of(configuration, axis), configuration.by_seed(metric)
        if value in pair and value is not None and at:
            sides = settings.setdefault(_setting(configuration, without), {})
            sides.setdefault(value, []).append(at)
    shared = {setting: sides for setting, sides in settings.items() if len(sides) == 2}
    one, other = (over_seeds([sides[value] for sides in shared.values()]) for value in pair)
    seeds = one.keys() & other.keys()
    if not seeds:
        return None, ()
    names = tuple(
        ", ".join(value if name in ("study", "kl") else f"{name}={value}"
                  for name, value in setting if value is not None)
        for setting in shared
    )  # fmt: skip
    return estimate(one[seed] - other[seed] for seed in seeds), names
