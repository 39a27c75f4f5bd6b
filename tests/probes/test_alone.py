"""The KL of libraries that orch only reads, measured in their own functions.

A checkout is named by ORCH_<LIBRARY>_<RELEASE>_SOURCE (ORCH_SLIME_031_SOURCE); a release without
one is skipped, and says so. What was measured before is in `backends/<library>/measured.json`.
"""

import warnings
from pathlib import Path

import pytest
from click.testing import CliRunner

from orchestrator import plugins
from orchestrator.errors import EnvironmentFault
from orchestrator.estimators import TABLE
from orchestrator.evidence.stored import differences
from orchestrator.lab.__main__ import main
from orchestrator.lab.probes import read_only_releases
from orchestrator.lab.probes.read_only_releases import measure

RELEASES = read_only_releases.chosen(())
OBJECTIVES = {"k1": "zero", "k2": "token_reverse_kl", "k3": "token_forward_kl"}


def test_every_library_that_is_only_read_was_measured() -> None:
    assert set(read_only_releases.libraries()) == set(plugins.only_read())
    assert {library for library, _ in RELEASES} == set(plugins.only_read())
    for library, version in RELEASES:
        assert len(read_only_releases.read(library)[version]["commit"]) == 40


@pytest.mark.parametrize(("library", "version"), RELEASES)
def test_a_readers_name_is_the_estimator_that_was_measured(library: str, version: str) -> None:
    names = plugins.load_reader(library).estimator_names
    rows = read_only_releases.read(library)[version]["rows"]
    known = [row for row in rows if row["name"] in names]
    assert known or library == "open_instruct"
    for row in known:
        assert row["curve"]["value"] == names[row["name"]], row
        assert row["curve"]["deviation"] < 1e-5 or row["curve"]["gradient"] == "?"
    for row in rows:
        if "on_policy" in row and not row["curve"]["straight_through"]:
            value = row["curve"]["value"]
            if not TABLE[value].is_weighted and not row["on_policy"].get("dropped"):
                assert row["on_policy"]["objective"] == OBJECTIVES[value], row


def test_what_readers_say_of_the_traps_was_measured() -> None:
    """slime's grpo drops the KL of the reward; NeMo-RL 0.7.0 turned k2 into the mean of k2."""

    def objective(library: str, version: str, name: str) -> dict[str, object]:
        rows = read_only_releases.read(library)[version]["rows"]
        answer: dict[str, object] = next(e for e in rows if e["name"] == name)["on_policy"]
        return answer

    assert objective("slime", "0.3.1", "k1 --kl-coef 1, grpo")["dropped"] is True
    assert "dropped" not in objective("slime", "0.3.1", "k1")
    assert objective("nemo_rl", "0.6.0", "k2")["objective"] == "token_reverse_kl"
    assert objective("nemo_rl", "0.7.0", "k2")["terms"] == [[1, "token_k2"]]
    assert objective("nemo_rl", "0.7.0", "k1")["objective"] == "token_reverse_kl"


@pytest.mark.parametrize(("library", "version"), RELEASES)
def test_a_checkout_is_measured_as_it_was(library: str, version: str) -> None:
    pytest.importorskip("torch")
    try:
        folder = read_only_releases.checkout(library, version)
    except EnvironmentFault as error:
        warnings.warn(str(error), stacklevel=1)
        pytest.skip(str(error))
    assert not differences(
        read_only_releases.read(library)[version], measure(library, version, folder)
    )


def test_a_checkout_that_is_not_here_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ORCH_SLIME_031_SOURCE", raising=False)
    with pytest.raises(EnvironmentFault, match=r"point ORCH_SLIME_031_SOURCE or --source"):
        CliRunner().invoke(
            main,
            ["measure", "slime@0.3.1"],
            standalone_mode=False,
            catch_exceptions=False,
        )


SOURCE = """
import torch

def calculate_kl(logprobs, reference, kl_type="k3", importance_sampling_weights=None):
    return {kl}
"""


@pytest.mark.parametrize(
    ("code", "value", "objective"),
    [
        ("(logprobs - reference) ** 2 / 2", "k2", "token_reverse_kl"),
        ("logprobs.detach() - reference", "k1", "zero"),
    ],
)
def test_another_checkouts_function_is_what_is_measured(
    tmp_path: Path, code: str, value: str, objective: str
) -> None:
    """The answer is the source's: a changed function has another one."""
    pytest.importorskip("torch")
    file = tmp_path / "nemo_rl" / "algorithms" / "utils.py"
    file.parent.mkdir(parents=True)
    file.write_text(SOURCE.format(kl=code))
    row = measure("nemo_rl", "0.6.0", tmp_path)["rows"][0]
    assert row["curve"]["value"] == value
    assert row["on_policy"]["objective"] == objective
    assert bool(row["on_policy"].get("dropped")) is (objective == "zero")
