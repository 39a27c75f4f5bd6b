"""verl 0.9.1 on a machine without an accelerator: its device and its inference engine.

Shipped beside a launch as orch_verl_cpu.py and named in VERL_USE_EXTERNAL_MODULES, it is imported
in every process at the end of `import verl`. It enters a platform `cpu` and a sampler into verl's
own registries. Everything else stays verl's: configuration, data, agent loop, reward, advantages,
KL, losses, FSDP, optimizer, log and checkpoints. It runs only in verl's environment.

What FSDP 1 cannot do without an accelerator is replaced below, one line each, with its reason.
"""

import asyncio
import hashlib
import os
import types
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import ray
import torch
import torch.distributed.fsdp
from torch import Tensor
from verl.plugin.platform import PlatformBase, PlatformRegistry
from verl.utils import fsdp_utils
from verl.workers.rollout import base, replica

SERVER = "orch_cpu_sampler_{}"
"""Name of the sampler's actor; the number is the replica's."""
QUIET_SECONDS = 0.02
"""Requests that arrive within this time of each other are sampled together."""
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


class Request:
    """One prompt that waits to be sampled."""

    def __init__(self, prompt: list[int], params: dict[str, Any], longest: int, draw: Tensor):
        self.prompt, self.draw = prompt, draw
        self.longest = min(longest, int(params.get("max_tokens") or longest))
        self.temperature = float(params.get("temperature", 1.0))
        self.wants_logps = bool(params.get("logprobs"))
        self.answer = asyncio.get_running_loop().create_future()
        if params.get("top_p", 1.0) != 1.0 or params.get("top_k", -1) not in (-1, 0):
            raise NotImplementedError(
                f"the sampler without an accelerator takes neither top_p nor top_k, got {params}"
            )


class TransformersSampler:
    """The inference engine: transformers, one batch of requests at a time.

    It computes in float32, or in its own format where ORCH_CPU_ENGINE_ROUNDS is set.

    A response depends on the seed, the weights' version, the prompt and its number among equal
    prompts of that version: not on the order in which requests arrive.
    """

    def __init__(self, config: Any, path: str) -> None:
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(1)
        rounds = bool(os.environ.get("ORCH_CPU_ENGINE_ROUNDS"))
        dtype = getattr(torch, config.dtype) if rounds else torch.float32
        self.model = AutoModelForCausalLM.from_pretrained(path, dtype=dtype).eval()
        ends = self.model.generation_config.eos_token_id
        self.ends = set(ends) if isinstance(ends, list) else {ends}
        self.longest, self.seed = config.response_length, config.seed
        self.version: int | None = None
        self.asked: dict[tuple[int, ...], int] = {}
        self.waiting: list[Request] = []
        self.sampling: asyncio.Task[None] | None = None

    async def generate(
        self, prompt_ids: list[int], sampling_params: dict[str, Any], **_: Any
    ) -> Any:
        """Return verl's TokenOutput for one prompt."""
        prompt = [int(token) for token in prompt_ids]
        request = Request(prompt, sampling_params, self.longest, self._draw(prompt))
        self.waiting.append(request)
        if self.sampling is None or self.sampling.done():
            self.sampling = asyncio.create_task(self._sample_waiting())
        return await request.answer

    async def _sample_waiting(self) -> None:
        while self.waiting:
            count = 0
            while count != len(self.waiting):
                count = len(self.waiting)
                await asyncio.sleep(QUIET_SECONDS)
            batch, self.waiting = self.waiting, []
            try:
                outputs = self._sample(batch)
            except Exception as error:  # the requests' own callers raise it
                for request in batch:
                    request.answer.set_exception(error)
            else:
                for request, output in zip(batch, outputs, strict=True):
                    request.answer.set_result(output)

    @torch.no_grad()
    def _sample(self, batch: list[Request]) -> list[Any]:
        """Sample responses by inverting the distribution function at each token's draw."""
        longest = max(request.longest for request in batch)
        width = max(len(request.prompt) for request in batch)
        feed = torch.tensor([[0] * (width - len(r.prompt)) + r.prompt for r in batch])
        mask = torch.tensor([[0] * (width - len(r.prompt)) + [1] * len(r.prompt) for r in batch])
        heat = torch.tensor([request.temperature for request in batch])
        draws = torch.stack([request.draw for request in batch])
        past, tokens, logps = None, [], []
        for position in range(longest):
            # Counted from the mask, because prompts are padded on the left.
            places = (mask.cumsum(1) - 1).clamp(min=0)[:, -feed.shape[1] :]
            output = self.model(
                feed,
                attention_mask=mask,
                position_ids=places,
                past_key_values=past,
                use_cache=True,
            )
            past = output.past_key_values
            # Temperature 0 takes the likeliest token below, and must not divide by 0 here.
            scaled = output.logits[:, -1].float() / heat.clamp(min=1e-6)[:, None]
            logp = torch.log_softmax(scaled, -1)
            below = logp.double().exp().cumsum(-1)
            # Times the whole mass, which is 1 only up to rounding.
            at = torch.searchsorted(below, (draws[:, position] * below[:, -1])[:, None]).squeeze(1)
            token = torch.where(heat > 0, at.clamp(max=logp.shape[1] - 1), logp.argmax(-1))
            tokens.append(token)
            logps.append(logp.gather(1, token[:, None]).squeeze(1))
            feed = token[:, None]
            mask = torch.cat([mask, torch.ones_like(feed)], 1)
        rows = zip(
            batch, torch.stack(tokens, 1).tolist(), torch.stack(logps, 1).tolist(), strict=True
        )
        return [self._output(*row) for row in rows]

    def _output(self, request: Request, tokens: list[int], logps: list[float]) -> Any:
        ends = (i + 1 for i, token in enumerate(tokens) if token in self.ends)
        length = min(next(ends, request.longest), request.longest)
        return replica.TokenOutput(
            token_ids=tokens[:length],
            log_probs=logps[:length] if request.wants_logps else None,
            stop_reason="completed",
            extra_fields={"global_steps": self.version},
        )

    def _draw(self, prompt: list[int]) -> Tensor:
        """Return [longest] uniform numbers."""
        key = tuple(prompt)
        number = self.asked[key] = self.asked.get(key, -1) + 1
        name = f"{self.seed}/{self.version}/{key}/{number}".encode()
        seed = int.from_bytes(hashlib.sha256(name).digest()[:7])
        generator = torch.Generator().manual_seed(seed)
        return torch.rand(self.longest, generator=generator, dtype=torch.float64)

    async def load(self, weights: dict[str, Tensor], version: int | None) -> None:
        """Take the trainer's weights."""
        fault = self.model.load_state_dict(weights, strict=False)
        if fault.unexpected_keys or fault.missing_keys:
            raise RuntimeError(f"the trainer's weights do not fit the sampler's model: {fault}")
        self.version, self.asked = version, {}

    async def idle(self, *_: Any, **__: Any) -> None:
        """Answer what a GPU server does with its memory and its profiler."""

    wake_up = sleep = clear_kv_cache = release_kv_cache = resume_kv_cache = idle
    abort_all_requests = resume_generation = start_profile = stop_profile = idle


class SamplerReplica(replica.RolloutReplica):
    """verl's handle of one sampler."""

    async def launch_servers(self) -> None:
        """Start the sampler as one actor, where verl would start vLLM."""
        actor = ray.remote(TransformersSampler).options(
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
