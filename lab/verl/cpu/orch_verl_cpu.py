"""verl 0.9.1 on a machine without an accelerator: its device and its inference engine.

Named in VERL_USE_EXTERNAL_MODULES, it is imported in every process at the end of `import verl`. It
enters a platform `cpu` and a sampler into verl's own registries. Everything else stays verl's:
configuration, data, agent loop, reward, advantages, KL, losses, FSDP, optimizer, log and
checkpoints. It runs only in verl's environment.

What FSDP 1 cannot do without an accelerator is replaced below, one line each, with its reason.
"""

import asyncio
import os
import types
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import ray
import torch
import torch.distributed.fsdp
from orch_cpu_sampler import Sampler
from orch_cpu_server import Batches
from torch import Tensor
from verl.plugin.platform import PlatformBase, PlatformRegistry
from verl.utils import fsdp_utils
from verl.workers.rollout import base, replica

SERVER = "orch_cpu_sampler_{}"
"""Name of the sampler's actor; the number is the replica's."""
_CPU = torch.device("cpu")


class _CpuModule(types.ModuleType):
    """torch.cpu, with an answer to every question that verl asks of torch.cuda."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cpu, name, None) or (lambda *_, **__: 0)

    def get_device_name(self, *_: Any) -> str:
        """Return the name by which verl looks up peak FLOPs."""
        return "CPU"

    def mem_get_info(self, *_: Any) -> tuple[int, int]:
        """Return free and total bytes: made up, because nothing here depends on them."""
        return 1 << 33, 1 << 34

    def get_rng_state(self, *_: Any) -> Tensor:
        return torch.get_rng_state()

    def set_rng_state(self, state: Tensor, *_: Any) -> None:
        torch.set_rng_state(state)


@PlatformRegistry.register(platform="cpu")
class CpuPlatform(PlatformBase):
    """The CPU as verl's accelerator. In Ray it holds one GPU's slot."""

    device_name = property(lambda _: "cpu")
    vendor_name = property(lambda _: "cpu")

    @property
    def device_module(self) -> types.ModuleType:
        """Return what stands for torch.cuda."""
        return _MODULE

    def is_available(self) -> bool:
        return True

    def current_device(self) -> torch.device:
        return _CPU  # FSDP compares it with the parameters' own device, which has no index

    def device_count(self) -> int:
        return 1

    def set_device(self, device_index: int) -> None: ...
    def synchronize(self, device_index: int | None = None) -> None: ...
    def set_allocator_settings(self, settings: str) -> None: ...
    def empty_cache(self) -> None: ...
    def profiler_start(self) -> None: ...
    def profiler_stop(self) -> None: ...

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    manual_seed_all = manual_seed

    def get_device_capability(self, device_index: int = 0) -> tuple[None, None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"

    def nvtx_range(self, msg: str) -> AbstractContextManager[None]:
        return nullcontext()

    def ray_resource_name(self) -> str:
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        return []

    def is_ipc_supported(self) -> bool:
        return False

    def cudart(self) -> None:
        return None


_MODULE = _CpuModule("orch_verl_cpu_device")


class VerlSampler:
    """The inference engine: transformers, in float32 or, where ORCH_CPU_ENGINE_ROUNDS is set, in
    the engine's own format."""

    def __init__(self, config: Any, path: str) -> None:
        dtype = config.dtype if os.environ.get("ORCH_CPU_ENGINE_ROUNDS") else "float32"
        self.sampler = Sampler(path, dtype, config.seed)
        self.batches, self.threads = Batches(self.sampler), ThreadPoolExecutor(128)
        self.longest = config.response_length
        self.version: int | None = None

    async def generate(
        self, prompt_ids: list[int], sampling_params: dict[str, Any], **_: Any
    ) -> Any:
        """Return verl's TokenOutput for one prompt."""
        response = await asyncio.get_running_loop().run_in_executor(
            self.threads,
            self.batches.sample,
            [int(token) for token in prompt_ids],
            min(self.longest, int(sampling_params.get("max_tokens") or self.longest)),
            float(sampling_params.get("temperature", 1.0)),
        )
        return replica.TokenOutput(
            token_ids=response.ids,
            log_probs=response.logprobs if sampling_params.get("logprobs") else None,
            stop_reason="completed",
            extra_fields={"global_steps": self.version},
        )

    async def load(self, weights: dict[str, Tensor], version: int | None) -> None:
        """Take the trainer's weights."""
        self.sampler.load_weights(weights.items())
        self.version = version

    async def idle(self, *_: Any, **__: Any) -> None:
        """Answer what a GPU server does with its memory and its profiler."""

    wake_up = sleep = clear_kv_cache = release_kv_cache = resume_kv_cache = idle
    abort_all_requests = resume_generation = start_profile = stop_profile = idle


class SamplerReplica(replica.RolloutReplica):
    """verl's handle of one sampler."""

    async def launch_servers(self) -> None:
        """Start the sampler as one actor, where verl would start vLLM."""
        actor = ray.remote(VerlSampler).options(
            name=SERVER.format(self.replica_rank), num_cpus=1, max_concurrency=4096
        )
        server = actor.remote(self.config, self.model_config.path)
        self.servers, self._server_handle = [server], server
        self._server_address = SERVER.format(self.replica_rank)


class SamplerLink(base.BaseRollout):
    """The training worker's side: hands its weights to the sampler."""

    replica_rank, is_leader_rank = 0, True

    async def resume(self, tags: list[str]) -> None:
        """Do nothing: the sampler keeps its memory."""

    async def release(self) -> None:
        """Do nothing."""

    async def update_weights(self, weights: Any, global_steps: int | None = None, **_: Any) -> None:
        """Send the weights as they are, in float32."""
        tensors = {name: tensor.detach().float().cpu().clone() for name, tensor in weights}
        await ray.get_actor(SERVER.format(0)).load.remote(tensors, global_steps)


def install() -> None:
    """Enter the sampler under every engine's name, and mend FSDP 1 for tensors on the CPU."""
    for engine in ("vllm", "sglang"):
        base._ROLLOUT_REGISTRY[engine, "async"] = f"{__name__}.SamplerLink"  # noqa: SLF001  verl's only way
        replica.RolloutReplicaRegistry.register(engine, lambda: SamplerReplica)
    own_init = torch.distributed.init_process_group

    def init_process_group(backend: str | None = None, *args: Any, **named: Any) -> Any:
        # verl asks for "cpu:gloo,<device>:<backend>"; torch refuses the CPU twice
        return own_init("gloo" if backend == "cpu:gloo,cpu:gloo" else backend, *args, **named)

    torch.distributed.init_process_group = init_process_group
    # FSDP 1 refuses to broadcast CPU tensors, which gloo can
    torch.distributed.fsdp._init_utils._check_module_states_for_sync_module_states = (  # noqa: SLF001  not public
        lambda *_, **__: None
    )
    # the reference policy "offloaded to the CPU" would pin its memory for a GPU
    vars(torch.distributed.fsdp)["CPUOffload"] = lambda **_: None
    # moves modules to "cpu:cpu"; they are there
    fsdp_utils.load_fsdp_model_to_gpu = lambda *_, **__: None


install()
