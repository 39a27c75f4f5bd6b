"""What surrounds the KL, function by function: what is kept, and that the libraries say it."""

import json
from pathlib import Path

import pytest

from docs.tools import drift
from orchestrator import plugins
from orchestrator.lab.probes import functions
from tests.backends.environments import contract_python
from tests.command_line import orch

GSPO = ("gspo token-mean", "gspo seq-mean-token-mean")


def test_gspo_of_verl_0_9_1_is_found() -> None:
    """Its tokens are aggregated by loss_agg_mode since then, before by seq-mean-token-mean."""
    assert functions.changed("verl", "0.9.0", "0.9.1") == ["gspo token-mean"]
    by_mode, by_response = (functions.read("verl")["0.9.0"][name] for name in GSPO)
    assert by_mode["gradient"] == by_response["gradient"]
    by_mode, by_response = (functions.read("verl")["0.9.1"][name] for name in GSPO)
    assert by_mode["gradient"] != by_response["gradient"]


def test_releases_that_were_not_measured_are_not_compared() -> None:
    assert functions.changed("verl", "0.9.1", "99.0.0") is None
    assert functions.changed("verl", "0.9.1", "0.9.1") == []
    assert functions.changed("nemo_rl", "0.6.0", "0.7.0") is None, "a library that is only read"


def test_what_is_written_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    releases = {
        "0.1": {"a": {"value": 1.0}},
        "0.2": {"a": {"value": 1.0}, "b": {"error": "no"}},
        "0.3": {"a": {"value": 2.0}},
        "0.4": {"a": {"value": 2.0}, "b": {"error": "no"}},
    }
    (tmp_path / "evidence").mkdir()
    (tmp_path / functions.KEPT).write_text(functions.written(releases))
    spans = json.loads((tmp_path / functions.KEPT).read_text())["functions"]
    assert [each[:2] for each in spans["a"]] == [[0, 1], [2, 3]]
    assert [each[:2] for each in spans["b"]] == [[1, 1], [3, 3]]
    monkeypatch.setattr(plugins, "folder", lambda _: tmp_path)
    monkeypatch.setattr(plugins, "names", lambda: ("x",))
    functions.read.cache_clear()
    try:
        assert functions.read("x") == releases
        assert functions.changed("x", "0.2", "0.3") == ["a"]
        (_, second, _) = drift.function_lines("x")
        assert second == "**x 0.2 → 0.3**: **other numbers**: `a`; no longer measured: `b`"
    finally:
        functions.read.cache_clear()


def test_a_comparison_of_releases_names_the_functions(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(
        "python3 -m verl.trainer.main_ppo actor_rollout_ref.actor.use_kl_loss=True "
        "actor_rollout_ref.actor.policy_loss.loss_mode=gspo\n"
    )
    done = orch(tmp_path, "audit", "--from", "verl@0.9.0", "--to", "verl@0.9.1", "run.sh")
    assert done.returncode == 3, done.stderr
    told = " ".join(done.stderr.split())
    assert "1 function measures differently in 0.9.1 than in 0.9.0: gspo token-mean" in told


@pytest.mark.slow
@pytest.mark.parametrize("version", ["0.8.0", "0.9.1"])
def test_the_functions_measure_what_is_kept(version: str) -> None:
    python = contract_python("verl", version)
    (package,) = python.parents[1].glob("lib/python*/site-packages/verl")
    assert functions.measure("verl", version, package) == functions.read("verl")[version]
