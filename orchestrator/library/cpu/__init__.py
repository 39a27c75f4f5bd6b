"""Stand-ins for a GPU and an inference engine, so that a library really trains on a CPU.

The other files of this folder run in a library's own environment, which has no orch. A plan that
`Backend.cpu_launch` returns has them, and those of the backend's own folder `cpu/`, in its folder
`cpu/`, which lies on PYTHONPATH. Only the device and the engine that samples stand in. The trainer,
its loss, its optimizer and its data path are the library's.

    sitecustomize       loads the rest in every process; ORCH_CPU names the library's module
    orch_cpu_device     code that names CUDA runs on the CPU, NCCL is gloo
    orch_cpu_sampler    samples responses with transformers
    orch_cpu_server     answers HTTP requests with a sampler
"""

from collections.abc import Mapping
from functools import cache
from pathlib import Path

from orchestrator.library.cpu_launch import Deviation
from orchestrator.records import AttemptPaths

FOLDER = "cpu"
"""Folder of a launch plan that holds the stand-ins."""


@cache
def files(backend_folder: Path) -> Mapping[str, str]:
    """Return the stand-ins as files of a plan, name -> text: the shared ones and a backend's."""
    shared, own = Path(__file__).parent, backend_folder / FOLDER
    return {
        f"{FOLDER}/{path.name}": path.read_text(encoding="utf-8")
        for folder in (shared, own)
        for path in sorted(folder.glob("*.py"))
        if path.name != "__init__.py"
    }


def variables(place: AttemptPaths, module: str) -> dict[str, str]:
    """Return the environment variables that load the stand-ins, `module` of the backend's."""
    return {
        "PYTHONPATH": str(place.plan_dir / FOLDER),
        "ORCH_CPU": module,
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
    }


RAY = {
    "RAY_ADDRESS": "local",
    "RAY_OVERRIDE_RESOURCES": '{"GPU": 8, "CPU": 8}',
    "RAY_prestart_worker_first_driver": "0",
    "RAY_worker_niceness": "0",  # its own 15 starves on a machine that does anything else
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_memory_monitor_refresh_ms": "0",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
"""Variables of a launch that starts its own Ray and declares one GPU that does not exist."""

PARTS = (
    Deviation("part", "torch.cuda", None, "the CPU, named as one GPU", "there is no GPU"),
    Deviation("part", "NCCL", None, "gloo", "NCCL needs GPUs"),
    Deviation("part", "torch.compile", None, "off", "inductor asks for the GPU's properties"),
)
"""Parts that the shared stand-ins replace."""
