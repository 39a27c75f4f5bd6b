"""Values of one axis set against each other, everything else equal: `orch compare --by backend`."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from orchestrator.compare.configurations import Configuration
from orchestrator.compare.contrast import over_seeds, relative, values
from orchestrator.compare.estimates import ALPHA, Estimate, estimate, holm, tails
from orchestrator.compare.items import Column, Side, column, difference_over_items
from orchestrator.compare.ratio import Improvement


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
    over_items: Estimate | None = None
    """The effect with an interval over seeds and items, where single items are known."""
    relative: Improvement | None = None
    """How much higher left is, in shares of right: mean over tasks and settings."""

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
    shared = [
        (pair, settings, effect)
        for pair in combinations(values, 2)
        for settings in [_shared(found, axis, pair, metric)]
        for effect in [_effect(list(settings.values()), metric)]
        if effect is not None
    ]
    p_values = [min(1.0, 2 * min(tails(effect, 0.0))) for _, _, effect in shared]
    return [
        Difference(
            axis, *pair, metric, effect, tuple(map(_told, settings)), p, corrected,
            difference_over_items(list(settings.values()), metric),
            relative(list(settings.values()), metric),
        )
        for (pair, settings, effect), p, corrected in zip(
            shared, p_values, holm(p_values), strict=True
        )
    ]  # fmt: skip


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


def _shared(
    found: Sequence[Configuration], axis: str, pair: tuple[str, str], metric: str
) -> dict[Setting, tuple[list[Column], list[Column]]]:
    """Settings with finished runs on both sides.

    A run without KL has no beta, and is set against the mean over the other's.
    """
    without = (axis, "beta") if axis == "kl" and "none" in pair else (axis,)
    settings: dict[Setting, tuple[list[Column], list[Column]]] = {}
    for configuration in found:
        value, runs = value_of(configuration, axis), column(configuration.runs, metric)
        if value in pair and value is not None and runs:
            sides = settings.setdefault(_setting(configuration, without), ([], []))
            sides[pair.index(value)].append(runs)
    return {setting: sides for setting, sides in settings.items() if all(sides)}


def _effect(settings: Sequence[tuple[Side, Side]], metric: str) -> Estimate | None:
    one, other = (
        over_seeds([[values(runs, metric) for runs in sides[index]] for sides in settings])
        for index in (0, 1)
    )
    seeds = one.keys() & other.keys()
    return estimate(one[seed] - other[seed] for seed in seeds) if seeds else None


def _told(setting: Setting) -> str:
    return ", ".join(
        value if name in ("study", "kl") else f"{name}={value}"
        for name, value in setting
        if value is not None
    )
