"""Turn a plan for TRL into one without a GPU. TRL runs on a CPU, so nothing has a stand-in."""

import re
from collections.abc import Mapping

from backends.trl.options import SCRIPTS
from backends.trl.translate import CONFIG, PROGRAM
from lab.cpu import CpuLaunch, differences
from orchestrator.records import AttemptPaths, LaunchPlan

CHANGES = {"use_cpu": "true", "gradient_checkpointing": "false", "use_vllm": "false"}
WHY = {
    "accelerate": "one process, without a GPU to give it",
    "use_cpu": "there is no GPU",
    "use_vllm": "vLLM wants a GPU: the policy itself samples",
    "gradient_checkpointing": "it trades time for a GPU's memory, and changes no number",
}


def cpu_launch(plan: LaunchPlan, paths: AttemptPaths) -> CpuLaunch | None:  # noqa: ARG001  # the protocol's
    """Return the launch on a CPU, or None for several processes, which share a batch."""
    script = next(name for name in SCRIPTS if name in plan.argv)
    if "--multi_gpu" in plan.argv or "--use_fsdp" in plan.argv:
        return None
    at = next(i for i, word in enumerate(plan.argv) if word.endswith(PROGRAM))
    name = CONFIG.format(script)
    after = plan.files[name]
    for key, value in CHANGES.items():
        after = re.sub(rf"^{key}: \w+$", f"{key}: {value}", after, flags=re.MULTILINE)
    on_cpu = plan.model_copy(
        update={"argv": ("python3", *plan.argv[at:]), "files": {**plan.files, name: after}}
    )
    differing = [each for each in differences(plan, on_cpu, _words, WHY) if each.name != name]
    return CpuLaunch(on_cpu, tuple(differing))


def _words(plan: LaunchPlan) -> Mapping[str, str]:
    """Return the words that start the program, its own arguments, and the options of its file."""
    argv, (name,) = plan.argv, [each for each in map(CONFIG.format, SCRIPTS) if each in plan.files]
    at = next(i for i, word in enumerate(argv) if word.endswith(PROGRAM))
    started = {"accelerate": " ".join(argv[:at])} if argv[0] == "accelerate" else {}
    options = re.findall(r"^(\w+): (.*)$", plan.files[name], flags=re.MULTILINE)
    return {**started, PROGRAM: " ".join(argv[at + 1 :]), **dict(options)}
