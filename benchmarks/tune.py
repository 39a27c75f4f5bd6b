"""What orch and Optuna cost a trial, and how a search compares with random search.

python -m benchmarks.tune cost [trials]                 overhead; the peer is a bare ask/tell loop
python -m benchmarks.tune compare [first] [repetitions] against random search, by simulation
python -m benchmarks.tune train                         the real training that this rests on

For the first two no cell is trained: values are the closed form's, or those of trained.json.
"""

import json
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from orchestrator.tune.journal import Journal
from orchestrator.tune.samplers import sampler
from orchestrator.tune.space import distributions
from orchestrator.types import Cadence, Place
from tests.tune.landscapes import (
    FRESH,
    TRAINED,
    Told,
    closed_form,
    judged,
    measured,
    really_trained,
    sizes,
)
from tests.tune.rehearsed import House, house, objective_at, theory
from tests.tune.rehearsed import train as leave

BAR_MS = 20.0
REPETITIONS = 20
SPREADS = (0.01, 0.03, 0.07)
RECIPES = {"default": (100, "constant", 6), "long": (300, "linear", 4)}
"""Updates, schedule and seeds."""


def overhead(made: House, trials: int) -> float:
    """CPU milliseconds a trial, without what writing the run directories costs."""
    controller = made.controller()
    training = 0.0
    began = time.process_time()
    with controller.journal.controlling():
        while not controller.done:
            for cell in controller.turn():
                start = time.process_time()
                leave(made.folder, cell, theory(cell))
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


def compare(folder: Path, repetitions: range) -> None:
    """Against random search, which recommends the best value that it observed."""
    print(f"repetitions {repetitions.start} to {repetitions.stop - 1}. Regret: mean (median). "
          "Beats: in how many of them the recommended value\nhas less regret than random search's best "
          "trial, and than the curve through random search's trials.\nHolds: in how many the "
          "interval holds the landscape's own top, and the closed form's optimum.")  # fmt: skip
    grounds = {f"closed form, sd {spread}": closed_form(spread) for spread in SPREADS}
    grounds |= {"closed form, measured sd": closed_form(None), "real training": really_trained()}
    for name, over in grounds.items():
        (search,) = house(folder, space=over.space).searches
        peer: list[Told] = []
        for kind in ("random", "tpe", "gp"):
            told = list(judged(search, kind, over, repetitions))
            peer = peer or told
            wins = [
                sum(one.recommended < getattr(theirs, what)
                    for one, theirs in zip(told, peer, strict=True))
                for what in ("best", "recommended")
            ]  # fmt: skip
            best, curve = ("{mean:.4f} ({median:.4f})".format(**sizes(told, what))
                           for what in ("best", "recommended"))  # fmt: skip
            print(f"| {name} | {kind} | {best} | {curve} | {wins[0]} | {wins[1]} | "
                  f"{sum(one.holds_top for one in told)} | "
                  f"{sum(one.holds_closed_form for one in told)} |", flush=True)  # fmt: skip


def train(recipe: str) -> Iterator[list[float]]:
    """Really trains what tests/tune/trained.json holds of a recipe: [beta, seed, accuracy, KL]."""
    from backends.micro.disk import read_metrics
    from backends.micro.train import run

    steps, schedule, seeds = RECIPES[recipe]
    with tempfile.TemporaryDirectory() as name:
        (search,) = house(Path(name), space={"kl.beta": "log(0.001, 100)"}).searches
        for beta in measured(recipe, 1.0):
            for cell in search.cells({"kl.beta": beta}, range(seeds)):
                place = Path(name) / cell.id
                rate = cell.settings.optimizer.model_copy(update={"schedule": schedule})
                longer = {"num_train_steps": steps, "optimizer": rate}
                changed = {"settings": cell.settings.model_copy(update=longer),
                           "cadence": Cadence(evaluate_every_steps=steps)}  # fmt: skip
                run(cell.model_copy(update=changed), Place(place, place / "1", place / "kept"))
                *_, last = read_metrics(place / "1")
                yield [beta, cell.settings.seed, last.values["eval/accuracy_in_domain"],
                       last.values["eval/kl_reverse"]]  # fmt: skip


def main() -> None:
    what, *rest = sys.argv[1:] or ["cost"]
    if what == "train":
        made = {recipe: list(train(recipe)) for recipe in RECIPES}
        TRAINED.write_text(json.dumps(made, indent=1) + "\n")
        return
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
