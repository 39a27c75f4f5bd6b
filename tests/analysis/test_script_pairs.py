"""`orch compare --configs` for the pairs of libraries that people move between."""

from pathlib import Path
from typing import Any

from orchestrator.audit.scripts import read_pair, scripts_data

TRL = """from trl import GRPOConfig, GRPOTrainer
args = GRPOConfig(output_dir="out", beta=0.04, num_generations=8, loss_type="grpo")
GRPOTrainer(model="Qwen/Qwen2.5-7B", reward_funcs=len, args=args, train_dataset=None).train()
"""
VERL = """python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo \\
  data.train_batch_size=1024 actor_rollout_ref.actor.ppo_mini_batch_size=256 \\
  actor_rollout_ref.actor.use_kl_loss=True actor_rollout_ref.actor.kl_loss_coef=0.001 \\
  actor_rollout_ref.actor.kl_loss_type=low_var_kl actor_rollout_ref.rollout.n=5
"""
OPENRLHF = """python3 -m openrlhf.cli.train_ppo_ray --algo.advantage.estimator reinforce_baseline \\
  --algo.kl.estimator k2 --algo.kl.use_loss --algo.kl.init_coef 1e-5 \\
  --rollout.n_samples_per_prompt 8 --actor.model_name_or_path x
"""
EASYR1 = """python3 -m verl.trainer.main config=config.yaml data.max_response_length=2048
"""
EASYR1_CONFIG = """data: {rollout_batch_size: 512}
algorithm: {adv_estimator: grpo, disable_kl: false, use_kl_loss: true, kl_penalty: low_var_kl,
  kl_coef: 0.01}
worker: {actor: {global_batch_size: 128}, rollout: {n: 5}}
"""
SLIME = """GRPO_ARGS=(--advantage-estimator grpo --use-kl-loss --kl-loss-coef 0.01)
python3 train.py ${GRPO_ARGS[@]} --rollout-batch-size 32 --n-samples-per-prompt 8 \\
  --global-batch-size 256
"""
TEXTS = {
    "trl.py": TRL,
    "verl.sh": VERL,
    "openrlhf.sh": OPENRLHF,
    "easyr1.sh": EASYR1,
    "config.yaml": EASYR1_CONFIG,
    "slime.sh": SLIME,
}


def compared(folder: Path, left: str, right: str, **pinned: str) -> tuple[dict[str, Any], Any]:
    for name, text in TEXTS.items():
        (folder / name).write_text(text)
    pair = read_pair(str(folder / left), str(folder / right), pinned)
    data = scripts_data(*pair)
    return {row["what"]: (row["left"], row["right"]) for row in data["differences"]}, data


def test_trl_and_verl_of_a_release_that_is_given(tmp_path: Path) -> None:
    rows, _ = compared(tmp_path, "trl.py", "verl.sh", trl="1.9.2 as asked")
    assert rows["KL in the loss, as asked"] == ("k3, β=0.04", "k3, β=0.001")
    assert rows["samples"] == ("of the policy itself", "of an older policy")
    assert rows["what the KL does"] == ("token forward kl", "k3 of old samples")
    assert rows["clamp of the KL"][0] == "not clamped"
    rows, _ = compared(tmp_path, "trl.py", "verl.sh", trl="1.16.0 as asked")
    assert rows["KL in the loss, as asked"][0] == "rho_k3, β=0.04"


def test_a_release_that_nothing_says_is_not_told_as_if_it_were(tmp_path: Path) -> None:
    """The newest release's term stood in the table before, as if it were the script's."""
    rows, data = compared(tmp_path, "trl.py", "verl.sh")
    assert rows["KL in the loss, as asked"][0].startswith("not determined: rho_k3, β=0.04 in 1.")
    assert rows["what the KL does"][0] == "undetermined"
    assert "Say which: --library trl@VERSION" in data["why"]["trl"]


def test_trl_and_openrlhf(tmp_path: Path) -> None:
    rows, _ = compared(tmp_path, "trl.py", "openrlhf.sh", trl="1.16.0 as asked")
    assert rows["KL in the loss, as asked"] == ("rho_k3, β=0.04", "k2, β=1e-05")
    assert rows["advantage"] == ("grpo", "reinforce_baseline")
    assert "each token with those after it" in rows["KL in the reward"][1]


def test_verl_and_easyr1_with_the_configuration_beside_it(tmp_path: Path) -> None:
    rows, data = compared(tmp_path, "verl.sh", "easyr1.sh")
    assert rows["library"] == ("verl 0.9.1", "verl EasyR1")
    assert rows["KL in the loss, as asked"] == ("k3, β=0.001", "k3, β=0.01")
    assert "clamp of the KL" not in rows, "EasyR1 is no release of verl"
    assert any("EasyR1" in n and "does not drive it" in n for n in data["notes"])


def test_slime_and_verl(tmp_path: Path) -> None:
    rows, data = compared(tmp_path, "slime.sh", "verl.sh")
    assert rows["KL in the loss, as asked"] == ("k1, β=0.01", "k3, β=0.001")
    assert rows["what the KL does"] == ("zero mean noise", "k3 of old samples")
    assert any("launches of slime" in note for note in data["notes"])
