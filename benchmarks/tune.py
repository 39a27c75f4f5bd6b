"""What orch and Optuna cost a trial, and how a search compares with random search.

python benchmarks/tune.py [trials]

Cells are not trained: their run directories are written with values of the closed form. The peer
of the overhead is a bare ask/tell loop on the same journal.
"""

import sys
import tempfile
import time
from pathlib import Path
from statistics import mean, median

from orchestrator.tune.journal import Journal
from orchestrator.tune.samplers import sampler
from orchestrator.tune.space import distributions
from tests.tune.rehearsed import RANGE, House, house, objective_at, simulated, theory, train
from tests.tune.test_theory import OPTIMUM

BAR_MS = 20.0
REPETITIONS = 20
SPREADS = (0.01, 0.03, 0.07)
"""Between seeds of the embedded trainer, of accuracy - 0.5 * KL: the range that was measured."""


def overhead(made: House, trials: int) -> float:
    """CPU milliseconds a trial, without what writing the run directories costs."""
    controller = made.controller()
    training = 0.0
    began = time.process_time()
    with controller.journal.controlling():
        while not controller.done:
            for cell in controller.turn():
                start = time.process_time()
                train(made.folder, cell, theory(cell))
                training += time.process_time() - start
    return (time.process_time() - began - training) / trials * 1000


def bare(made: House, trials: int) -> float:
    """The same number of trials, asked and told by Optuna alone."""
    (search,) = made.searches
    study = Journal(made.folder, "bare").study(search, sampler=sampler(search.tune.block, 0))
    began = time.process_time()
    for _ in range(trials):
        trial = study.ask(distributions(search.space))
        study.tell(trial, objective_at(trial.params["kl.beta"]))
    return (time.process_time() - began) / trials * 1000


def regrets(folder: Path, kind: str, spread: float) -> list[tuple[float, float]]:
    """Of each repetition: how far the best observed value, and the recommended one, are from the
    optimum, by the closed form."""
    (search,) = house(folder, space=RANGE).searches
    rows = []
    for repetition in range(REPETITIONS):
        told = simulated(search, kind, repetition, spread)
        assert told.best is not None
        assert told.recommended is not None
        top = objective_at(OPTIMUM)
        rows.append((top - objective_at(told.best.params["kl.beta"]),
                     top - objective_at(told.recommended.value)))  # fmt: skip
    return rows


def compare(folder: Path) -> None:
    """Against random search, which recommends the best value that it observed."""
    print(f"14 trials x 2 seeds of the closed form with noise, {REPETITIONS} repetitions: mean and "
          "median regret\nbeats: in how many repetitions the recommended value has less regret than"
          " the best of random search,\nand than random search's own recommended one")  # fmt: skip
    for spread in SPREADS:
        peer: list[tuple[float, float]] = []
        for kind in ("random", "tpe", "gp"):
            rows = regrets(folder, kind, spread)
            peer = peer or rows
            best, curve = [row[0] for row in rows], [row[1] for row in rows]
            wins = [sum(a < row[i] for a, row in zip(curve, peer, strict=True)) for i in (0, 1)]
            print(f"sd {spread:4} {kind:6} best observed {mean(best):.4f} {median(best):.4f}   "
                  f"recommended {mean(curve):.4f} {median(curve):.4f}   "
                  f"beats {wins[0]:2} {wins[1]:2}", flush=True)  # fmt: skip


def main() -> None:
    trials = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        house(folder / "warm", trials=3).run()  # imports are not a trial's
        alone = bare(house(folder / "bare", trials=trials), trials)
        ours = overhead(house(folder / "ours", trials=trials), trials)
        print(f"orch tune, {trials} trials       {ours:6.1f} CPU ms a trial   bar {BAR_MS}")
        print(f"  peer: bare ask and tell    {alone:6.1f} CPU ms a trial")
        compare(folder)


if __name__ == "__main__":
    main()
