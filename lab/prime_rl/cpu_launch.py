"""Turn a plan for Prime-RL into one on a CPU: orchestrator, environments, trainer; no vLLM."""

import hashlib
import tomllib
from collections.abc import Mapping

from backends.prime_rl import config
from backends.prime_rl.config import RL
from backends.prime_rl.releases import OLD
from backends.prime_rl.translate import sent
from lab import cpu
from lab.cpu import CpuLaunch, Deviation, differences
from orchestrator.records import AttemptPaths, LaunchPlan

MODULE = "orch_cpu_prime_rl"
_PARTS = (
    Deviation("part", "inference", "vLLM's server", "transformers behind the same HTTP interface"),
    Deviation("part", "uv run PROGRAM", None, "PROGRAM", "the environment is made already"),
    Deviation("part", "torchtitan.distributed.utils.clip_grad_norm_", None, "torch's own"),
    Deviation("part", "waiting for another program", "1 s", "0.1 s", "it is a short run"),
    Deviation("part", "prime_rl.trainer.perf", None, "no MFU", "it divides by the GPU's peak"),
)

_IN_FP32 = (
    Deviation("part", "MixedPrecisionPolicy", "bfloat16", "FSDP gathers parameters in fp32"),
    Deviation("part", "the broadcast", "bfloat16", "weights reach the sampler in fp32"),
)


def cpu_launch(plan: LaunchPlan, paths: AttemptPaths) -> CpuLaunch | None:
    """Return the launch on a CPU, or None for 0.8.0 and for a launch of two nodes."""
    if plan.version != OLD or "inference.toml" in plan.files:
        return None
    after = _on_cpu(_keys(plan), _port(paths))
    changed = plan.model_copy(
        update={
            "files": {**plan.files, RL: config.dumps(after), **cpu.files("prime_rl")},
            "env": {
                **plan.env,
                **cpu.variables(paths, MODULE),
                "CUDA_VISIBLE_DEVICES": "0,1,2",
                "HF_HUB_OFFLINE": "1",
                "WANDB_MODE": "offline",
            },
        }
    )
    why = dict.fromkeys(after, "one process of each program") | _WHY
    deviations = differences(
        plan, changed, lambda each: {key: str(value) for key, value in _keys(each).items()}, why
    )
    return CpuLaunch(changed, (*deviations, *cpu.PARTS, *_PARTS), _IN_FP32)


def _keys(plan: LaunchPlan) -> dict[str, object]:
    return dict(sent({RL: tomllib.loads(plan.files[RL])}))


def _on_cpu(keys: Mapping[str, object], port: int) -> dict[str, object]:
    """Return rl.toml for a CPU: one process for each program, and attention that a CPU has."""
    return {
        **keys,
        "deployment.gpus_per_node": 3,
        "deployment.num_train_gpus": 1,
        "deployment.num_infer_gpus": 1,
        "trainer.model.attn": "sdpa",
        "trainer.model.impl": "hf",
        "inference.server.port": port,
        "inference.parallel.dp": 1,
        "orchestrator.client.base_url": [f"http://localhost:{port}/v1"],
    }


_WHY = {
    "trainer.model.attn": "flash attention needs a GPU",
    "trainer.model.impl": "its own model classes let packed documents see each other in sdpa",
    "inference.server.port": "one that this attempt alone uses",
    "orchestrator.client.base_url": "the server's port",
}


def _port(paths: AttemptPaths) -> int:
    """Return a port for the servers of this attempt. Equal paths give equal ports."""
    return 20000 + int(hashlib.sha256(str(paths.attempt_dir).encode()).hexdigest(), 16) % 10000 * 2
