"""Somebody's own trainer, policy loss or advantage: undetermined, with file and line."""

from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from orchestrator.audit.judge import AuditFinding
from orchestrator.audit.libraries import Projects
from orchestrator.audit.pipeline import audit_file
from orchestrator.audit.summary import mark, summary

TRL_TRAIN = "{cls}(model='m', reward_funcs=[f], args=GRPOConfig(beta=0.04)).train()\n"
NO_KL = """from trl import GRPOConfig, GRPOTrainer
class NoKL(GRPOTrainer):
    def _compute_loss(self, model, inputs):
        return -(self._logps(model, inputs) * inputs["advantages"]).mean()
"""
VERL = (
    "python3 -m {entry} algorithm.adv_estimator={advantage} "
    "actor_rollout_ref.actor.use_kl_loss=True actor_rollout_ref.actor.kl_loss_coef=0.001 "
    "actor_rollout_ref.actor.kl_loss_type=mse actor_rollout_ref.rollout.n=8 {more}\n"
)
REGISTERED = """from verl.trainer.ppo.core_algos import register_policy_loss, register_adv_est
@register_policy_loss("mine")
def my_loss(old_log_prob, log_prob, advantages, response_mask, loss_agg_mode, config):
    return -(advantages * log_prob).mean(), {}
@register_adv_est("lone")
def my_advantage(token_level_rewards, response_mask, index, **kwargs):
    return token_level_rewards, token_level_rewards
"""

OWN = yaml.safe_load(Path(__file__).with_name("own_code.yaml").read_text(encoding="utf-8"))


def audited(folder: Path, files: Mapping[str, str], name: str, library: str) -> list[AuditFinding]:
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    (folder / ".git").mkdir(exist_ok=True)
    package, _, release = library.partition("@")
    versions = {package: f"{release} given"} if release else {}
    return audit_file(folder / name, versions, Projects())[1]


@pytest.mark.parametrize("name", OWN)
def test_own_code_is_never_fine_and_is_named(name: str, tmp_path: Path) -> None:
    case = OWN[name]
    findings = audited(tmp_path, case["files"], case["audited"], case["library"])
    assert findings
    for finding in findings:
        assert finding.verdict == "undetermined"
        assert mark(finding) == "undetermined: own loss"
        text = "\n".join(line for _, line in summary(finding))
        assert case["named"] in text, text
        assert "Still the library's: the model, the data" in text
        assert "fine" not in text.replace(str(tmp_path), "")


LIBRARYS_OWN = {
    "a subclass that logs": "from trl import GRPOConfig, GRPOTrainer\nclass T(GRPOTrainer):\n"
    "    def log(self, logs):\n        print(logs)\n" + TRL_TRAIN.format(cls="T"),
    "a class that is not used": NO_KL + TRL_TRAIN.format(cls="GRPOTrainer"),
    "a class of another trainer": "from trl import GRPOConfig, GRPOTrainer, SFTTrainer\n"
    "class S(SFTTrainer):\n    def compute_loss(self, model, inputs):\n        return 0\n"
    "S()\n" + TRL_TRAIN.format(cls="GRPOTrainer"),
}


@pytest.mark.parametrize("case", LIBRARYS_OWN)
def test_the_librarys_loss_stays_the_librarys(case: str, tmp_path: Path) -> None:
    (finding,) = audited(tmp_path, {"train.py": LIBRARYS_OWN[case]}, "train.py", "trl@1.16.0")
    assert finding.verdict != "undetermined"
    assert not finding.own


def test_a_registered_function_that_the_launch_does_not_ask_for_decides_nothing(
    tmp_path: Path,
) -> None:
    more = "actor_rollout_ref.model.external_lib=own.losses"
    script = VERL.format(entry="verl.trainer.main_ppo", advantage="rloo", more=more)
    files = {"run.sh": script, "own/losses.py": REGISTERED}
    (finding,) = audited(tmp_path, files, "run.sh", "verl@0.9.1")
    assert finding.verdict == "k2_of_old_samples"
    assert not finding.own


def test_gdpo_never_reads_the_shaped_reward(tmp_path: Path) -> None:
    """verl 0.9.1: compute_gdpo_outcome_advantage takes the parts of the reward."""
    more = "algorithm.use_kl_in_reward=True algorithm.gdpo_reward_keys=[a,b]"
    script = VERL.format(entry="verl.trainer.main_ppo", advantage="gdpo", more=more)
    script = script.replace("use_kl_loss=True", "use_kl_loss=False")
    (finding,) = audited(tmp_path, {"run.sh": script}, "run.sh", "verl@0.9.1")
    assert finding.verdict == "no_kl"
    assert "algorithm.use_kl_in_reward" in [each.flag for each in finding.inactive]


def test_a_weight_that_own_code_does_not_name_is_named(tmp_path: Path) -> None:
    script = NO_KL + TRL_TRAIN.format(cls="NoKL")
    (finding,) = audited(tmp_path, {"train.py": script}, "train.py", "trl@1.16.0")
    assert finding.problem
    assert "beta is passed on to nothing in NoKL._compute_loss" in finding.contradictions[0].text


HEAD = "import argparse, yaml\nfrom trl import GRPOConfig, GRPOTrainer\n"
TAIL = "GRPOTrainer(model='m', reward_funcs=[f], args=GRPOConfig({})).train()\n"
OPTION = (
    "p = argparse.ArgumentParser()\np.add_argument('--kl_coef', type=float, default=0.1)\n"
    "a = p.parse_args()\n"
)


@pytest.mark.parametrize(
    ("body", "lost"),
    [
        (OPTION + TAIL.format(""), "kl_coef"),
        (OPTION + TAIL.format("beta=a.kl_coef"), ""),
        (OPTION + "print(a.kl_coef)\n" + TAIL.format(""), "kl_coef"),
        (OPTION + "run(a)\n" + TAIL.format(""), ""),
        (OPTION + TAIL.format("**vars(a)"), ""),
        ("c = yaml.safe_load(open('c'))\nkl_beta = c['kl_beta']\n" + TAIL.format(""), "kl_beta"),
        ("c = yaml.safe_load(open('c'))\nbeta = c['beta']\n" + TAIL.format("beta=beta"), ""),
        ("c = yaml.safe_load(open('c'))\n" + TAIL.format("beta=c['beta']"), ""),
        (
            "from dataclasses import dataclass\n@dataclass\nclass A:\n"
            "    kl_estimator: str = 'k1'\n    n: int = 1\na = A()\n"
            + TAIL.format("temperature=a.n"),
            "kl_estimator",
        ),
    ],
)
def test_a_coefficient_that_is_read_and_passed_on_to_nothing(
    body: str, lost: str, tmp_path: Path
) -> None:
    for finding in audited(tmp_path, {"t.py": HEAD + body}, "t.py", "trl@1.16.0"):
        texts = [each.text for each in finding.contradictions]
        assert bool(lost) == any("passed on to nothing" in each for each in texts), texts
        if lost:
            assert texts[0].startswith(f"{lost} is read and passed on to nothing (t.py:")
            assert mark(finding) == "has a mistake"
