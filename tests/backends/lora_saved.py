"""Saves an adapter with a library's own code, in the library's environment, on one CPU process.

    python lora_saved.py verl|skyrl BASE FOLDER

verl: FSDPCheckpointManager.save_checkpoint; SkyRL: FSDPStrategy.save_hf_model. The model is PEFT's,
sharded by FSDP2; B is random, so that the adapter does something. FOLDER/wanted.pt has its logits.
"""

import os
import sys
import types
import typing
from pathlib import Path
from unittest.mock import MagicMock

import torch
import torch.distributed as dist
import transformers
import typing_extensions
from peft import LoraConfig, TaskType, get_peft_model
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

library, base, folder = sys.argv[1:]
os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0")
dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=0, world_size=1)
torch.manual_seed(0)
lora = LoraConfig(task_type=TaskType.CAUSAL_LM, r=4, lora_alpha=24, target_modules="all-linear")
model = get_peft_model(transformers.AutoModelForCausalLM.from_pretrained(base).float(), lora)
for name, weight in model.named_parameters():
    if "lora_B" in name:
        torch.nn.init.normal_(weight.data, std=0.1)
mesh = init_device_mesh("cpu", (1,), mesh_dim_names=("fsdp",))
for layer in model.base_model.model.model.layers:
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
with torch.no_grad():
    torch.save(model(torch.arange(3, 13)[None]).logits.clone(), f"{folder}/wanted.pt")
tokenizer = transformers.AutoTokenizer.from_pretrained(base)
if library == "verl":
    from omegaconf import OmegaConf
    from verl.utils.checkpoint.fsdp_checkpoint_manager import FSDPCheckpointManager

    contents = ["model", "optimizer", "extra"]
    manager = FSDPCheckpointManager(
        model=model,
        optimizer=torch.optim.AdamW([each for each in model.parameters() if each.requires_grad]),
        lr_scheduler=None,
        processing_class=tokenizer,
        checkpoint_config=OmegaConf.create({"save_contents": contents, "load_contents": contents}),
    )
    home = f"{folder}/checkpoints/x1"
    manager.save_checkpoint(local_path=f"{home}/global_step_5/actor", global_step=5)
    Path(home, "latest_checkpointed_iteration.txt").write_text("5")
else:
    typing.TypedDict = typing_extensions.TypedDict  # pydantic wants it on Python 3.11
    for absent in ("flash_attn", "flash_attn.bert_padding"):
        stand_in = types.ModuleType(absent)
        stand_in.__getattr__ = lambda _: MagicMock()
        stand_in.__spec__ = MagicMock()
        sys.modules[absent] = stand_in
    from skyrl.backends.skyrl_train.distributed.fsdp_strategy import FSDPStrategy

    strategy = FSDPStrategy.__new__(FSDPStrategy)
    strategy.save_hf_model(
        model, f"{folder}/checkpoints/exports-x1/global_step_5/policy", tokenizer
    )
