"""What SkyRL 0.4.0 imports or asks of a GPU and cannot have on a CPU.

Its configuration must ask for `trainer.flash_attn=false`, `trainer.remove_microbatch_padding=false`
(flash attention packs) and `enable_ray_prometheus_stats=false` (vLLM's).
"""

import abc
import sys
import tempfile
import typing
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple


class ParamMeta(NamedTuple):
    """As vLLM's."""

    name: str
    dtype: Any
    shape: tuple[int, ...]


def install() -> None:
    """Put the stand-ins in place, in this process."""
    device: Any = import_module("orch_cpu_device")
    refuse, stand_in = device.refuse, device.stand_in
    if sys.version_info < (3, 12):  # SkyRL asks for 3.12, where pydantic takes typing's
        typing.TypedDict = import_module("typing_extensions").TypedDict
    stand_in("vllm", __version__="0.30.0")
    stand_in("vllm.distributed")
    stand_in("vllm.distributed.weight_transfer")
    stand_in(
        "vllm.distributed.weight_transfer.base",
        ParamMeta=ParamMeta,
        WeightSource=abc.ABC,
        WeightTransferEngine=object,
        WeightTransferTrainerEngine=object,
        materialize_full_tensor=lambda x: x.full_tensor() if hasattr(x, "full_tensor") else x,
    )
    stand_in(
        "vllm.distributed.weight_transfer.packed_tensor", DEFAULT_PACKED_BUFFER_SIZE_BYTES=1 << 30
    )
    stand_in("vllm_router")
    stand_in("vllm_router.launch_router", launch_router=refuse("vLLM's router"))
    stand_in("vllm_router.router_args", RouterArgs=refuse("vLLM's router"))
    flash = refuse("flash-attn")
    stand_in("flash_attn", __version__="2.8.3")
    stand_in("flash_attn.bert_padding", pad_input=flash, unpad_input=flash)
    device.after("ray", device.small_ray)
    if device.in_fp32():
        device.after("skyrl.backends.skyrl_train.distributed.fsdp_strategy", _fsdp_in_fp32)
        device.after("skyrl.backends.skyrl_train.workers.model_wrapper", _loaded_in_fp32)
    device.after("skyrl.train.dataset.dataset", _one_process)
    device.after("skyrl.backends.skyrl_train.inference_servers.setup", _one_server)
    device.after("skyrl.backends.skyrl_train.weight_sync.weight_senders", _by_file)


def _one_process(dataset: Any) -> None:
    """Filter prompts in the process that has them: eight more take half a minute to start."""
    begin = dataset.PromptDataset.__init__
    dataset.PromptDataset.__init__ = lambda self, *a, **named: begin(
        self, *a, **{**named, "num_workers": 1}
    )


def _fsdp_in_fp32(strategy: Any) -> None:
    """Have FSDP gather parameters in fp32, where SkyRL has no key for another than bf16."""
    own = strategy.MixedPrecisionPolicy

    def policy(**named: Any) -> Any:
        return own(**{**named, "param_dtype": import_module("torch").float32})

    strategy.MixedPrecisionPolicy = policy


def _loaded_in_fp32(wrapper: Any) -> None:
    """Load the reference policy without rounding: SkyRL rounds its weights, not the policy's."""
    begin = wrapper.HFModelWrapper.__init__
    wrapper.HFModelWrapper.__init__ = lambda self, *a, **named: begin(
        self, *a, **{**named, "bf16": False}
    )


def _one_server(setup: Any) -> None:
    """Serve from a thread of this process, in the place of groups of vLLM servers."""

    def create(ie_cfg: Any, cli_args: Any, **_: Any) -> Any:
        server: Any = import_module("orch_cpu_skyrl_server")
        url = server.start(
            cli_args.trainer.policy.model.path, ie_cfg.model_dtype, cli_args.trainer.seed
        )
        return setup.InferenceServerSetup(proxy_url=url, server_urls=[url])

    setup.build_vllm_cli_args = lambda cfg: cfg
    setup.create_inference_servers = create


def _by_file(senders: Any) -> None:
    """Send weights by a file in memory and a request, in the place of NCCL or CUDA's IPC."""

    class FileEngine(senders.SkyrlTrainerCapabilities):
        def __init__(self, source: Any, urls: list[str], rank: int) -> None:
            self.source, self.urls, self.rank = source, urls, rank

        def send_weights(self) -> None:
            weights = dict(self.source)  # every rank takes part in gathering
            if self.rank:
                return
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "weights.pt"
                import_module("torch").save(weights, path)
                for url in self.urls:
                    answer = import_module("requests").post(f"{url}/orch/load", json=str(path))
                    answer.raise_for_status()

    def build(*, ie_cfg: Any, rank: int, source_factory: Any, server_urls: Any, **_: Any) -> Any:
        in_fp32 = import_module("orch_cpu_device").in_fp32()
        dtype = getattr(import_module("torch"), "float32" if in_fp32 else ie_cfg.model_dtype)
        return FileEngine(source_factory(dtype, "nccl"), list(server_urls), rank)

    senders.build_trainer_engine = build
