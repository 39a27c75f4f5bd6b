"""The embedded trainer: real RL of a tiny policy on this machine, in seconds a cell."""

from pathlib import Path

from backends.micro import disk, kernels, plan, rehearsal, shipped, version
from backends.micro.manifest import MANIFEST
from orchestrator.kl.library_semantics import Semantics
from orchestrator.library.protocol import EmbeddedTrainer, ShippedPrompts


class Micro(EmbeddedTrainer):
    """The embedded trainer as a backend. Importing this class loads no torch."""

    name = "micro"
    title = "the embedded trainer"
    versions = (version.VERSION,)
    capabilities = MANIFEST.capabilities()
    tasks_dir = Path(__file__).parent / "tasks"
    policies_dir = shipped.POLICIES
    translate = staticmethod(plan.translate)
    parse = staticmethod(plan.parse)
    read_metrics = staticmethod(disk.read_metrics)
    find_checkpoints = staticmethod(disk.find_checkpoints)
    resumable_step = staticmethod(disk.resumable_step)
    begun_checkpoints = staticmethod(disk.begun_checkpoints)
    rehearse = staticmethod(rehearsal.rehearse)
    rehearse_tasks = staticmethod(rehearsal.rehearse_tasks)
    computed_by = staticmethod(kernels.described)

    def prompts(self, task: str, count: int | None) -> ShippedPrompts | None:
        """Return the problems of a skill, as text."""
        from backends.micro import problem_sets

        rows = problem_sets.prompts(task, count)
        return None if rows is None else ShippedPrompts(*rows)

    def semantics(self, version_: str | None) -> Semantics:
        """Return the dialect that a version of the embedded trainer names."""
        return Semantics(version.dialect(version_))


BACKEND = Micro()
