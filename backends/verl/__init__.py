"""verl 0.9.1 and 0.8.0: PPO-family training on Ray, FSDP and vLLM."""

from collections.abc import Mapping

from backends.verl import checkpoints, dialect, metrics, parse, translate
from backends.verl.manifest import MANIFEST
from backends.verl.releases import MARKS
from orchestrator.library.protocol import Backend


class VerlBackend(Backend):
    """verl as a backend. Importing this class loads neither verl nor Hydra."""

    name = "verl"
    manifest = MANIFEST
    prompts_format = translate.PROMPTS_FORMAT
    release_marks = MARKS
    estimator_names: Mapping[str, str] = {"kl": "k1", "mse": "k2", "low_var_kl": "k3"}

    dumps_rollouts = True

    translate = staticmethod(translate.translate)
    read_metrics = staticmethod(metrics.read_metrics)
    logged_metrics = metrics.LOGGED
    find_checkpoints = staticmethod(checkpoints.find_checkpoints)
    begun_checkpoints = staticmethod(checkpoints.begun_checkpoints)
    export_command = staticmethod(checkpoints.export_command)
    parse = staticmethod(parse.parse)
    semantics = staticmethod(dialect.semantics)


BACKEND = VerlBackend()
