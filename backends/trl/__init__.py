"""TRL: its scripts `grpo` and `rloo`, by release. README.md lists the differences."""

from collections.abc import Mapping, Sequence

from backends.trl import checkpoints, dialect, metrics, parse, translate
from backends.trl.manifest import MANIFEST
from backends.trl.marks import MARKS
from backends.trl.options import VERSIONS
from orchestrator.library.protocol import LibraryBackend


class TRL(LibraryBackend):
    """TRL as a backend. Importing this class loads nothing of the library."""

    name = "trl"
    title = "TRL"
    versions = VERSIONS
    capabilities: Mapping[str, Sequence[object]] = MANIFEST.capabilities()
    prompts_format = translate.PROMPTS_FORMAT
    release_marks = MARKS
    dumps_rollouts = True

    translate = staticmethod(translate.translate)
    read_metrics = staticmethod(metrics.read_metrics)
    find_checkpoints = staticmethod(checkpoints.find_checkpoints)
    begun_checkpoints = staticmethod(checkpoints.begun_checkpoints)
    parse = staticmethod(parse.parse)
    semantics = staticmethod(dialect.semantics)


BACKEND = TRL()
