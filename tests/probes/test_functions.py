"""What surrounds the KL, function by function: what is kept, and that the libraries say it."""

import json
from pathlib import Path

import pytest

from orchestrator import plugins
from orchestrator.lab.probes import functions
from tests.backends.environments import contract_python

GSPO = ("gspo token-mean", "gspo seq-mean-token-mean")


def test_gspo_of_verl_0_9_1_is_found() -> None:
    """Its tokens are aggregated by loss_agg_mode since then, before by seq-mean-token-mean."""
    assert functions.changed("verl", "0.9.0", "0.9.1") == ["gspo token-mean"]
    by_mode, by_response = (functions.read("verl")["0.9.0"][name] for name in GSPO)
    assert by_mode["gradient"] == by_response["gradient"]
    by_mode, by_response = (functions.read("verl")["0.9.1"][name] for name in GSPO)
    assert by_mode["gradient"] != by_response["gradient"]


def test_skyrls_cispo_of_0_4_0_is_found() -> None:
    """The bounds of its ratio are [0, 5] by default since then, before [1, 6]."""
    reductions = ["cispo sequence_mean", "cispo token_mean"]
    assert functions.changed("skyrl", "0.3.0", "0.4.0") == reductions
    assert functions.changed("skyrl", "0.2.0", "0.3.0") == []


def test_skyrl_0_2_0_no_longer_divides_what_no_advantage_multiplies() -> None:
    """Since then advantages carry the divisor: kl_cov's own KL and the masked losses have another
    one, and the losses that are advantages times a ratio have the same gradient."""
    changed = functions.changed("skyrl", "0.1.0", "0.2.0")
    assert changed is not None
    assert {"kl_cov token_mean", "importance_sampling token_mean"} <= set(changed)
    assert not {"regular token_mean", "gspo token_mean", "sapo sequence_mean"} & set(changed)


def test_releases_that_were_not_measured_are_not_compared() -> None:
    assert functions.changed("verl", "0.9.1", "99.0.0") is None
    assert functions.changed("verl", "0.9.1", "0.9.1") == []
    assert functions.changed("nemo_rl", "0.6.0", "0.7.0") is None, "a library that is only read"


def test_what_is_written_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    b = {"function": "g", "value": [1.0, 3.0]}
    releases = {
        "0.1": {"a": {"function": "f", "value": 1.0}},
        "0.2": {"a": {"function": "f", "value": 1.0}, "b": b},
        "0.3": {"a": {"function": "f", "value": 2.0}},
        "0.4": {"a": {"function": "f_of_a", "value": 2.0}, "b": b},
    }
    (tmp_path / "evidence").mkdir()
    (tmp_path / functions.KEPT).write_text(functions.written(releases))
    spans = json.loads((tmp_path / functions.KEPT).read_text())["functions"]
    assert [each[:2] for each in spans["a"]] == [[0, 1], [2, 2], [3, 3]]
    assert [each[:2] for each in spans["b"]] == [[1, 1], [3, 3]]
    monkeypatch.setattr(plugins, "folder", lambda _: tmp_path)
    monkeypatch.setattr(plugins, "names", lambda: ("x",))
    functions.read.cache_clear()
    try:
        assert functions.read("x") == releases
        assert functions.measured_in_both("x", "0.1", "0.2") == {"f"}, "b was not there"
        assert functions.measured_in_both("x", "0.2", "0.3") == {"f"}, "b is no longer there"
        assert functions.measured_in_both("x", "0.2", "0.4") == {"g"}, "a is another function"
        assert functions.changed("x", "0.3", "0.4") == [], "of the same numbers"
        assert functions.changed("x", "0.2", "0.3") == ["a"]
    finally:
        functions.read.cache_clear()


def test_a_function_has_the_name_that_it_has_in_the_release() -> None:
    """verl renamed its loss in 0.6.0; Prime-RL moved its default loss, and renamed distillation."""
    verl, prime_rl = functions.read("verl"), functions.read("prime_rl")
    assert verl["0.5.0"]["vanilla token-mean"]["function"] == "compute_policy_loss"
    assert verl["0.6.0"]["vanilla token-mean"]["function"] == "compute_policy_loss_vanilla"
    assert "compute_policy_loss" in functions.measured_in_both("verl", "0.4.1", "0.5.0")
    assert prime_rl["0.3.0"]["default loss"]["function"] == "compute_loss"
    assert prime_rl["0.6.0"]["on-policy distillation"]["function"] == "opd_loss_fn"


def test_a_release_that_adds_1e_8_to_a_divisor_measures_the_same() -> None:
    """verl 0.6.1 does, in the mean over responses."""
    plain, moved, other = ({"f": {"value": [1.0, x]}} for x in (3.0, 3.0 + 1e-7, 3.0 + 1e-5))
    assert functions.differing(plain, moved) == []
    assert functions.differing(plain, other) == ["f"]
    assert functions.differing(plain, {"f": {"value": 1.0}}) == ["f"]
    assert functions.changed("verl", "0.6.0", "0.6.1") == []


MEASURED = [("verl", "0.8.0"), ("verl", "0.9.1"), ("skyrl", "0.4.0"), ("openrlhf", "0.11.2")]


@pytest.mark.slow
@pytest.mark.parametrize(("library", "version"), MEASURED)
def test_the_functions_measure_what_is_kept(library: str, version: str) -> None:
    python = contract_python(library, version)
    (package,) = python.parents[1].glob(f"lib/python*/site-packages/{library}")
    kept = functions.read(library)[version]
    measured = functions.measure(library, version, package)
    assert measured.keys() == kept.keys()
    assert not functions.differing(kept, measured)
