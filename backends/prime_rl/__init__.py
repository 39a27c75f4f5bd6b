"""Prime-RL 0.8.0 and 0.5.0: asynchronous RL, with orch's loss in the library's documented hooks."""

from backends.prime_rl import checkpoints, dialect, metrics, parse, releases
from backends.prime_rl.manifest import MANIFEST
from backends.prime_rl.memory import checkpoint_use, gpu_memory
from backends.prime_rl.releases import MARKS
from backends.prime_rl.translate import PROMPTS_FORMAT, translate
from orchestrator.library.protocol import Backend


class PrimeRl(Backend):
    """Prime-RL as a backend, which runs cells with its `rl` command.

    Importing it loads no library.
    """

    name = releases.NAME
    title = "Prime-RL"
    manifest = MANIFEST
    prompts_format = PROMPTS_FORMAT
    dumps_rollouts = True
    release_marks = MARKS
    translate = staticmethod(translate)
    gpu_memory = staticmethod(gpu_memory)
    checkpoint_use = staticmethod(checkpoint_use)
    parse = staticmethod(parse.parse)
    semantics = staticmethod(dialect.semantics)
    read_metrics = staticmethod(metrics.read_metrics)
    logged_metrics = metrics.LOGGED
    find_checkpoints = staticmethod(checkpoints.find_checkpoints)
    begun_checkpoints = staticmethod(checkpoints.begun_checkpoints)
    export_command = staticmethod(checkpoints.export_command)
    checkpoint_companions = staticmethod(checkpoints.companions)


BACKEND = PrimeRl()
