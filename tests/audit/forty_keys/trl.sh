#!/bin/bash
#SBATCH --gres=gpu:8
#SBATCH --time=24:00:00
# DAPO's loss without a reference policy but for a small k3, on one node.
export WANDB_PROJECT=reasoning
accelerate launch --num_processes 8 --mixed_precision bf16 \
  --module trl.scripts.grpo \
  --model_name_or_path Qwen/Qwen2.5-3B \
  --dtype bfloat16 \
  --attn_implementation flash_attention_2 \
  --dataset_name trl-lib/DeepMath-103K \
  --dataset_train_split train \
  --reward_funcs accuracy_reward \
  --output_dir out/qwen3b \
  --beta 0.001 \
  --use_bias_correction_kl False \
  --loss_type dapo \
  --scale_rewards group \
  --epsilon 0.2 \
  --epsilon_high 0.28 \
  --num_iterations 1 \
  --num_generations 16 \
  --importance_sampling_level token \
  --mask_truncated_completions False \
  --max_completion_length 4096 \
  --temperature 1.0 \
  --top_p 1.0 \
  --use_vllm True \
  --vllm_mode colocate \
  --vllm_gpu_memory_utilization 0.3 \
  --vllm_tensor_parallel_size 1 \
  --vllm_importance_sampling_correction False \
  --per_device_train_batch_size 8 \
  --gradient_accumulation_steps 4 \
  --steps_per_generation 16 \
  --learning_rate 1e-6 \
  --lr_scheduler_type constant \
  --warmup_steps 0 \
  --weight_decay 0.0 \
  --adam_beta1 0.9 \
  --adam_beta2 0.99 \
  --max_grad_norm 0.2 \
  --max_steps 500 \
  --gradient_checkpointing True \
  --bf16 True \
  --seed 11 \
  --logging_steps 1 \
  --log_completions True \
  --save_steps 100 \
  --save_total_limit 2 \
  --report_to wandb \
  --run_name qwen3b-dapo
