"""Curves as the page holds them: three significant digits in 16 bits, so that it stays small.

A value is m · 10^e with |m| < 1000 and -12 <= e < 20, written as (m + 999) · 32 + e + 12; 65535 is
no number. Smaller than 1e-12 becomes 0; larger than 9.99e21 becomes that. A series is the base64
of little-endian words. page.js reads it, and takes means and intervals from the seeds itself.
"""

import base64
from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.compare.estimates import ALPHA, quantile
from orchestrator.compare.runs import is_accuracy

LOWEST, HIGHEST, GAP = -12, 19, 65535


def packed(data: Mapping[str, Any]) -> dict[str, Any]:
    """Report.data with its curves packed, and what means and intervals are made with."""
    found = data.get("configurations", ())
    most = max((len(c["s"]) for each in found for c in each["curves"].values()), default=0)
    names = {m for each in found for m in each["curves"]}
    return {
        **data,
        "configurations": [
            {**each, "curves": {m: _curve(curve) for m, curve in each["curves"].items()}}
            for each in found
        ],
        "t": {str(n): quantile(1 - ALPHA / 2, n - 1) for n in range(2, most + 1)},
        "shares": sorted(filter(is_accuracy, names)),
    }


def _curve(curve: Mapping[str, Any]) -> dict[str, Any]:
    return {"g": curve["g"], "s": {seed: words(values) for seed, values in curve["s"].items()}}


def words(values: Sequence[float | None]) -> str:
    """One series."""
    import numpy as np

    x = np.array([np.nan if v is None else v for v in values], dtype=float)
    known = np.isfinite(x)
    size = np.abs(np.where(known, x, 0.0))
    with np.errstate(divide="ignore"):
        e = np.floor(np.log10(size)) - 2
    e = np.clip(np.where(np.isfinite(e), e, 0), LOWEST, HIGHEST).astype(int)
    m = np.rint(np.where(known, x, 0.0) / 10.0**e)
    over = (np.abs(m) >= 1000) & (e < HIGHEST)
    e, m = np.where(over, e + 1, e), np.where(over, np.rint(m / 10), m)
    code = (np.clip(m, -999, 999) + 999) * 32 + (e - LOWEST)
    plain = np.where(known, code, GAP).astype("<u2")
    return base64.b64encode(plain.tobytes()).decode()
