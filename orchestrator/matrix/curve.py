"""What one name of a library computes for one token, as measured. Plain data without NumPy."""

from dataclasses import dataclass

from orchestrator.semantics.catalogue import PLAIN


@dataclass(frozen=True, slots=True)
class Curve:
    """What one name of a library computes for one token."""

    value: str
    """Whose value it has; `?` if nobody's."""
    gradient: str
    """Whose gradient it has; `sg_rho_k2` for w k1 with the weight held fixed."""
    straight_through: bool
    """The gradient is not the value's own."""
    value_bound: float | None
    """The value stays within plus and minus this."""
    flat_below: float | None
    """For log pi / pi_ref below this there is no gradient."""
    flat_above: float | None
    """... and above this."""
    weight_bound: float | None
    """The importance weight is at most this."""
    deviation: float
    """Largest difference of value and gradient from the closed form, within |x| <= 1.5."""


def told(curve: Curve) -> str:
    """The curve in a few words: `k3, held within ±10 (no gradient below x = -2.61)`."""
    names = PLAIN.get(curve.value, curve.value)  # type: ignore[call-overload]
    words = [names if not curve.straight_through else f"{names}, gradient of {curve.gradient}"]
    if curve.value_bound is not None:
        words.append(f"held within ±{curve.value_bound:g}")
    if curve.flat_below is not None or curve.flat_above is not None:
        ends = [f"x < {curve.flat_below:g}" if curve.flat_below is not None else "",
                f"x > {curve.flat_above:g}" if curve.flat_above is not None else ""]  # fmt: skip
        words.append(f"no gradient for {' or '.join(filter(None, ends))}")
    if curve.weight_bound is not None:
        words.append(f"weight at most {curve.weight_bound:g}")
    return ", ".join(words)
