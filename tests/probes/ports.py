"""One recipe as a script of each of four libraries, of their own words: RL without a deviation in
the advantages, a mean of each response, k3 to the reference in the loss, four minibatches."""

VERL = """\
python3 -m verl.trainer.main_ppo \\
    algorithm.adv_estimator=grpo \\
    algorithm.norm_adv_by_std_in_grpo=False \\
    algorithm.use_kl_in_reward=False \\
    data.train_files=org/data \\
    data.train_batch_size=16 \\
    data.max_prompt_length=512 \\
    data.max_response_length=1024 \\
    actor_rollout_ref.model.path=Qwen/Qwen2.5-0.5B \\
    actor_rollout_ref.actor.optim.lr=1e-6 \\
    actor_rollout_ref.actor.ppo_mini_batch_size=4 \\
    actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-mean \\
    actor_rollout_ref.actor.use_kl_loss=True \\
    actor_rollout_ref.actor.kl_loss_type=low_var_kl \\
    actor_rollout_ref.actor.kl_loss_coef=0.05 \\
    actor_rollout_ref.actor.clip_ratio_low=0.2 \\
    actor_rollout_ref.actor.clip_ratio_high=0.28 \\
    actor_rollout_ref.actor.clip_ratio_c=1000000 \\
    actor_rollout_ref.rollout.n=8 \\
    trainer.total_training_steps=100
"""
SKYRL = """\
uv run --isolated -m skyrl.train.entrypoints.main_base \\
    trainer.algorithm.advantage_estimator=grpo \\
    trainer.algorithm.grpo_norm_by_std=false \\
    trainer.algorithm.loss_reduction=sequence_mean \\
    trainer.algorithm.use_kl_loss=true \\
    trainer.algorithm.use_kl_in_reward=false \\
    trainer.algorithm.kl_estimator_type=k3 \\
    trainer.algorithm.kl_loss_coef=0.05 \\
    trainer.algorithm.eps_clip_low=0.2 \\
    trainer.algorithm.eps_clip_high=0.28 \\
    trainer.policy.model.path=Qwen/Qwen2.5-0.5B \\
    trainer.policy.optimizer_config.lr=1e-6 \\
    trainer.train_batch_size=16 \\
    trainer.policy_mini_batch_size=4 \\
    generator.n_samples_per_prompt=8
"""
TRL = """\
trl grpo --model_name_or_path Qwen/Qwen2.5-0.5B --dataset_name org/data \\
    --scale_rewards none \\
    --loss_type grpo \\
    --beta 0.05 \\
    --use_bias_correction_kl False \\
    --epsilon 0.2 \\
    --epsilon_high 0.28 \\
    --num_generations 8 \\
    --per_device_train_batch_size 8 \\
    --gradient_accumulation_steps 4 \\
    --steps_per_generation 16 \\
    --learning_rate 1e-6 \\
    --lr_scheduler_type constant \\
    --max_completion_length 1024 \\
    --max_steps 100
"""
OPENRLHF = """\
python3 -m openrlhf.cli.train_ppo_ray \\
    --actor.model_name_or_path Qwen/Qwen2.5-0.5B \\
    --data.prompt_dataset org/data \\
    --data.max_samples 1600 \\
    --algo.advantage.estimator dr_grpo \\
    --actor.loss_agg_mode seq-mean-token-mean \\
    --algo.kl.use_loss \\
    --algo.kl.init_coef 0.05 \\
    --algo.kl.estimator k3 \\
    --actor.eps_clip_low_high 0.2 0.28 \\
    --actor.adam.lr 1e-6 \\
    --actor.lr_scheduler constant \\
    --actor.lr_warmup_ratio 0 \\
    --train.batch_size 32 \\
    --rollout.batch_size 16 \\
    --rollout.n_samples_per_prompt 8 \\
    --rollout.max_new_tokens 1024
"""
BY_TOKENS = {"verl": "token-mean", "openrlhf": "token-mean", "trl": "dapo"}
BY_RESPONSES = {
    "verl": "seq-mean-token-mean",
    "openrlhf": "seq-mean-token-mean",
    "trl": "--loss_type grpo",
}
SCRIPTS = {"verl": VERL, "openrlhf": OPENRLHF, "skyrl": SKYRL, "trl": TRL}
RELEASES = {"verl": "0.9.1", "openrlhf": "0.11.2", "skyrl": "0.4.0", "trl": "1.16.0"}
CHANGES = {"openrlhf": {"data.num_prompts": 1600}}
"""Target -> what it must be told: OpenRLHF stops when its prompts run out."""


def script(library: str, other: str) -> str:
    """The recipe of a pair. OpenRLHF averages a KL by tokens, whatever it does with the policy
    loss, and SkyRL by responses: pairs of OpenRLHF average all by tokens, but with SkyRL."""
    text = SCRIPTS[library]
    if "openrlhf" in (library, other) and "skyrl" not in (library, other):
        by_responses = BY_RESPONSES[library]
        return text.replace(
            by_responses, by_responses.replace(by_responses.split()[-1], BY_TOKENS[library])
        )
    return text
