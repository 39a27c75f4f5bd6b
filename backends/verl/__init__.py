"""verl 0.9.1 and 0.8.0: PPO-family training on Ray, FSDP and vLLM."""

from collections.abc import Mapping, Sequence

from backends.verl import checkpoints, dialect, metrics, parse, translate
from backends.verl.cpu_launch import adopt
from backends.verl.manifest import MANIFEST
from backends.verl.marks import MARKS
from orchestrator.library.cpu_launch import CpuLaunch
from orchestrator.library.protocol import LibraryBackend
from orchestrator.records import LaunchPlan


class VerlBackend(LibraryBackend):
    """verl as a backend. Importing this class loads neither verl nor Hydra."""

    name = "verl"
    versions = MANIFEST.versions
    capabilities: Mapping[str, Sequence[object]] = MANIFEST.capabilities()
    prompts_format = translate.PROMPTS_FORMAT
    release_marks = MARKS
    estimator_names: Mapping[str, str] = {"kl": "k1", "mse": "k2", "low_var_kl": "k3"}

    dumps_rollouts = True

    translate = staticmethod(translate.translate)
    read_metrics = staticmethod(metrics.read_metrics)
    find_checkpoints = staticmethod(checkpoints.find_checkpoints)
    begun_checkpoints = staticmethod(checkpoints.begun_checkpoints)
    export_command = staticmethod(checkpoints.export_command)
    parse = staticmethod(parse.parse)
    semantics = staticmethod(dialect.semantics)

    def adopt(self, plan: LaunchPlan, argv: Sequence[str]) -> CpuLaunch | None:
        """Return the plan with the overrides of anybody's launch that it lacks."""
        return adopt(plan, argv)


BACKEND = VerlBackend()
