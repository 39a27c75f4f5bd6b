"""Values of one axis set against each other, everything else equal: `orch compare --by backend`."""

from collections.abc import Iterable, Sequence
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
    placed = [(value_of(c, axis), _rest(c, axis), c) for c in found]
    values = list(dict.fromkeys(value for value, _, _ in placed if value is not None))
    if not values:
        raise KeyError(axis)
    pairs = [
        (left, right, effect, settings)
        for left, right in combinations(values, 2)
        for effect, settings in [_effect(placed, left, right, metric)]
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


Setting = tuple[tuple[str, str | None], ...]
Placed = tuple[str | None, Setting, Configuration]


def _rest(configuration: Configuration, axis: str) -> Setting:
    names = ["study", "kl", "beta", *configuration.traits]
    return tuple((name, value_of(configuration, name)) for name in names if name != axis)


def _effect(
    placed: Iterable[Placed], left: str, right: str, metric: str
) -> tuple[Estimate | None, tuple[str, ...]]:
    found: dict[Setting, dict[str, dict[int, float]]] = {}
    for value, rest, configuration in placed:
        at = configuration.by_seed(metric)
        if value in (left, right) and value is not None and at:
            found.setdefault(rest, {})[value] = at
    shared = {rest: sides for rest, sides in found.items() if len(sides) == 2}
    one = over_seeds([[sides[left]] for sides in shared.values()])
    other = over_seeds([[sides[right]] for sides in shared.values()])
    seeds = one.keys() & other.keys()
    if not seeds:
        return None, ()
    settings = tuple(
        ", ".join(value if name in ("study", "kl") else f"{name}={value}"
                  for name, value in rest if value is not None)
        for rest in shared
    )  # fmt: skip
    return estimate(one[seed] - other[seed] for seed in seeds), settings
