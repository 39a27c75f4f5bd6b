"""OpenRLHF: flags of `openrlhf.cli.train_ppo_ray`, by release. README.md lists the differences."""

from backends.openrlhf import checkpoints, dialect, memory, metrics, parse, translate
from backends.openrlhf.manifest import MANIFEST
from orchestrator.library.protocol import Backend
from orchestrator.library.release_marks import OwnHooks, ReleaseFile, ReleaseMarks


class OpenRLHF(Backend):
    """OpenRLHF as a backend. Importing this class loads nothing of the library."""

    name = "openrlhf"
    title = "OpenRLHF"
    manifest = MANIFEST
    prompts_format = translate.PROMPTS_FORMAT
    release_marks = ReleaseMarks(
        hooks=OwnHooks(
            packages=("openrlhf",),
            classes={
                r"PolicyLoss": {"forward": "loss"},
                r"(?:Actor)?PPOTrainer|PolicyModelActor": {
                    "training_step": "loss",
                    "ppo_train": "loss",
                },
                r"(?:Base)?PPOTrainer\w*|PPOTrainer": {"train_step": "trainer", "fit": "trainer"},
                r"\w*ExperienceMaker": {
                    "make_experience": "advantage",
                    "compute_advantages_and_returns": "advantage",
                    "get_advantages_and_returns": "advantage",
                    "get_cumulative_returns": "advantage",
                    "process_experiences": "advantage",
                },
            },
            functions={
                "PolicyLoss": "loss",
                "RemoteExperienceMaker": "advantage",
                "compute_approx_kl": "trainer",
                "compute_reward": "advantage",
                "masked_mean": "loss",
                "aggregate_loss": "loss",
            },
            stock=r"(?:^|/)(?:openrlhf/cli/\w+|orch_\w+)\.py$",
        ),
        hint=r"openrlhf|train_ppo|--init_kl|--algo\.kl",
        distributions=("openrlhf",),
        repositories=("OpenRLHF",),
        files=(ReleaseFile("openrlhf", "version.txt", needs="openrlhf"),),
    )
    dumps_rollouts = True

    translate = staticmethod(translate.translate)
    gpu_memory = staticmethod(memory.gpu_memory)
    checkpoint_use = staticmethod(memory.checkpoint_use)
    read_metrics = staticmethod(metrics.read_metrics)
    logged_metrics = metrics.LOGGED
    find_checkpoints = staticmethod(checkpoints.find_checkpoints)
    begun_checkpoints = staticmethod(checkpoints.begun_checkpoints)
    values_of_anybody = staticmethod(parse.values_of_anybody)
    parse = staticmethod(parse.parse)
    semantics = staticmethod(dialect.semantics)


BACKEND = OpenRLHF()
