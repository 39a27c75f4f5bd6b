"""orch explain, as a person calls them."""

import json
from subprocess import CompletedProcess

import pytest

from orchestrator.estimators import choices, names
from orchestrator.losses.table import POLICY_LOSSES
from tests.command_line import ROOT, orch


def run(*words: str) -> CompletedProcess[str]:
    return orch(ROOT, "explain", *words)


def test_explain_one() -> None:
    short, long = run("k3", "loss"), run("k3", "loss", "-v")
    assert short.returncode == 0
    for part in ("token-level forward KL", "§4.1", "k1 in the reward", "0.99 ×"):
        assert part in short.stdout
    for part in ("token_forward_kl", "paper eq. 16, 41", "checked    signs"):
        assert part in long.stdout
        assert part not in short.stdout
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
    short = run(*words).stdout.strip().split("\n")
    assert len(short) <= lines
    text = " ".join(short)
    assert text.index("In plain words") < text.index("advice")
    assert "note" not in text or text.index("advice") < text.index("note")
    assert short[-1].startswith("-v: equation")


def test_explain_options_change_the_answer() -> None:
    on = json.loads(run("k1", "reward", "--json").stdout)
    off = json.loads(run("k1", "reward", "--off-policy", "--json").stdout)
    assert (on["objective"], off["objective"]) == ("sequence_reverse_kl", "surrogate")
    whole = ("--ratio", "sequence", "--reward-kl-of", "policy")
    exact = json.loads(run("k1", "reward", "--off-policy", *whole, "--json").stdout)
    assert exact["objective"] == "sequence_reverse_kl"
    assert exact["notes"] == []
    assert off["terms"] == [[1, "ppo_k1@rollout_kl"]]
    paper = run("k1", "reward", "--off-policy", "--reward-kl-of", "policy", "--json")
    assert json.loads(paper.stdout)["terms"] == [[1, "ppo_k1"]]
    grpo = run("k1", "reward", "--advantage", "grpo", "--group-size", "8")
    assert "in groups of 8" in " ".join(grpo.stdout.split())
    assert run("k3", "both").stdout == run("k3", "reward_and_loss").stdout


def test_explain_none() -> None:
    found = run("none", "--off-policy")
    assert "no KL term" in found.stdout
    assert "(under dr_grpo, §4.2, Fig. 7)" in " ".join(found.stdout.split())


def test_explain_all_extends_table_1() -> None:
    found = run("--all")
    rows = [line for line in found.stdout.split("\n") if line.startswith(choices())]
    assert len(rows) == 2 * (len(names()) * 3 + 1)
    assert len(json.loads(run("--all", "--off-policy", "--json").stdout)) == len(names()) * 3 + 1


def test_explain_all_says_which_group_its_numbers_assume() -> None:
    assert "are of G = 8" in run("--all", "--off-policy", "--advantage", "dr_grpo").stdout
    asked = ("--all", "--off-policy", "--advantage", "grpo", "--group-size", "4")
    assert "G = 8" not in run(*asked).stdout
    assert "before the group's deviation divides it" in run(*asked).stdout


def test_the_laboratory_prints_bias_variance_and_the_caveat() -> None:
    found = run("--exact")
    assert "rho_k3.loss@sequence" in found.stdout
    assert "does not state the parameters" in found.stdout


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ((), "give a KL term"),
        (("k3", "middle"), "is not one of 'reward'"),
        (("--all", "--ratio", "sequence"), "--all lists the token ratio"),
        (("k3", "loss", "--exact"), "takes no estimator"),
        (("gspo", "loss"), "takes no placement"),
        (("deepseek",), "is no estimator"),
    ],
)
def test_what_does_not_go_together_is_a_usage_error(words: tuple[str, ...], sentence: str) -> None:
    done = run(*words)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr


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
    text = " ".join(run(words).stdout.split())
    assert expected in text
    assert "e-17" not in text


def test_each_policy_loss_has_its_bounds_in_words() -> None:
    for entry in POLICY_LOSSES.values():
        assert bool(entry.bounds_in_words) is bool(entry.measure), entry.name


def test_a_policy_loss_is_explained_in_few_lines_and_fully_with_v() -> None:
    short = run("gspo").stdout
    assert "none to the policy that sampled" in short
    assert "instead" in short
    assert "Responses have 10 tokens here" in short, "beside the share that is dropped"
    assert len(short.splitlines()) < 22
    assert "Zheng et al." not in short


def test_a_ratio_that_a_term_cannot_have_is_refused_in_its_own_words() -> None:
    """It named reward_kl_of, which nobody had asked for."""
    said = run("k3", "loss", "--ratio", "sequence").stderr
    assert "with ratio 'sequence': the sequence ratio" in said
    assert "reward_kl_of" not in said
