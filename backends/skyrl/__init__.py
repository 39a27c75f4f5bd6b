"""SkyRL (NovaSky): cells as launches of its trainer, through its own overrides."""

from backends.skyrl import checkpoints, dialect, memory, metrics, parse, translate
from backends.skyrl.manifest import MANIFEST
from orchestrator.library.protocol import Backend
from orchestrator.library.release_marks import ReleaseFile, ReleaseMarks


class SkyRL(Backend):
    """SkyRL as a backend; importing it loads nothing of the library."""

    name = "skyrl"
    title = "SkyRL"
    manifest = MANIFEST
    prompts_format = translate.PROMPTS_FORMAT
    release_marks = ReleaseMarks(
        hint=r"skyrl|trainer\.algorithm",
        aliases=("skyrl-train",),
        distributions=("skyrl",),
        files=(
            ReleaseFile("skyrl-train", "skyrl-train/pyproject.toml"),
            ReleaseFile("skyrl-train", "skyrl_train/pyproject.toml"),
        ),
    )
    dumps_rollouts = True

    translate = staticmethod(translate.translate)
    gpu_memory = staticmethod(memory.gpu_memory)
    checkpoint_use = staticmethod(memory.checkpoint_use)
    read_metrics = staticmethod(metrics.read_metrics)
    logged_metrics = metrics.LOGGED
    find_checkpoints = staticmethod(checkpoints.find_checkpoints)
    begun_checkpoints = staticmethod(checkpoints.begun_checkpoints)
    export_command = staticmethod(checkpoints.export_command)
    parse = staticmethod(parse.parse)
    semantics = staticmethod(dialect.semantics)


BACKEND = SkyRL()
