"""orch explain, as a person calls them."""

import json
from typing import Any

import pytest
from click.testing import CliRunner, Result

from orchestrator.cli.conventions import with_conventions
from orchestrator.cli.explain import command as explain
from orchestrator.errors import LaboratoryError
from orchestrator.estimators import choices, names
from orchestrator.losses.table import POLICY_LOSSES
from orchestrator.pipeline.messages import set_quiet, set_verbose


def run(command: Any, *words: str, verbose: bool = False) -> Result:
    set_quiet(False)  # a command of an earlier test may have been quiet
    if verbose:
        words = (*words, "-v")
    try:
        return CliRunner().invoke(
            with_conventions(command.name, command), words, catch_exceptions=False
        )
    finally:
        set_verbose(False)


def test_explain_one() -> None:
    short, long = run(explain, "k3", "loss"), run(explain, "k3", "loss", verbose=True)
    assert short.exit_code == 0
    for part in ("token-level forward KL", "§4.1", "k1 in the reward", "0.99 ×"):
        assert part in short.output
    for part in ("token_forward_kl", "paper eq. 16, 41", "checked    signs"):
        assert part in long.output
        assert part not in short.output
    assert max(map(len, (short.stdout + long.stdout).split("\n"))) <= 100


@pytest.mark.parametrize(
    ("words", "lines"),
    [
        (("k3", "loss"), 24),
        (("k1", "reward"), 16),
        (("k3", "both", "--advantage", "grpo"), 32),
    ],
)
def test_the_answer_comes_before_what_is_behind_it(words: tuple[str, ...], lines: int) -> None:
    """The first screen was 38 lines, of which 14 said what was checked."""
    short = run(explain, *words).stdout.strip().split("\n")
    assert len(short) <= lines
    text = " ".join(short)
    assert text.index("In plain words") < text.index("advice")
    assert "note" not in text or text.index("advice") < text.index("note")
    assert short[-1].startswith("-v: equation")


def test_explain_options_change_the_answer() -> None:
    on = json.loads(run(explain, "k1", "reward", "--json").stdout)
    off = json.loads(run(explain, "k1", "reward", "--off-policy", "--json").stdout)
    assert (on["objective"], off["objective"]) == ("sequence_reverse_kl", "surrogate")
    whole = ("--ratio", "sequence", "--reward-kl-of", "policy")
    exact = json.loads(run(explain, "k1", "reward", "--off-policy", *whole, "--json").stdout)
    assert exact["objective"] == "sequence_reverse_kl"
    assert exact["notes"] == []
    assert off["terms"] == [[1, "ppo_k1@rollout_kl"]]
    paper = run(explain, "k1", "reward", "--off-policy", "--reward-kl-of", "policy", "--json")
    assert json.loads(paper.stdout)["terms"] == [[1, "ppo_k1"]]
    grpo = run(explain, "k1", "reward", "--advantage", "grpo", "--group-size", "8")
    assert "in groups of 8" in " ".join(grpo.output.split())
    assert run(explain, "k3", "both").output == run(explain, "k3", "reward_and_loss").output


def test_explain_none() -> None:
    found = run(explain, "none", "--off-policy")
    assert "no KL term" in found.output
    assert "(under dr_grpo, §4.2, Fig. 7)" in " ".join(found.output.split())


def test_explain_all_extends_table_1() -> None:
    found = run(explain, "--all")
    rows = [line for line in found.output.split("\n") if line.startswith(choices())]
    assert len(rows) == 2 * (len(names()) * 3 + 1)
    assert (
        len(json.loads(run(explain, "--all", "--off-policy", "--json").stdout))
        == len(names()) * 3 + 1
    )


def test_explain_all_says_which_group_its_numbers_assume() -> None:
    assert "are of G = 8" in run(explain, "--all", "--off-policy", "--advantage", "dr_grpo").output
    asked = ("--all", "--off-policy", "--advantage", "grpo", "--group-size", "4")
    assert "G = 8" not in run(explain, *asked).output
    assert "before the group's deviation divides it" in run(explain, *asked).output


def test_the_laboratory_prints_bias_variance_and_the_caveat() -> None:
    found = run(explain, "--exact")
    assert "rho_k3.loss@sequence" in found.output
    assert "does not state the parameters" in found.output


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ((), "Error:"),
        (("k3", "middle"), "Error:"),
        (("--all", "--ratio", "sequence"), "Error:"),
        (("k3", "loss", "--exact"), "takes no estimator"),
        (("gspo", "loss"), "takes no placement"),
        (("deepseek",), "is no estimator"),
    ],
)
def test_what_does_not_go_together_is_a_usage_error(words: tuple[str, ...], sentence: str) -> None:
    done = CliRunner().invoke(explain, list(words))
    assert done.exit_code == 2
    assert sentence in done.output
    assert "Traceback" not in done.output


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("cispo", "the ratio at most 5, no lower bound (loss.clip low 1, high 4,"),
        ("gspo", "the geometric mean ratio in [0.9997, 1.0004]"),
        ("vespo", "bounds none"),
        ("gspo+k1", "0 (no pull)"),
        ("gspo+k1", "(pushes away)"),
        ("--help", "what a policy loss keeps of the gradient"),
    ],
)
def test_bounds_and_zeros_of_a_policy_loss_are_in_words(words: str, expected: str) -> None:
    text = " ".join(CliRunner().invoke(explain, [words]).output.split())
    assert expected in text
    assert "e-17" not in text


def test_each_policy_loss_has_its_bounds_in_words() -> None:
    for entry in POLICY_LOSSES.values():
        assert bool(entry.bounds_in_words) is bool(entry.measure), entry.name


def test_a_policy_loss_is_explained_in_few_lines_and_fully_with_v() -> None:
    short = CliRunner().invoke(explain, ["gspo"]).output
    assert "none to the policy that sampled" in short
    assert "instead" in short
    assert "Responses have 10 tokens here" in short, "beside the share that is dropped"
    assert len(short.splitlines()) < 22
    assert "Zheng et al." not in short


def test_a_ratio_that_a_term_cannot_have_is_refused_in_its_own_words() -> None:
    """It named reward_kl_of, which nobody had asked for."""
    with pytest.raises(LaboratoryError, match="with ratio 'sequence': the sequence ratio") as said:
        run(explain, "k3", "loss", "--ratio", "sequence")
    assert "reward_kl_of" not in str(said.value)
