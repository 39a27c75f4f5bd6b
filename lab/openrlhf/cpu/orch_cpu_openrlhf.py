"""What OpenRLHF 0.11.2 imports or asks of a GPU and cannot have on a CPU.

Its arguments must leave out `--ds.packing_samples` (flash-attn packs) and ask for eager attention
and for weights by gloo.
"""

import os
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

VLLM = "0.29.0"
"""The version that the stand-in says it is: the one that OpenRLHF 0.11.2 asks for."""


def install() -> None:
    """Put the stand-ins in place, in this process."""
    if find_spec("deepspeed"):  # a process that only starts the library has another sys.prefix
        # DeepSpeed compiles its AdamW, which takes minutes: once for each environment
        os.environ.setdefault("TORCH_EXTENSIONS_DIR", str(Path(sys.prefix) / "torch_extensions"))
    device: Any = import_module("orch_cpu_device")
    refuse, stand_in = device.refuse, device.stand_in
    engine: Any = import_module("orch_cpu_openrlhf_vllm")
    names = ("SamplingParams", "AsyncEngineArgs", "AsyncLLMEngine")
    stand_in("vllm", __version__=VLLM, **{name: getattr(engine, name) for name in names})
    stand_in("vllm.inputs", TokensPrompt=dict)
    stand_in("vllm.utils", random_uuid=engine.random_uuid)
    for parent in ("vllm.distributed", "vllm.distributed.device_communicators"):
        stand_in(parent)
    stand_in("vllm.distributed.device_communicators.pynccl", PyNcclCommunicator=engine.Communicator)
    stand_in("vllm.distributed.utils", StatelessProcessGroup=engine.StatelessProcessGroup)
    flash = refuse("flash-attn")
    stand_in("flash_attn", __version__="2.8.3")
    stand_in(
        "flash_attn.bert_padding",
        index_first_axis=flash,
        pad_input=flash,
        unpad_input=flash,
        rearrange=flash,
    )
    stand_in("flash_attn.utils")
    stand_in("flash_attn.utils.distributed", all_gather=flash)
    if device.in_fp32():
        device.after("openrlhf.utils.utils", _loaded_in_fp32)
        device.after("openrlhf.utils.deepspeed.deepspeed_utils", _deepspeed_in_fp32)
    device.after("ray", device.small_ray)
    device.after("deepspeed.comm.torch", _gloo_alone)


def _loaded_in_fp32(utils: Any) -> None:
    """Load models without rounding, where `--ds.param_dtype` takes no other than 16 bits."""
    utils.convert_to_torch_dtype = lambda _: import_module("torch").float32


def _deepspeed_in_fp32(utils: Any) -> None:
    """Have DeepSpeed compute in the format of the weights."""

    def config(own: Any, *given: Any, **named: Any) -> Any:
        return {**own(*given, **named), "bf16": {"enabled": False}}

    for name in ("get_train_ds_config", "get_eval_ds_config"):
        import_module("orch_cpu_device").around(utils, name, config)


def _gloo_alone(comm: Any) -> None:
    """Leave out DeepSpeed's own reduction in shared memory, which takes minutes to compile."""
    comm.build_shm_op = lambda: None
