"""verl 0.9.1 and 0.8.0: PPO-family training on Ray, FSDP and vLLM."""

from collections.abc import Mapping
from pathlib import Path

from backends.verl import checkpoints, dialect, memory, metrics, parse, translate
from backends.verl.manifest import FACTS, MANIFEST
from backends.verl.releases import MARKS
from orchestrator.library.key_tables import load_releases, with_driven
from orchestrator.library.protocol import Backend
from orchestrator.records import LaunchPlan


class VerlBackend(Backend):
    """verl as a backend. Importing this class loads neither verl nor Hydra."""

    name = "verl"
    manifest = MANIFEST
    prompts_format = translate.PROMPTS_FORMAT
    release_marks = MARKS
    estimator_names: Mapping[str, str] = {"kl": "k1", "mse": "k2", "low_var_kl": "k3"}

    dumps_rollouts = True

    translate = staticmethod(translate.translate)
    gpu_memory = staticmethod(memory.gpu_memory)
    checkpoint_use = staticmethod(memory.checkpoint_use)
    read_metrics = staticmethod(metrics.read_metrics)
    logged_metrics = metrics.LOGGED
    find_checkpoints = staticmethod(checkpoints.find_checkpoints)
    begun_checkpoints = staticmethod(checkpoints.begun_checkpoints)
    spent_states = staticmethod(checkpoints.spent_states)
    export_command = staticmethod(checkpoints.export_command)
    parse = staticmethod(parse.parse)
    semantics = staticmethod(dialect.semantics)

    def keys_missing(self, version: str, plan: LaunchPlan) -> tuple[str, ...] | None:
        """Return the keys of a launch that a release's own configuration does not have.

        audit/keys.json has the keys of every release, as Hydra composes them. `+` adds a key.
        """
        history = Path(__file__).parent / "audit" / "keys.json"
        known = with_driven(load_releases(history), FACTS) if history.is_file() else None
        table = None if known is None else known.table(version)
        if table is None:
            return None
        own = MANIFEST.tables[self.neighbour(version)].keys  # without Hydra's, and added ones
        keys = (word.partition("=")[0] for word in plan.argv if "=" in word)
        return tuple(key for key in keys if key in own and not table.has(key))


BACKEND = VerlBackend()
