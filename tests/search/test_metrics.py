"""Which metrics an objective may name, by what will train the cells."""

from pathlib import Path

import pytest

from orchestrator.runs.experiment import open_experiment
from orchestrator.search.design import CellMetrics, metrics_of
from tests.search.rehearsed import ROOT


def metrics(site: str, name: str = "comedy_full.yaml") -> CellMetrics:
    opened = open_experiment(ROOT / "experiments" / name, [f"site={site}"])
    return metrics_of(opened.cells[0], opened.spec.evaluation)


def test_an_embedded_cell_has_its_own_skills_and_no_others() -> None:
    known = metrics("local")
    for name in (
        "eval/micro_sort/mean@4",
        "eval/in_domain/mean",
        "eval/out_of_domain/pass@4",
        "eval/micro_sort/kl_reverse",
        "train/reward_mean",
        "eval/accuracy/sort",
        "eval/kl_reverse",
    ):
        assert known.fault(name) == ""
    told = known.fault("eval/accuracy/srot")
    assert "did you mean 'eval/accuracy/sort'" in told
    assert "eval/accuracy/copy" in told, "what there is"
    assert "no metric is called" in known.fault("eval/math500/mean@32")


def test_a_library_s_cell_has_what_is_evaluated_of_it() -> None:
    known = metrics("slurm_a100")
    for name in ("eval/math500/mean@32", "eval/math_test/kl_forward", "train/reward_mean"):
        assert known.fault(name) == ""
    assert "did you mean 'eval/math500/mean@32'" in known.fault("eval/math500/mean@3")
    assert "eval/out_of_domain/mean" in known.fault("eval/mmlu")
    assert "only the embedded trainer" in known.fault("eval/kl_reverse")
    assert "no metric is called" in known.fault("eval/accuracy/sort")


def test_every_name_is_told_once() -> None:
    known = metrics("local").all
    assert len(known) == len(set(known))


def test_a_score_is_named_as_evaluation_names_it(tmp_path: Path) -> None:
    pytest.importorskip("lm_eval")
    from orchestrator.evaluate.divergence import means

    row = {"kl_reverse": 1.0, "kl_forward": 1.0, "entropy": 1.0, "tokens": 1, "reference_tokens": 1}
    told = {f"eval/math_test/{name}" for name in means([row, row])}
    assert told <= set(metrics("slurm_a100").scored)
