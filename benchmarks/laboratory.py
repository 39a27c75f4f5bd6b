"""CPU seconds and accuracy of the gradient laboratory, beside their bars.

    python benchmarks/laboratory.py

Peers in the same run: brute-force enumeration (its cost at T = 14), and the Monte-Carlo estimate
by walking token by token, as one would write it first.
"""

import math
import sys
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from orchestrator.estimators import TABLE
from orchestrator.kl.configuration import extended
from orchestrator.kl.verdicts import verdict
from orchestrator.lab.exact.derivation import FAR, FAR_WIDE, derive
from orchestrator.lab.exact.laboratory import LabSetting, ToyPolicy, exact, sums_of, tables
from orchestrator.lab.exact.montecarlo import monte_carlo
from orchestrator.settings import Kl
from tests.kl.forms import every_form

Q, P, MU = ToyPolicy(-0.33, -0.082), ToyPolicy(1.17, 0.037), ToyPolicy(-0.2, -0.07)
LONG_Q, LONG_P, LONG_MU = ToyPolicy(-0.33, -0.01), ToyPolicy(0.2, 0.001), ToyPolicy(-0.2, -0.011)


def cpu(work: Callable[[], object]) -> float:
    """CPU seconds of all threads, best of three."""
    best = math.inf
    for _ in range(3):
        start = time.process_time()
        work()
        best = min(best, time.process_time() - start)
    return best


def main() -> int:
    off, count = LabSetting(Q, P, 32, MU), len(extended())
    rows = [
        (f"exact, {count} configurations, T = 32", cpu(lambda: exact(off, extended())), 0.5),
        ("exact, every form of the table, T = 32", cpu(all_forms), 0.5),
        (
            f"exact, {count} configurations, T = 256",
            cpu(lambda: exact(LabSetting(LONG_Q, LONG_P, 256, LONG_MU), extended())),
            3.0,
        ),
        ("Monte-Carlo 200 x 1000, T = 32", cpu(lambda: monte_carlo(off, extended())), 2.0),
        ("  peer: token by token", cpu(lambda: walk(off)), None),
        ("deriving all verdicts", cpu(derive), None),
        ("1,000 verdicts", cpu(thousand_verdicts), 1.0),
        ("  peer: enumeration, T = 14, one configuration", cpu(enumerate_14), None),
    ]
    failed = False
    for name, seconds, bar in rows:
        limit = "" if bar is None else f"   bar {bar:g} s"
        failed |= bar is not None and seconds > bar
        print(f"{name:<48} {seconds:8.3f} CPU s{limit}")
    error = worst_error()
    print(f"{'relative error against enumeration, T = 10':<48} {error:8.1e}         bar 1e-12")
    return int(failed or error > 1e-12)


def all_forms() -> None:
    """Compute every estimator in each placement and ratio; those of the top k have eight tokens."""
    for (policy, reference, rollout), top in ((FAR, False), (FAR_WIDE, True)):
        chosen = [each for each in every_form() if (TABLE[each.estimator].top is not None) is top]
        exact(LabSetting(policy, reference, 32, rollout), chosen)


def thousand_verdicts() -> None:
    verdict.cache_clear()
    for i in range(1000):
        verdict(Kl(estimator="k3", placement="loss", beta=1 + i / 1000), on_policy=i % 2 == 0)


def walk(setting: LabSetting) -> Any:
    """200,000 sequences, one token a step, gathering every table of every configuration."""
    rng = np.random.default_rng(0)
    table = tables(setting)
    one = np.exp(table.logp_rollout[1])
    parts = [np.concatenate([s.f, s.s, s.l]) for s in (sums_of(c, table) for c in extended())]
    stacked = np.concatenate(parts)
    means = []
    for _ in range(20):
        count = np.zeros(10_000, dtype=int)
        total = np.zeros((len(stacked), 10_000))
        for _ in range(setting.num_tokens):
            y = (rng.random(10_000) < one[count]).astype(int)
            total += stacked[:, y, count]
            count += y
        means.append(total.mean(1))
    return means


def every_sequence(setting: LabSetting) -> Any:
    """Probability and visited tables of all 2^T sequences, vectorised."""
    num_tokens = setting.num_tokens
    tokens = (np.arange(2**num_tokens)[:, None] >> np.arange(num_tokens)) & 1
    counts = np.cumsum(tokens, axis=1) - tokens
    logp = tables(setting).logp_rollout[tokens, counts].sum(1)
    return SimpleNamespace(tokens=tokens, counts=counts, probability=np.exp(logp))


def enumerate_14() -> None:
    brute_force(LabSetting(Q, P, 14, MU), 0)


def brute_force(setting: LabSetting, index: int) -> tuple[Any, Any]:
    """Mean and variance [2] of one configuration by enumeration."""
    every, table = every_sequence(setting), tables(setting)
    sums = sums_of(extended()[index], table)
    f, s, inner = (part[:, every.tokens, every.counts].sum(2) for part in sums[:3])
    log_ratio = (table.logp - table.logp_rollout)[every.tokens, every.counts].sum(1)
    gradient = (f * s + inner) * (np.exp(log_ratio) if sums.weighted else 1.0)
    mean = gradient @ every.probability
    return mean, ((gradient - mean[:, None]) ** 2) @ every.probability


def worst_error() -> float:
    """Over both settings, means (by the gradient's size) and variances of what is charged to all.

    `brute_force` sums over a response; tests/kl/test_every_form.py has every form.
    """
    worst = 0.0
    whole = [i for i, each in enumerate(extended()) if each.credit == "sequence"]
    for rollout in (None, MU):
        setting = LabSetting(Q, P, 10, rollout)
        derived = exact(setting, extended())
        for i in whole:
            mean, variance = brute_force(setting, i)
            worst = max(
                worst,
                float(np.max(np.abs(derived.mean[i] - mean) / derived.magnitude[i])),
                float(np.max(np.abs(derived.variance[i] / variance - 1))),
            )
    return worst


if __name__ == "__main__":
    sys.exit(main())
