"""What stands after a number: a unit, a word that multiplies, or the thing that was counted.

5 cm        a unit: 50 mm is as much, 5 m is not
2 million   a word that multiplies
12 eggs     a thing: it does not count
"""

import re
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

MULTIPLIES = {
    "hundred": 100,
    "thousand": 10**3,
    "million": 10**6,
    "billion": 10**9,
    "trillion": 10**12,
    "dozen": 12,
}
"""Words after a number that multiply it. `percent` is `%` to `notation`."""
NOT_A_THING = frozenset(
    re.findall(
        r"\w+",
        """a ad an and as at base bc because but by c choose cubed divided factorial fifth fifths
        for from half halves if in into is less minus mod modulo more not of off on or over pi plus
        point quarter quarters since squared tenth tenths than then third thirds to until when where
        which with""",
    )
)
"""First words after a number that may change what it says."""

_LENGTH, _MASS, _TIME, _VOLUME, _MONEY = "length", "mass", "time", "volume", "money"
_SIZES: "dict[str, tuple[str, Fraction]]" = {
    name: (dimension, Fraction(scale))
    for dimension, scale, names in (
        (_LENGTH, "0.001", "mm millimeter millimeters millimetre millimetres"),
        (_LENGTH, "0.01", "cm centimeter centimeters centimetre centimetres"),
        (_LENGTH, "1", "m meter meters metre metres"),
        (_LENGTH, "1000", "km kilometer kilometers kilometre kilometres"),
        (_LENGTH, "0.0254", "in inch inches"),
        (_LENGTH, "0.3048", "ft foot feet"),
        (_LENGTH, "0.9144", "yd yard yards"),
        (_LENGTH, "1609.344", "mi mile miles"),
        (_MASS, "0.000001", "mg milligram milligrams"),
        (_MASS, "0.001", "g gram grams"),
        (_MASS, "1", "kg kilogram kilograms"),
        (_MASS, "0.45359237", "lb lbs pound pounds"),
        (_MASS, "0.028349523125", "oz ounce ounces"),
        (_TIME, "1", "s sec secs second seconds"),
        (_TIME, "60", "min mins minute minutes"),
        (_TIME, "3600", "h hr hrs hour hours"),
        (_TIME, "86400", "day days"),
        (_TIME, "604800", "week weeks"),
        ("months", "1", "month months"),
        ("months", "12", "year years yr yrs"),
        (_VOLUME, "0.001", "ml milliliter milliliters millilitre millilitres"),
        (_VOLUME, "1", "l liter liters litre litres"),
        (_VOLUME, "3.785411784", "gallon gallons"),
        (_MONEY, "1", "dollar dollars usd"),
        (_MONEY, "0.01", "cent cents"),
        ("euro", "1", "€ euro euros eur"),
        ("sterling", "1", "£ gbp"),
        ("yen", "1", "¥ yen jpy"),
        ("rupee", "1", "₹ rs rupee rupees inr"),
        ("newton", "1", "n newton newtons"),
        ("joule", "1", "j joule joules"),
        ("watt", "1", "w watt watts"),
        ("volt", "1", "v volt volts"),
        ("ohm", "1", "ω ohm ohms"),
        ("morning", "1", "am a.m a.m."),
        ("afternoon", "1", "pm p.m p.m."),
    )
    for name in names.split()
}
_MPH = "mi/h"
_PART = re.compile(
    r"(?P<per>/|\bper\b)|(?P<power>square[ds]?|sq|cubed?|cubic|cu)\b\.?"
    r"|(?P<name>[A-Za-zΩω€£¥₹]+(?:\.m\b\.?)?)\.?(?:\s*\^\s*\{?\s*(?P<exponent>-?\d)\s*\}?|(?P<digit>[23]))?"
)
_AFTER = {"squared": 2, "cubed": 3}


class Unit(NamedTuple):
    """A product of powers of dimensions, and how many basic units it is."""

    dimensions: "tuple[tuple[str, int], ...]"
    scale: Fraction


@lru_cache(maxsize=10_000)
def unit(text: str) -> "Unit | None":
    """Return the unit that a text names; None if a word of it is no unit."""
    text = re.sub(r"\bmph\b", _MPH, text.strip().rstrip("."), flags=re.IGNORECASE)
    text = re.sub(r"\\cdot|\\times|[*·]", " ", text).replace("\\Omega", "Ω")
    powers: dict[str, int] = {}
    scale, sign, ahead, at, last = Fraction(1), 1, 1, 0, ("", 0)
    for part in _PART.finditer(text):
        if text[at : part.start()].strip():
            return None
        at = part.end()
        if part["per"]:
            sign = -1
            continue
        if part["power"]:
            exponent = 3 if part["power"].startswith("cu") else 2
            if part["power"] in _AFTER and last[0]:
                dimension, once = last
                size = _SIZES[dimension]
                powers[size[0]] += once * (exponent - 1)
                scale *= size[1] ** (once * (exponent - 1))
            else:
                ahead = exponent
            continue
        size_of = _SIZES.get(part["name"].lower())
        if size_of is None:
            return None
        exponent = sign * int(part["exponent"] or part["digit"] or ahead)
        powers[size_of[0]] = powers.get(size_of[0], 0) + exponent
        scale *= size_of[1] ** exponent
        last, ahead = (part["name"].lower(), exponent), 1
    if text[at:].strip() or not powers:
        return None
    if powers.get(_VOLUME):  # a litre is a cubic decimetre
        litres = powers.pop(_VOLUME)
        powers[_LENGTH] = powers.get(_LENGTH, 0) + 3 * litres
        scale *= Fraction(1, 1000) ** litres
    return Unit(tuple(sorted(item for item in powers.items() if item[1])), scale)
