"""The `tune` block: one message names everything wrong with it, and nothing is written."""

from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import SpecError
from orchestrator.runs.experiment import open_experiment
from orchestrator.search.design import design
from tests.search.rehearsed import BLOCK, ROOT, experiment, house

IN_DOMAIN = {"eval/in_domain/mean": "maximize"}


@pytest.mark.parametrize(
    ("block", "told"),
    [
        ({"space": {}}, "tune.space is empty"),
        ({"objectives": {}}, "tune.objectives is empty"),
        (
            {"space": {"kl.beta": "uniform(-1, 1)"}},
            "kl.beta must be >= 0, got -1.0  @ $.tune.space",
        ),
        ({"space": {"kl.beta": "log(0, 1)"}}, "a logarithmic scale has no 0"),
        ({"objectives": {"eval/in_domain/meen": "maximize"}}, "did you mean 'eval/in_domain/mean'"),
        ({"objectives": {"eval/math500/mean@32": "maximize"}}, "no metric is called"),
        ({"objectives": {"eval/accuracy/srot": "maximize"}}, "did you mean 'eval/accuracy/sort'"),
        ({"pruner": "median", "prune_on": "eval/accuracy/srot"}, "$.tune.prune_on"),
        ({"objectives": {"eval/in_domain/mean": "up"}}, "must be one of maximize, minimize"),
        ({"study": "bta"}, "did you mean 'beta'"),
        ({"fixed": {}}, "tune.each or tune.space (--each 'kl=[k1.reward]')"),
        ({"fixed": {"kl": "k9.reward"}}, "no KL estimator is called 'k9'"),
        ({"fixed": {"kl": "k1.reward", "kl.beta": 1}}, "cannot be in tune.fixed too"),
        ({"each": {"kl.beta": [1]}}, "cannot be in tune.each too"),
        ({"each": {"max_staleness_steps": [0, 0]}}, "is in tune.each twice"),
        ({"each": {"max_staleness_steps": []}}, "is empty"),
        ({"seeds": []}, "tune.seeds is empty"),
        ({"seeds": [1, 1]}, "names a seed twice"),
        ({"seeds": [1], "confirm_seeds": [1]}, "cannot confirm"),
        ({"trials": 0}, "tune.trials must be > 0"),
        ({"trails": 3}, "did you mean 'trials'"),
        ({"sampler": "tp"}, "must be one of tpe, gp, random, qmc"),
        ({"pruner": "hyperband", "objectives": IN_DOMAIN}, "set prune_on"),
        ({"prune_on": "train/reward_mean"}, "tune.pruner is none"),
        (
            {"pruner": "median", "objectives": {**IN_DOMAIN, "eval/kl_reverse": "minimize"}},
            "Optuna prunes for one objective only",
        ),
        ({"if_failed": [0.0, 1.0]}, "one value an objective"),
        ({"name": "../x"}, "tune.name must be letters"),
        ({"space": {"data.reward": ["exact", "countdwn"]}}, "data.reward"),
    ],
)
def test_a_mistake_is_a_sentence(block: dict[str, Any], told: str, tmp_path: Path) -> None:
    opened = experiment(tmp_path)
    with pytest.raises(SpecError) as caught:
        design(opened, {**BLOCK, **block})
    assert told in str(caught.value)
    assert not (tmp_path / "runs").exists()


def test_all_mistakes_are_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(SpecError) as caught:
        design(
            experiment(tmp_path),
            {**BLOCK, "seeds": [], "study": "no", "space": {"kl.beta": "log(1, 0)", "x": [1]}},
        )
    assert len(caught.value.faults) == 4


def test_the_shipped_block_gives_a_search_for_each_configuration(tmp_path: Path) -> None:
    opened = open_experiment(ROOT / "experiments" / "beta_sweep.yaml", ["site=local"])
    searches = design(opened)
    assert [search.name for search in searches] == ["k1.reward", "k3.loss", "k2.loss"]
    assert {search.tune.block.trials for search in searches} == {12}


def test_a_trial_is_the_cell_that_a_grid_would_have(tmp_path: Path) -> None:
    """Same identity, whoever asks: that is what lets results be shared."""
    made = house(tmp_path)
    (search,) = made.searches
    grid = {cell.id for cell in made.experiment.cells}
    at_005 = search.cells({"kl.beta": 0.05}, [0, 1, 2])
    assert {cell.id for cell in at_005} <= grid
    assert search.cells({"kl.beta": 0.05004}, [0])[0].id not in grid
