"""vLLM's engine as OpenRLHF's actor uses it, answered by transformers; and its communicator."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from importlib import import_module
from types import SimpleNamespace
from typing import Any

TIMEOUT = timedelta(seconds=300)


def random_uuid() -> str:
    return uuid.uuid4().hex


@dataclass
class SamplingParams:
    """Those that OpenRLHF sets."""

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    max_tokens: int = 16
    min_tokens: int = 0
    logprobs: int | None = None
    skip_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    stop: Any = None
    seed: int | None = None


class AsyncEngineArgs(SimpleNamespace):
    """Any arguments."""


class Worker:
    """What OpenRLHF's worker extension finds in `self`."""

    def __init__(self, arguments: Any) -> None:
        torch: Any = import_module("torch")
        dist = torch.distributed
        if not dist.is_initialized():
            dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        sampling = import_module("orch_cpu_sampler")
        self.sampler = sampling.Sampler(arguments.model, arguments.dtype, arguments.seed)
        self.device = torch.device("cpu")
        self.model_config = SimpleNamespace(dtype=self.sampler.dtype)
        self.model_runner = SimpleNamespace(model=self.sampler)
        if arguments.worker_extension_cls:
            module, _, name = arguments.worker_extension_cls.rpartition(".")
            extension = getattr(import_module(module), name)
            # As vLLM mixes a worker extension into its worker.
            self.__class__ = type("Worker", (extension, Worker), {})


class AsyncLLMEngine:
    """An engine in this process."""

    def __init__(self, arguments: Any) -> None:
        self.worker, self.asleep, self.unfinished = Worker(arguments), False, 0
        self.batches = import_module("orch_cpu_server").Batches(self.worker.sampler)
        self.threads = ThreadPoolExecutor(128)
        self.output_processor = SimpleNamespace(get_num_unfinished_requests=lambda: self.unfinished)

    @classmethod
    def from_engine_args(cls, arguments: Any) -> "AsyncLLMEngine":
        return cls(arguments)

    async def is_sleeping(self) -> bool:
        return self.asleep

    async def sleep(self, **_: object) -> None:
        self.asleep = True

    async def wake_up(self, **_: object) -> None:
        self.asleep = False

    async def reset_prefix_cache(self) -> None:
        """There is none."""

    async def pause_generation(self, **_: object) -> None:
        """Weights change between responses: a response is of one policy."""

    async def resume_generation(self) -> None:
        """See pause_generation."""

    async def collective_rpc(self, method: str, args: tuple[Any, ...] = ()) -> list[Any]:
        loop = asyncio.get_running_loop()
        return [await loop.run_in_executor(self.threads, getattr(self.worker, method), *args)]

    async def generate(
        self, prompt: Mapping[str, Any], sampling_params: SamplingParams, request_id: str
    ) -> AsyncIterator[Any]:
        if self.asleep:
            raise RuntimeError("asked for a response while asleep")
        self.unfinished += 1
        ids = list(prompt["prompt_token_ids"])
        try:
            response = await asyncio.get_running_loop().run_in_executor(
                self.threads,
                self.batches.sample,
                ids,
                sampling_params.max_tokens,
                sampling_params.temperature,
            )
        finally:
            self.unfinished -= 1
        logprobs = [
            {token: SimpleNamespace(logprob=logprob)}
            for token, logprob in zip(response.ids, response.logprobs, strict=True)
        ]
        output = SimpleNamespace(
            token_ids=response.ids,
            logprobs=None if sampling_params.logprobs is None else logprobs,
            finish_reason=response.finish_reason,
            text=None,
        )
        yield SimpleNamespace(
            request_id=request_id, prompt_token_ids=ids, finished=True, outputs=[output]
        )


class StatelessProcessGroup:
    """As vLLM's: a store that two processes meet at, apart from torch's default group."""

    def __init__(self, store: Any, rank: int, world_size: int) -> None:
        self.store, self.rank, self.world_size = store, rank, world_size

    @classmethod
    def create(
        cls, host: str, port: int, rank: int, world_size: int, **_: object
    ) -> "StatelessProcessGroup":
        store = import_module("torch").distributed.TCPStore(
            host, port, world_size, rank == 0, timeout=TIMEOUT
        )
        return cls(store, rank, world_size)


class Communicator:
    """Broadcasts over gloo, in the place of NCCL."""

    disabled = False

    def __init__(self, group: StatelessProcessGroup, device: Any = None) -> None:
        self._dist: Any = import_module("torch").distributed
        self.rank = group.rank
        store = self._dist.PrefixStore("sync", group.store)
        self._group = self._dist.ProcessGroupGloo(store, group.rank, group.world_size, TIMEOUT)

    def broadcast(self, tensor: Any, src: int, stream: Any = None) -> None:
        """Send the bytes of a tensor from rank `src` to all others, which take them."""
        raw = tensor.detach().contiguous().view(-1).view(import_module("torch").uint8)
        options = self._dist.BroadcastOptions()
        options.rootRank, options.rootTensor = src, 0
        self._group.broadcast([raw], options).wait()
        if self.rank != src:
            tensor.copy_(raw.view(tensor.dtype).view(tensor.shape))
