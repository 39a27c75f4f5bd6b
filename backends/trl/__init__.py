"""TRL: its scripts `grpo` and `rloo`, by release. README.md lists the differences."""

import re

from backends.trl import checkpoints, dialect, metrics, parse, translate
from backends.trl.manifest import MANIFEST
from orchestrator.library.protocol import Backend
from orchestrator.library.release_marks import ReleaseFile, ReleaseMarks

_LOCKED = re.compile(r'name = "trl"\nversion = "(\d+\.\d+\.\d+)"')
_OWN = re.compile(r'(?m)^__version__ = "(\d+\.\d+\.\d+)')


class TRL(Backend):
    """TRL as a backend. Importing this class loads nothing of the library."""

    name = "trl"
    title = "TRL"
    manifest = MANIFEST
    prompts_format = translate.PROMPTS_FORMAT
    release_marks = ReleaseMarks(
        hint=r"\btrl\b|GRPOConfig|RLOOConfig|orch_trl|grpo|rloo|gspo|num_generations",
        distributions=("trl",),
        repositories=("trl",),
        files=(
            ReleaseFile("trl", "VERSION", needs="trl"),
            ReleaseFile("trl", "trl/__init__.py", pattern=_OWN),
            *(ReleaseFile("trl", name, pattern=_LOCKED) for name in ("uv.lock", "poetry.lock")),
        ),
        configuration_classes=(
            "GRPOConfig",
            "RLOOConfig",
            "grpo_defaults",
            "get_default_grpo_config",
        ),
    )
    dumps_rollouts = True

    translate = staticmethod(translate.translate)
    read_metrics = staticmethod(metrics.read_metrics)
    logged_metrics = metrics.LOGGED
    find_checkpoints = staticmethod(checkpoints.find_checkpoints)
    begun_checkpoints = staticmethod(checkpoints.begun_checkpoints)
    values_of_anybody = staticmethod(parse.values_of_anybody)
    parse = staticmethod(parse.parse)
    semantics = staticmethod(dialect.semantics)


BACKEND = TRL()
