"""The confidence interval of a share."""

from math import sqrt

Z_95 = 1.959964


def wilson(count: int, n: int) -> tuple[float, float]:
    """Return Wilson's 95 % interval of the share `count / n`, or (0, 1) if n is 0."""
    if not n:
        return 0.0, 1.0
    share = count / n
    middle = (share + Z_95**2 / (2 * n)) / (1 + Z_95**2 / n)
    half = Z_95 / (1 + Z_95**2 / n) * sqrt(share * (1 - share) / n + Z_95**2 / (4 * n**2))
    return max(0.0, middle - half), min(1.0, middle + half)
