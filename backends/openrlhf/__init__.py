"""OpenRLHF: flags of `openrlhf.cli.train_ppo_ray`, by release. README.md lists the differences."""

from collections.abc import Mapping, Sequence

from backends.openrlhf import checkpoints, dialect, metrics, parse, translate
from backends.openrlhf.flags import VERSIONS
from backends.openrlhf.manifest import MANIFEST
from backends.openrlhf.marks import MARKS
from orchestrator.library.protocol import LibraryBackend


class OpenRLHF(LibraryBackend):
    """OpenRLHF as a backend. Importing this class loads nothing of the library."""

    name = "openrlhf"
    title = "OpenRLHF"
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


BACKEND = OpenRLHF()
