"""Launch scripts as people write them: epochs instead of steps, machines, logs, evaluations."""

OPENRLHF = """#!/bin/bash
MODEL_PATH="Qwen/Qwen3-4B"
SAVE_PATH="$PWD/exp/Qwen3-4B"
OPTIMIZER_ARGS=(
   --algo.advantage.estimator group_norm
   --actor.adam.lr 5e-7
   # --critic.adam.lr 9e-6
   --actor.entropy_coef 0.0
   --algo.kl.init_coef 1e-3
   --algo.kl.use_loss
   --algo.kl.estimator k2
)
ray job submit --address="http://127.0.0.1:8265" \\
   -- python3 -m openrlhf.cli.train_ppo_ray \\
   --actor.model_name_or_path ${MODEL_PATH} \\
   --ckpt.output_dir ${SAVE_PATH} --ckpt.path "${SAVE_PATH}/ckpt" --ckpt.save_steps 10 \\
   --reward.remote_url ./math_reward.py \\
   --data.prompt_dataset zhuzilin/dapo-math-17k --data.input_key prompt --data.label_key label \\
   --data.max_len 9216 --data.apply_chat_template --ds.packing_samples \\
   --rollout.batch_size 128 --rollout.n_samples_per_prompt 8 --train.batch_size 512 \\
   --train.dynamic_batch_enable --train.max_tokens_per_gpu 16192 \\
   --train.micro_batch_size 1 --rollout.micro_batch_size 8 --train.max_epochs 1 \\
   --ref.num_nodes 1 --ref.num_gpus_per_node 8 --actor.num_nodes 1 --actor.num_gpus_per_node 8 \\
   --vllm.num_engines 4 --vllm.tensor_parallel_size 2 --train.colocate_all --vllm.enable_sleep \\
   --ds.enable_sleep --vllm.sync_backend nccl --vllm.enforce_eager --ds.zero_stage 3 \\
   --actor.gradient_checkpointing_enable --ds.param_dtype bf16 --ds.adam_offload \\
   --eval.steps -1 --logger.wandb.key $WANDB_KEY ${OPTIMIZER_ARGS[@]} "$@"
"""
SKYRL = """set -x
DATA_DIR="$HOME/data/gsm8k"
NUM_GPUS=4
LOGGER="wandb"  # change to "console" to print to stdout
uv run --isolated --extra fsdp -m skyrl.train.entrypoints.main_base \\
  data.train_data="['$DATA_DIR/train.parquet']" \\
  data.val_data="['$DATA_DIR/validation.parquet']" \\
  trainer.algorithm.advantage_estimator=rloo \\
  trainer.algorithm.use_kl_loss=false \\
  trainer.algorithm.use_kl_in_reward=true \\
  trainer.policy.model.path="Qwen/Qwen2.5-1.5B-Instruct" \\
  trainer.placement.colocate_all=true \\
  trainer.strategy=fsdp \\
  trainer.placement.policy_num_gpus_per_node=$NUM_GPUS \\
  trainer.placement.ref_num_gpus_per_node=$NUM_GPUS \\
  generator.inference_engine.num_engines=$NUM_GPUS \\
  trainer.epochs=20 \\
  trainer.eval_interval=5 \\
  trainer.train_batch_size=1024 \\
  trainer.policy_mini_batch_size=256 \\
  trainer.ckpt_interval=10 \\
  trainer.max_prompt_length=512 \\
  generator.sampling_params.max_generate_length=1024 \\
  trainer.policy.optimizer_config.lr=1.0e-6 \\
  generator.inference_engine.weight_sync_backend=nccl \\
  generator.batched=true \\
  environment.env_class=gsm8k \\
  generator.n_samples_per_prompt=5 \\
  trainer.logger="$LOGGER" \\
  trainer.run_name="gsm8k_rloo" \\
  trainer.resume_mode=null \\
  trainer.ckpt_path="$HOME/ckpts/gsm8k_1.5B_ckpt" \\
  $@
"""
VERL = """set -x
python3 -m verl.trainer.main_ppo \\
    algorithm.adv_estimator=grpo \\
    data.train_files=$HOME/data/gsm8k/train.parquet data.val_files=$HOME/data/gsm8k/test.parquet \\
    data.train_batch_size=1024 data.max_prompt_length=512 data.max_response_length=1024 \\
    data.filter_overlong_prompts=True data.truncation='error' \\
    actor_rollout_ref.model.path=Qwen/Qwen3-8B \\
    actor_rollout_ref.model.use_remove_padding=True \\
    actor_rollout_ref.actor.optim.lr=1e-6 \\
    actor_rollout_ref.actor.ppo_mini_batch_size=256 \\
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=32 \\
    actor_rollout_ref.actor.use_kl_loss=True actor_rollout_ref.actor.kl_loss_coef=0.001 \\
    actor_rollout_ref.actor.kl_loss_type=low_var_kl actor_rollout_ref.actor.entropy_coeff=0 \\
    actor_rollout_ref.actor.fsdp_config.param_offload=False \\
    actor_rollout_ref.rollout.tensor_model_parallel_size=2 actor_rollout_ref.rollout.name=vllm \\
    actor_rollout_ref.rollout.gpu_memory_utilization=0.6 actor_rollout_ref.rollout.n=5 \\
    actor_rollout_ref.ref.fsdp_config.param_offload=True \\
    algorithm.use_kl_in_reward=False trainer.critic_warmup=0 \\
    trainer.logger='["console","wandb"]' trainer.n_gpus_per_node=8 trainer.nnodes=1 \\
    trainer.save_freq=20 trainer.test_freq=5 trainer.total_epochs=15 $@
"""
