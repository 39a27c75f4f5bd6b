"""The block's sampler and pruner, as Optuna's."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from orchestrator.errors import EnvironmentFault
from orchestrator.search.block import Block
from orchestrator.search.design import Search


def sampler(block: Block, trial: int) -> Any:
    """A sampler for the trial of this number. Its randomness is of the number, so that a search
    that was resumed goes on as it would have, and controllers do not propose the same."""
    from optuna import samplers

    seed = block.sampler_seed + 1_000_003 * trial
    kind = block.sampler
    if kind == "gp" and trial < _startup(block):
        kind = "qmc"  # spread over the whole range, as a few random ones may not be
    match kind:
        case "random":
            return samplers.RandomSampler(seed=seed)
        case "qmc":
            with _quiet():
                return samplers.QMCSampler(
                    seed=block.sampler_seed,
                    scramble=True,
                    warn_asynchronous_seeding=False,
                    warn_independent_sampling=False,
                )
        case "gp":
            _need_torch()
            with _quiet():
                return samplers.GPSampler(
                    seed=seed, n_startup_trials=_startup(block), deterministic_objective=False
                )
        case "tpe":
            return samplers.TPESampler(seed=seed, n_startup_trials=_startup(block))


def _startup(block: Block) -> int:
    """Trials before there is anything to go by: a hill that they all miss is found late."""
    return max(3, min(10, 2 * block.trials // 5))


def _need_torch() -> None:
    from importlib.util import find_spec

    if find_spec("torch") is None:
        raise EnvironmentFault(
            "sampler gp needs PyTorch, which is not installed here; take sampler tpe, or install "
            "orch with it: pip install 'orch-rl[micro]'"
        )


@contextmanager
def _quiet() -> Iterator[None]:
    """Without Optuna's word that a part of it is experimental."""
    from optuna.exceptions import ExperimentalWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        yield


def pruner(search: Search) -> Any:
    """A pruner. Hyperband's resource is train steps, from the first in-loop evaluation on."""
    from optuna import pruners

    match search.tune.block.pruner:
        case "hyperband":
            cell = search.cells(search.corners()[0], search.tune.seeds[:1])[0]
            steps = cell.settings.num_train_steps
            first = cell.cadence.evaluate_every_steps or max(1, steps // 10)
            return pruners.HyperbandPruner(min_resource=first, max_resource=steps)
        case "median":
            return pruners.MedianPruner(n_startup_trials=4)
        case "wilcoxon":
            with _quiet():
                return pruners.WilcoxonPruner()
        case "none":
            return pruners.NopPruner()
