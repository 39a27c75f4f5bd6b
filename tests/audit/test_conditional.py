"""Verdicts of each case, where a fact that decides is not in the file."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from audit.scripts import COEFFICIENT, IN_REWARD, ON_POLICY, OPENRLHF, SKYRL, TYPE, USE_LOSS, VERL
from audit.scripts import only as finding_on
from orchestrator.audit.render import finding_as_json, sarif
from orchestrator.cli.audit import command

VERL_LOSS = f"{VERL} {ON_POLICY} {IN_REWARD}=False {USE_LOSS}=True"
NOT_DATED = "[model]\nname = 'm'\n[orchestrator]\nbatch_size = 8\n[trainer.loss]\nadv_tau = 1.0\n"
TWO_PATHS = """
[orchestrator]
batch_size = 8
[[orchestrator.train.source]]
name = "a"
[[orchestrator.train.source]]
name = "b"
[orchestrator.train.source.algo]
type = "opd"
[inference.vllm]
gpu_memory_utilization = 0.5
"""


@pytest.mark.parametrize(
    ("text", "name", "expected"),
    [
        (
            f"{OPENRLHF} --init_kl_coef $KL --use_kl_loss --kl_estimator k2",
            "x.sh",
            {"init_kl_coef ($KL) is 0": "no_kl", "init_kl_coef ($KL) is above 0": "k2"},
        ),
        (
            f"{VERL_LOSS} {TYPE}=kl {COEFFICIENT}=$(cat beta)",
            "x.sh",
            {" is 0": "no_kl", " is above 0": "zero_mean_noise"},
        ),
        (
            f"{VERL_LOSS} {TYPE}=$(cat kind)",
            "x.sh",
            {
                " is kl": "zero_mean_noise",
                " is abs": "other_objective",
                " is mse": "token_reverse_kl",
                " is low_var_kl": "token_forward_kl",
                " is k3+": "token_reverse_kl",
            },
        ),
        (
            f"{VERL} {ON_POLICY} {IN_REWARD}=False {USE_LOSS}=$(cat on) {TYPE}=mse",
            "x.sh",
            {" is true": "token_reverse_kl", " is false": "no_kl"},
        ),
        (
            f"{VERL_LOSS} {TYPE}=mse {COEFFICIENT}=0,0.01,0.1 --multirun",
            "x.sh",
            {" is 0": "no_kl", " is 0.01": "token_reverse_kl", " is 0.1": "token_reverse_kl"},
        ),
        (
            f"{VERL} algorithm.kl_ctrl.kl_coef=0.001",
            "x.sh",
            {"verl is before 0.4.0": "unbiased_reverse_kl", "verl is 0.4.0 or later": "no_kl"},
        ),
        (
            f"{SKYRL} trainer.algorithm.kl_loss_coef=$1",
            "x.sh",
            {" is 0": "no_kl", " is above 0": "token_forward_kl"},
        ),
        (
            "from trl import GRPOConfig\nGRPOConfig(use_vllm=True, max_prompt_length=4)\n",
            "x.py",
            {"TRL is 0.14.0 to 0.18.2": "token_forward_kl", "TRL is 0.19.0 to": "no_kl"},
        ),
        (
            NOT_DATED,
            "x.toml",
            {
                "Prime-RL is from before March 2026": "no_kl",
                "Prime-RL is from March 2026 or later": "rollout_policy_kl_only",
            },
        ),
        (
            TWO_PATHS,
            "x.toml",
            {
                " is trained by opd": "token_reverse_kl",
                " is trained by rl": "rollout_policy_kl_only",
            },
        ),
    ],
)
def test_a_verdict_for_each_case(text: str, name: str, expected: dict[str, str]) -> None:
    finding = finding_on(text, name)
    assert (finding.verdict, finding.confidence) == ("undetermined", "conditional")
    assert len(finding.conditional) == len(expected)
    for case, (when, verdict) in zip(finding.conditional, expected.items(), strict=True):
        assert when in case.when
        assert verdict in (case.term_verdict, case.terms.partition(" ")[0])


def test_two_unknown_facts_are_one_condition() -> None:
    finding = finding_on(f"{SKYRL} trainer.algorithm.kl_loss_coef=$1 {A}.kl_estimator_type=k2")
    assert [each.verdict for each in finding.conditional] == ["no_kl", "k2_of_old_samples"]
    text = f"{VERL} {ON_POLICY} {IN_REWARD}=False {USE_LOSS}=$(a) {TYPE}=mse {COEFFICIENT}=$(b)"
    cases = finding_on(text).conditional
    assert [each.term_verdict for each in cases] == ["no_kl", "token_reverse_kl", "no_kl"]
    assert " and " in cases[0].when


A = "trainer.algorithm"


@pytest.mark.parametrize(
    "text",
    [
        f"python3 -m verl.trainer.main_ppo --config-name mine {USE_LOSS}=True",
        f"{VERL_LOSS} {TYPE}=$(cat kind) {COEFFICIENT}=$(cat beta)",
        f"bash common.sh {A}.use_kl_loss=true",
        f"{OPENRLHF} --init_kl_coef $KL --kl_estimator mine",
    ],
)
def test_without_a_verdict_for_every_case_there_is_none(text: str) -> None:
    """Another file may set anything; ten cases are no answer."""
    finding = finding_on(text)
    assert (finding.conditional, finding.confidence) == ((), "none")


def test_a_case_has_no_weight_that_nobody_gave(tmp_path: Path) -> None:
    script = tmp_path / "x.sh"
    script.write_text(f"{VERL_LOSS} {TYPE}=kl {COEFFICIENT}=$(cat beta)\n", encoding="utf-8")
    done = CliRunner().invoke(command, [str(script)], standalone_mode=False)
    assert done.return_value == 1
    shown = " ".join(done.stdout.split())
    assert "is above 0, nothing: noise of mean zero" in shown
    assert "That depends on what the file does not say: if" in shown
    assert "0.001" not in shown
    concise = CliRunner().invoke(command, ["--format", "concise", str(script)])
    assert "is 0, no KL" in concise.stdout


def test_programs_get_the_cases() -> None:
    finding = finding_on(f"{OPENRLHF} --init_kl_coef $KL")
    first = finding_as_json(finding)["conditional"][0]
    assert first == {
        "when": "init_kl_coef ($KL) is 0",
        "verdict": "no_kl",
        "term_verdict": "no_kl",
        "terms": "",
    }
    message = sarif([finding])["runs"][0]["results"][0]["message"]["text"]
    assert "If init_kl_coef ($KL) is 0: no KL (no_kl)." in message
