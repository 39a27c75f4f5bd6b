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
from pathlib import Path

from orchestrator.search.block import distributions, sampler
from orchestrator.search.journal import SearchJournal
from tests.search.landscapes import (
    FRESH,
    RECIPES,
    TRAINED,
    Told,
    closed_form,
    judged,
    really_trained,
    sizes,
    train,
)
from tests.search.rehearsed import House, house, objective_at, theory
from tests.search.rehearsed import train as leave

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
    """Return the seconds of the same number of trials run by Optuna alone."""
    (search,) = house.searches
    study = SearchJournal(house.folder, "bare").study(search, sampler=sampler(search.tune.block, 0))
    began = time.process_time()
    for _ in range(trials):
        trial = study.ask(distributions(search.space))
        study.tell(trial, objective_at(trial.params["kl.beta"]))
    return (time.process_time() - began) / trials * 1000


def compare(folder: Path, repetitions: range) -> None:
    """Against random search, which recommends the best value that it observed."""
    print(
        f"repetitions {repetitions.start} to {repetitions.stop - 1}. Regret: mean (median). "
        "Beats: in how many of them the recommended value\nhas less regret than random search's "
        "best trial, and than the curve through random search's trials.\nHolds: in how many the "
        "interval holds the landscape's own top, and the closed form's optimum."
    )
    grounds = {f"closed form, sd {spread}": closed_form(spread) for spread in SPREADS}
    grounds |= {"closed form, measured sd": closed_form(None), "real training": really_trained()}
    for name, over in grounds.items():
        (search,) = house(folder, space=over.space).searches
        peer: list[Told] = []
        for kind in ("random", "tpe", "gp"):
            judgements = list(judged(search, kind, over, repetitions))
            peer = peer or judgements
            wins = [
                sum(
                    one.recommended < getattr(theirs, what)
                    for one, theirs in zip(judgements, peer, strict=True)
                )
                for what in ("best", "recommended")
            ]
            best, curve = (
                "{mean:.4f} ({median:.4f})".format(**sizes(judgements, what))
                for what in ("best", "recommended")
            )
            print(
                f"| {name} | {kind} | {best} | {curve} | {wins[0]} | {wins[1]} | "
                f"{sum(one.holds_top for one in judgements)} | "
                f"{sum(one.holds_closed_form for one in judgements)} |",
                flush=True,
            )


def main() -> None:
    what, *rest = sys.argv[1:] or ["cost"]
    if what == "train":
        trained = {recipe: list(train(recipe)) for recipe in RECIPES}
        TRAINED.write_text(json.dumps(trained, indent=1) + "\n")
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
