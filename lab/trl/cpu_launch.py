"""Turn a plan for TRL into one without a GPU. TRL runs on a CPU, so nothing has a stand-in."""

import re
from collections.abc import Mapping, Sequence

from backends.trl.options import SCRIPTS
from backends.trl.translate import CONFIG, PROGRAM
from lab.cpu import CpuLaunch, Deviation, differences
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
    before = plan.files[name]
    after = before
    for key, value in CHANGES.items():
        after = re.sub(rf"^{key}: \w+$", f"{key}: {value}", after, flags=re.MULTILINE)
    on_cpu = plan.model_copy(
        update={"argv": ("python3", *plan.argv[at:]), "files": {**plan.files, name: after}}
    )
    changed = tuple(
        Deviation("argument", key, old, CHANGES[key], WHY[key])
        for key in CHANGES
        if (old := _value(before, key)) != CHANGES[key]
    )
    differing = [each for each in differences(plan, on_cpu, _words, WHY) if each.name != name]
    return CpuLaunch(on_cpu, (*differing, *changed))


def _value(text: str, key: str) -> str | None:
    match = re.search(rf"^{key}: (\w+)$", text, flags=re.MULTILINE)
    return match[1] if match else None


def _words(argv: Sequence[str]) -> Mapping[str, str]:
    """Return the words that start the program, and its own arguments, by name."""
    at = next(i for i, word in enumerate(argv) if word.endswith(PROGRAM))
    started = {"accelerate": " ".join(argv[:at])} if argv[0] == "accelerate" else {}
    return {**started, PROGRAM: " ".join(argv[at + 1 :])}
