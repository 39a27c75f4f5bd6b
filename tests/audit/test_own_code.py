"""Somebody's own trainer, policy loss or advantage: undetermined, with file and line."""

from collections.abc import Mapping
from pathlib import Path

import pytest

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
OPENRLHF = (
    "python {entry} --advantage_estimator rloo --init_kl_coef 0.01 --n_samples_per_prompt 8\n"
)
SKYRL = (
    "python -m {entry} trainer.algorithm.advantage_estimator={advantage} "
    "trainer.algorithm.use_kl_loss=true trainer.algorithm.policy_loss_type={loss}\n"
)
REGISTERED = """from verl.trainer.ppo.core_algos import register_policy_loss, register_adv_est
@register_policy_loss("mine")
def my_loss(old_log_prob, log_prob, advantages, response_mask, loss_agg_mode, config):
    return -(advantages * log_prob).mean(), {}
@register_adv_est("lone")
def my_advantage(token_level_rewards, response_mask, index, **kwargs):
    return token_level_rewards, token_level_rewards
"""
SLIME = (
    "python train.py --advantage-estimator grpo --use-kl-loss --kl-loss-coef 0.001 "
    "--kl-loss-type k2 --n-samples-per-prompt 8 --rollout-batch-size 32 --global-batch-size 256 "
    "--rollout-num-gpus 4 {more}\n"
)
PRIME = """inference_gpu_ids = [0]
[trainer.loss]
type = "custom"
import_path = "mine.loss.my_loss"
[orchestrator]
batch_size = 512
"""

OWN: dict[str, tuple[dict[str, str], str, str, str]] = {
    # name: (files, audited file, library@release, the code that is named)
    "a subclass in the script": (
        {"train.py": NO_KL + TRL_TRAIN.format(cls="NoKL")},
        "train.py",
        "trl@1.16.0",
        "NoKL._compute_loss (train.py:3-4)",
    ),
    "a subclass beside, run by a shell script": (
        {
            "run.sh": "accelerate launch src/train.py\n",
            "src/mine.py": NO_KL,
            "src/train.py": "from trl import GRPOConfig\nfrom mine import NoKL\n"
            + TRL_TRAIN.format(cls="NoKL"),
        },
        "run.sh",
        "trl@1.16.0",
        "NoKL._compute_loss (src/mine.py:3-4)",
    ),
    "a subclass of a subclass in a package": (
        {
            "train.py": "from trl import GRPOConfig\nfrom own import Second\n"
            + TRL_TRAIN.format(cls="Second"),
            "own/__init__.py": "from .second import Second\n",
            "own/second.py": "from .first import NoKL\nclass Second(NoKL):\n    pass\n",
            "own/first.py": NO_KL,
        },
        "train.py",
        "trl@1.16.0",
        "NoKL._compute_loss (own/first.py:3-4)",
    ),
    "a mixin before the library's class": (
        {
            "train.py": "from trl import GRPOConfig, GRPOTrainer\nclass Mixin:\n"
            "    def compute_loss(self, model, inputs, **more):\n        return 0\n"
            "class T(Mixin, GRPOTrainer):\n    pass\n" + TRL_TRAIN.format(cls="T")
        },
        "train.py",
        "trl@1.16.0",
        "Mixin.compute_loss (train.py:3-4)",
    ),
    "a trainer of its own on transformers' (EMPO)": (
        {
            "train.py": "from trl import GRPOConfig\nfrom trainer.empo import EMPOTrainer\n"
            + TRL_TRAIN.format(cls="EMPOTrainer"),
            "trainer/empo.py": "from transformers import Trainer\nclass EMPOTrainer(Trainer):\n"
            "    def compute_loss(self, model, inputs, return_outputs=False):\n        return k3\n",
        },
        "train.py",
        "trl@1.16.0",
        "EMPOTrainer.compute_loss (trainer/empo.py:3-4)",
    ),
    "a trainer with options on the command line, of a base that is not at hand": (
        {
            "run.sh": "torchrun src/open_r1/grpo.py --num_generations 4 --beta 0.04 --use_vllm true\n",
            "src/open_r1/grpo.py": "from open_r1.trainer import TrainerEma\nTrainerEma(args=c)\n",
            "src/open_r1/trainer/__init__.py": "from .ema import TrainerEma\n",
            "src/open_r1/trainer/ema.py": "class TrainerEma(Base):\n    def compute_loss(self):\n"
            "        pass\n",
        },
        "run.sh",
        "trl@0.18.2",
        "TrainerEma.compute_loss (src/open_r1/trainer/ema.py:2-3)",
    ),
    "its own scoring of completions (X-R1)": (
        {
            "train.py": "import trl\nfrom trl import GRPOConfig\nclass X(trl.GRPOTrainer):\n"
            "    def _generate_and_score_completions(self, inputs):\n        return {}\n"
            + TRL_TRAIN.format(cls="X")
        },
        "train.py",
        "trl@1.16.0",
        "X._generate_and_score_completions (train.py:4-5)",
    ),
    "log-probabilities of its own (d1)": (
        {
            "train.py": "from trl.trainer import GRPOTrainer\nfrom trl import GRPOConfig\n"
            "class DiffuGRPOTrainer(GRPOTrainer):\n    def _get_per_token_logps(self, m, ids):\n"
            "        return 0\n" + TRL_TRAIN.format(cls="DiffuGRPOTrainer")
        },
        "train.py",
        "trl@1.16.0",
        "DiffuGRPOTrainer._get_per_token_logps (train.py:4-5)",
    ),
    "a trainer that is not at hand": (
        {
            "train.py": "from trl import GRPOConfig\nfrom lab.grpo import MyGRPOTrainer\n"
            + TRL_TRAIN.format(cls="MyGRPOTrainer")
        },
        "train.py",
        "trl@1.16.0",
        "MyGRPOTrainer (train.py)",
    ),
    "a patch": (
        {
            "train.py": "from trl import GRPOConfig, GRPOTrainer\ndef mine(self, model, inputs):\n"
            "    return 0\nGRPOTrainer._compute_loss = mine\n" + TRL_TRAIN.format(cls="GRPOTrainer")
        },
        "train.py",
        "trl@1.16.0",
        "mine (train.py:2-3)",
    ),
    "setattr": (
        {
            "train.py": "from trl import GRPOConfig, GRPOTrainer\ndef mine(self, model, inputs):\n"
            "    return 0\nsetattr(GRPOTrainer, 'compute_loss', mine)\n"
            + TRL_TRAIN.format(cls="GRPOTrainer")
        },
        "train.py",
        "trl@1.16.0",
        "mine (train.py:2-3)",
    ),
    "a method bound to a trainer": (
        {
            "train.py": "import types\nfrom trl import GRPOConfig, GRPOTrainer\n"
            "def mine(self, model, inputs):\n    return 0\n"
            "t = GRPOTrainer(model='m', reward_funcs=[f], args=GRPOConfig(beta=0.04))\n"
            "t._compute_loss = types.MethodType(mine, t)\nt.train()\n"
        },
        "train.py",
        "trl@1.16.0",
        "(train.py:3-4)",
    ),
    "verl: a registered loss, of an external library": (
        {
            "run.sh": VERL.format(
                entry="verl.trainer.main_ppo",
                advantage="rloo",
                more="actor_rollout"
                "_ref.actor.policy_loss.loss_mode=mine actor_rollout_ref.model.external_lib=own.losses",
            ),
            "own/losses.py": REGISTERED,
        },
        "run.sh",
        "verl@0.9.1",
        "my_loss (own/losses.py:3-4)",
    ),
    "verl: a registered advantage, of its own program": (
        {
            "run.sh": VERL.format(entry="own.main_grpo", advantage="lone", more=""),
            "own/main_grpo.py": "import own.losses\nfrom verl.trainer.main_ppo import run_ppo\n",
            "own/losses.py": REGISTERED,
        },
        "run.sh",
        "verl@0.9.1",
        "my_advantage (own/losses.py:6-7)",
    ),
    "verl: a worker that replaces update_policy": (
        {
            "run.sh": VERL.format(entry="own.main_ppo", advantage="rloo", more=""),
            "own/main_ppo.py": "from own.worker import MyWorker\nw = ray.remote(MyWorker)\n",
            "own/worker.py": "from verl.workers.fsdp_workers import ActorRolloutRefWorker\n"
            "class MyWorker(ActorRolloutRefWorker):\n    def update_policy(self, data):\n"
            "        return {}\n",
        },
        "run.sh",
        "verl@0.7.0",
        "MyWorker.update_policy (own/worker.py:3-4)",
    ),
    "verl: a trainer's own fit": (
        {
            "run.sh": VERL.format(entry="recipe.mine.main_mine", advantage="rloo", more=""),
            "recipe/mine/main_mine.py": "from .mine_trainer import RayMineTrainer\n"
            "def main():\n    RayMineTrainer().fit()\n",
            "recipe/mine/mine_trainer.py": "from verl.trainer.ppo.ray_trainer import RayPPOTrainer\n"
            "class RayMineTrainer(RayPPOTrainer):\n    def fit(self):\n        pass\n",
        },
        "run.sh",
        "verl@0.7.0",
        "RayMineTrainer.fit (recipe/mine/mine_trainer.py:3-4)",
    ),
    "verl: a patched penalty": (
        {
            "run.sh": VERL.format(entry="own.main_ppo", advantage="rloo", more=""),
            "own/main_ppo.py": "from verl.trainer.ppo import core_algos\n"
            "def zero(logprob, ref_logprob, kl_penalty):\n    return 0 * logprob\n"
            "core_algos.kl_penalty = zero\n",
        },
        "run.sh",
        "verl@0.9.1",
        "zero (own/main_ppo.py:2-3)",
    ),
    "verl: a program that no release has": (
        {"run.sh": VERL.format(entry="verl.trainer.main_apo", advantage="rloo", more="")},
        "run.sh",
        "verl@0.7.0",
        "the program verl/trainer/main_apo.py",
    ),
    "verl: an estimator that no release has": (
        {"run.sh": VERL.format(entry="verl.trainer.main_ppo", advantage="aapo", more="")},
        "run.sh",
        "verl",
        "aapo that no release has",
    ),
    "verl: an estimator of the checkout": (
        {
            "run.sh": VERL.format(entry="verl.trainer.main_ppo", advantage="aapo", more=""),
            "verl/trainer/ppo/core_algos.py": "@register_adv_est('aapo')\ndef my_aapo(rewards):\n"
            "    return rewards\n",
        },
        "run.sh",
        "verl",
        "my_aapo (verl/trainer/ppo/core_algos.py:2-3)",
    ),
    "openrlhf: a policy loss": (
        {
            "run.sh": OPENRLHF.format(entry="own/train_ppo_ray.py"),
            "own/train_ppo_ray.py": "import openrlhf.models\nfrom openrlhf.models import PolicyLoss\n"
            "class Mine(PolicyLoss):\n    def forward(self, log_probs, old, adv, mask):\n"
            "        return 0\nopenrlhf.models.PolicyLoss = Mine\n",
        },
        "run.sh",
        "openrlhf@0.9.9",
        "Mine.forward (own/train_ppo_ray.py:4-5)",
    ),
    "openrlhf: an experience maker": (
        {
            "run.sh": OPENRLHF.format(entry="own/train_ppo_ray.py"),
            "own/train_ppo_ray.py": "from openrlhf.trainer.ppo_utils.experience_maker import "
            "RemoteExperienceMaker\nclass Maker(RemoteExperienceMaker):\n"
            "    def compute_advantages_and_returns(self, e):\n        return e\nMaker()\n",
        },
        "run.sh",
        "openrlhf@0.9.9",
        "Maker.compute_advantages_and_returns",
    ),
    "skyrl: a registered loss": (
        {
            "run.sh": SKYRL.format(entry="examples.mine.main_mine", advantage="rloo", loss="mine"),
            "examples/mine/main_mine.py": "from skyrl.backends.skyrl_train.utils.ppo_utils import "
            "PolicyLossRegistry\ndef my_loss(log_probs, old_log_probs, advantages):\n    return 0\n"
            "PolicyLossRegistry.register('mine', my_loss)\n",
        },
        "run.sh",
        "skyrl@0.4.0",
        "my_loss (examples/mine/main_mine.py:2-3)",
    ),
    "skyrl: a trainer": (
        {
            "run.sh": SKYRL.format(
                entry="examples.mine.main_mine", advantage="rloo", loss="regular"
            ),
            "examples/mine/main_mine.py": "from skyrl.train.trainer import RayPPOTrainer\n"
            "class Mine(RayPPOTrainer):\n    def apply_reward_kl_penalty(self, data):\n"
            "        return data\nclass E:\n    def get_trainer(self):\n        return Mine()\n",
        },
        "run.sh",
        "skyrl@0.4.0",
        "Mine.apply_reward_kl_penalty",
    ),
    "prime-rl: a loss that TOML names": (
        {"rl.toml": PRIME, "mine/loss.py": "def my_loss(inputs, **kwargs):\n    return inputs\n"},
        "rl.toml",
        "prime_rl@0.5.0",
        "my_loss (mine/loss.py:1-2)",
    ),
    "slime: a loss": (
        {
            "run.sh": SLIME.format(
                more="--loss-type custom_loss --custom-loss-function-path own.l.f"
            ),
            "own/l.py": "def f(args, batch):\n    return 0\n",
        },
        "run.sh",
        "slime@0.2.0",
        "f (own/l.py:1-2)",
    ),
    "slime: an advantage": (
        {"run.sh": SLIME.format(more="--custom-advantage-function-path own.l.f")},
        "run.sh",
        "slime@0.2.0",
        "f (own/l.py)",
    ),
    "nemo-rl: a loss class": (
        {
            "run.sh": "uv run examples/mine/run_grpo_mine.py grpo.num_generations_per_prompt=8 "
            "loss_fn.reference_policy_kl_penalty=0.01\n",
            "examples/mine/run_grpo_mine.py": "from nemo_rl.algorithms.loss import ClippedPGLossFn\n"
            "class Mine(ClippedPGLossFn):\n    def __call__(self, logits, data):\n        return 0\n"
            "loss = Mine({})\n",
        },
        "run.sh",
        "nemo_rl@0.5.0",
        "Mine.__call__",
    ),
}


def audited(folder: Path, files: Mapping[str, str], name: str, library: str) -> list[AuditFinding]:
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    (folder / ".git").mkdir(exist_ok=True)
    package, _, release = library.partition("@")
    versions = {package: f"{release} given"} if release else {}
    return audit_file(folder / name, versions, Projects())[1]


@pytest.mark.parametrize("case", OWN)
def test_own_code_is_never_fine_and_is_named(case: str, tmp_path: Path) -> None:
    files, name, library, named = OWN[case]
    findings = audited(tmp_path, files, name, library)
    assert findings
    for finding in findings:
        assert finding.verdict == "undetermined"
        assert mark(finding) == "undetermined: own loss"
        text = "\n".join(line for _, line in summary(finding))
        assert named in text, text
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
    assert "algorithm.use_kl_in_reward" in [each.flag for each in finding.inactive_flags]


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
