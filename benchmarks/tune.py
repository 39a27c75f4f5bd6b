"""What orch and Optuna cost a trial, and how a search compares with random search.

python -m benchmarks.tune cost [trials]                 overhead; the peer is a bare ask/tell loop
python -m benchmarks.tune compare [first] [repetitions] against random search, by simulation

No cell is trained: values are the closed form's.
"""

import statistics
import sys
import tempfile
import time
from pathlib import Path

from orchestrator.search.block import FIELD, distributions, sampler
from orchestrator.search.journal import SearchJournal
from tests.search.rehearsed import House, house, objective_at, theory
from tests.search.rehearsed import train as leave
from tests.search.test_theory import FRESH, repeated

BAR_MS = 20.0
REPETITIONS = 20
SPREADS = (0.01, 0.03, 0.07)


def overhead(house: House, trials: int) -> float:
    """CPU milliseconds a trial, without what writing the run directories costs."""
    controller = house.controller()
    training = 0.0
    began = time.process_time()
    with controller.journal.controlling():
        while not controller.done:
            for cell in controller.tick():
                start = time.process_time()
                leave(house.folder, cell, theory(cell))
                training += time.process_time() - start
    return (time.process_time() - began - training) / trials * 1000


def bare(house: House, trials: int) -> float:
    """CPU milliseconds a trial of the same number of trials run by Optuna alone."""
    (search,) = house.searches
    study = SearchJournal(house.folder, "bare").study(search, sampler=sampler(search.block, 0))
    began = time.process_time()
    for _ in range(trials):
        trial = study.ask(distributions(search.block))
        study.tell(trial, objective_at(trial.params[FIELD]))
    return (time.process_time() - began) / trials * 1000


def compare(folder: Path, repetitions: range) -> None:
    """Print the regret of the best trial and of the recommended value: mean (median)."""
    print("| noise | sampler | best trial | recommended | interval holds the optimum |")
    print("|---|---|---|---|---|")
    for spread in SPREADS:
        for kind in ("random", "tpe", "gp"):
            best, curve, holds = zip(*repeated(folder, kind, spread, repetitions), strict=True)
            regrets = [
                f"{statistics.mean(own):.4f} ({statistics.median(own):.4f})"
                for own in (best, curve)
            ]
            print(
                f"| {spread} | {kind} | {' | '.join(regrets)} | {sum(holds)} of {len(holds)} |",
                flush=True,
            )


def main() -> None:
    what, *rest = sys.argv[1:] or ["cost"]
    if what == "compare":
        first, count = int((rest or [FRESH])[0]), int((rest[1:] or [REPETITIONS])[0])
        with tempfile.TemporaryDirectory() as name:
            compare(Path(name), range(first, first + count))
        return
    trials = int(rest[0]) if rest else 200
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        house(folder / "warm", trials=3).run()  # imports are not a trial's
        alone = bare(house(folder / "bare", trials=trials), trials)
        ours = overhead(house(folder / "ours", trials=trials), trials)
        print(f"orch tune, {trials} trials       {ours:6.1f} CPU ms a trial   bar {BAR_MS}")
        print(f"  peer: bare ask and tell    {alone:6.1f} CPU ms a trial")


if __name__ == "__main__":
    main()
