"""What Prime-RL 0.5.0 imports or asks of a GPU and cannot have on a CPU.

Its configuration must ask for `trainer.model.attn=sdpa` and `trainer.model.impl=hf`: flash
attention is not to be had, and its own model classes let packed documents see each other without.
"""

import sys
import types
from importlib import import_module
from typing import Any
from unittest.mock import MagicMock

POLL_SECONDS = 0.1
"""How often a program looks for what another wrote; Prime-RL's own is 1 s."""
POLLING = (
    *("prime_rl.orchestrator.scheduler", "prime_rl.orchestrator.utils", "prime_rl.utils.pathing"),
    *("prime_rl.utils.client", "prime_rl.trainer.rl.packer"),
)
PROGRAMS = {
    "inference": ("-m", "orch_cpu_prime_rl_server"),
    "orchestrator": ("-m", "prime_rl.orchestrator.orchestrator"),
}
"""Programs that `rl` starts as `uv run PROGRAM`, as arguments of Python."""


def install() -> None:
    """Put the stand-ins in place, in this process."""
    device: Any = import_module("orch_cpu_device")
    refuse, stand_in = device.refuse, device.stand_in
    ring = refuse("ring-flash-attn")
    stand_in(
        "ring_flash_attn",
        substitute_hf_flash_attn=ring,
        update_ring_flash_attn_params=ring,
        llama3_flash_attn_varlen_func=ring,
    )
    stand_in("ring_flash_attn.utils", AllGatherComm=object, get_default_args=ring)
    stand_in("dion", Muon=object)
    stand_in("torchtitan")
    stand_in("torchtitan.distributed")
    stand_in(
        "torchtitan.distributed.expert_parallel",
        TOKEN_GROUP_ALIGN_SIZE_M=8,
        ExpertParallel=object,
        expert_parallel=lambda function: function,
    )
    stand_in("torchtitan.distributed.utils", clip_grad_norm_=clip_grad_norm)
    stand_in(
        "pynvml",
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetComputeRunningProcesses=lambda _: [],
    )
    for parent in ("vllm", "vllm.distributed", "vllm.distributed.device_communicators"):
        stand_in(parent)
    pynccl = "vllm.distributed.device_communicators.pynccl"
    stand_in(pynccl, PyNcclCommunicator=refuse("vLLM's NCCL communicator"))
    stand_in("vllm.distributed.utils", StatelessProcessGroup=refuse("vLLM's process group"))
    for parent in ("prime_cli", "prime_cli.core"):
        stand_in(parent)
    stand_in("prime_cli.core.config", Config=refuse("Prime Intellect's platform"))
    stand_in("prime_rl.trainer.models.kernels.fp8_indexer", __getattr__=lambda _: MagicMock())
    device.after("prime_rl.entrypoints.rl", _in_this_environment)
    for module in POLLING:
        device.after(module, _poll_often)
    device.after("prime_rl.trainer.perf", _no_peak)
    device.after("transformers.tokenization_utils_base", _moved_tokenizer)
    if device.in_fp32():
        device.after("torch.distributed.fsdp", _gathers_in_fp32)
        device.after("prime_rl.trainer.weights", _broadcasts_in_fp32)


def clip_grad_norm(parameters: Any, max_norm: float, ep_enabled: bool = False, **_: object) -> Any:
    """As torchtitan's without expert or pipeline parallelism: torch's, of whole tensors."""
    if ep_enabled:
        raise RuntimeError("torchtitan stands in here: it knows no expert parallelism")
    norm = import_module("torch").nn.utils.clip_grad_norm_(parameters, max_norm)
    return norm.full_tensor() if hasattr(norm, "full_tensor") else norm


def _poll_often(module: Any) -> None:
    """Have a module's own `time.sleep` and `asyncio.sleep` last POLL_SECONDS at most."""
    for name in ("time", "asyncio"):
        if real := vars(module).get(name):
            quick = types.SimpleNamespace(**vars(real))
            # `sleep` is bound here, because the next turn of the loop changes `real`.
            quick.sleep = lambda seconds, sleep=real.sleep: sleep(min(seconds, POLL_SECONDS))
            setattr(module, name, quick)


def _in_this_environment(rl: Any) -> None:
    start = rl.Popen

    def popen(argv: Any, **more: Any) -> Any:
        words = [str(word) for word in argv]
        if words[:2] == ["uv", "run"]:
            words = words[2:]
        if words[0] in PROGRAMS:
            words = [sys.executable, *PROGRAMS[words[0]], *words[1:]]
        return start(words, **more)

    rl.Popen = popen
    rl.cleanup_threads = lambda _: None  # waits 5 s for each of four that end with the process


def _no_peak(perf: Any) -> None:
    perf.PerfCounter.get_mfu = lambda _: 0.0  # a share of the GPU's peak, which is 0


def _gathers_in_fp32(fsdp: Any) -> None:
    fp32, own = import_module("torch").float32, fsdp.MixedPrecisionPolicy
    fsdp.MixedPrecisionPolicy = lambda **named: own(**{**named, "param_dtype": fp32})


def _broadcasts_in_fp32(weights: Any) -> None:
    """Change the default format: a broadcast names none; checkpoints name theirs."""
    weights.gather_weights_on_master.__defaults__ = (import_module("torch").float32,)


def _moved_tokenizer(base: Any) -> None:
    """Give transformers 5's tokenizer class the old name that Prime-RL's annotations use."""
    sys.modules.setdefault("transformers.tokenization_utils", base)
    if not hasattr(base, "PreTrainedTokenizer"):
        base.PreTrainedTokenizer = base.PreTrainedTokenizerBase
