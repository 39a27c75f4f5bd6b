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
from tests.tune.rehearsed import House, house, objective_at, theory, train
from tests.tune.test_theory import OPTIMUM, noisy

BAR_MS = 20.0
REPETITIONS = 20


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


def regret(folder: Path, kind: str, repetition: int, trials: int) -> float:
    """How far what a search recommends is from the optimum, by the closed form."""
    made = house(folder, sampler=kind, sampler_seed=repetition, trials=trials, seeds=[0, 1, 2],
                 space={"kl.beta": "log(0.001, 100)"})  # fmt: skip
    (found,) = made.run(noisy(repetition))
    assert found.best is not None
    return objective_at(OPTIMUM) - objective_at(found.best.params["kl.beta"])


def main() -> None:
    trials = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        house(folder / "warm", trials=3).run()  # imports are not a trial's
        alone = bare(house(folder / "bare", trials=trials), trials)
        ours = overhead(house(folder / "ours", trials=trials), trials)
        print(f"orch tune, {trials} trials       {ours:6.1f} CPU ms a trial   bar {BAR_MS}")
        print(f"  peer: bare ask and tell    {alone:6.1f} CPU ms a trial")
        regrets = {
            kind: [regret(folder / f"{kind}{i}", kind, i, 16) for i in range(REPETITIONS)]
            for kind in ("random", "tpe", "gp")
        }
        print(f"16 trials x 3 seeds of the closed form with noise, {REPETITIONS} repetitions")
        for kind, values in regrets.items():
            wins = sum(a < b for a, b in zip(values, regrets["random"], strict=True))
            print(f"  {kind:6} mean regret {mean(values):.4f}, median {median(values):.4f}, "
                  f"less than random's in {wins}")  # fmt: skip


if __name__ == "__main__":
    main()
