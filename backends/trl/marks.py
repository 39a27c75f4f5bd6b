"""Recognise TRL, and its release, in the text of a launch."""

import re

from orchestrator.library.releases import ReleaseFile, ReleaseMarks

_LOCKED = re.compile(r'name = "trl"\nversion = "(\d+\.\d+\.\d+)"')
_OWN = re.compile(r'(?m)^__version__ = "(\d+\.\d+\.\d+)')
MARKS = ReleaseMarks(
    hint=r"\btrl\b|GRPOConfig|RLOOConfig|orch_trl|grpo|rloo|gspo|num_generations",
    distributions=("trl",),
    repositories=("trl",),
    files=(
        ReleaseFile("trl", "VERSION", needs="trl"),
        ReleaseFile("trl", "trl/__init__.py", pattern=_OWN),
        *(ReleaseFile("trl", name, pattern=_LOCKED) for name in ("uv.lock", "poetry.lock")),
    ),
    configuration_classes=("GRPOConfig", "RLOOConfig", "grpo_defaults", "get_default_grpo_config"),
)
