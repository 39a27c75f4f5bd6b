"""SkyRL (NovaSky): cells as launches of its trainer, through its own overrides."""

from backends.skyrl import checkpoints, dialect, memory, metrics, parse, translate
from backends.skyrl.manifest import MANIFEST
from orchestrator.library.protocol import Backend
from orchestrator.library.release_marks import OwnHooks, ReleaseFile, ReleaseMarks


class SkyRL(Backend):
    """SkyRL as a backend; importing it loads nothing of the library."""

    name = "skyrl"
    title = "SkyRL"
    manifest = MANIFEST
    prompts_format = translate.PROMPTS_FORMAT
    release_marks = ReleaseMarks(
        hooks=OwnHooks(
            packages=("skyrl", "skyrl_train", "skyrl_gym"),
            classes={
                r"\w*Ray\w*Trainer\w*": {
                    "train": "trainer",
                    "train_critic_and_policy": "trainer",
                    "apply_reward_kl_penalty": "advantage",
                    "compute_advantages_and_returns": "advantage",
                    "postprocess_generator_output": "advantage",
                    "fwd_logprobs_values_reward": "loss",
                },
                r"\w*Policy\w*Worker\w*": {
                    "training_step": "loss",
                    "forward_backward": "loss",
                    "_forward_backward_micro": "loss",
                    "ppo_train": "loss",
                },
            },
            functions={
                "compute_approx_kl": "trainer",
                "ppo_policy_loss": "loss",
                "reduce_loss": "loss",
                "compute_advantages_and_returns": "advantage",
                "compute_grpo_outcome_advantage": "advantage",
            },
            registers={
                "register_policy_loss": "loss",
                "register_advantage_estimator": "advantage",
                "PolicyLossRegistry.register": "loss",
                "AdvantageEstimatorRegistry.register": "advantage",
            },
            stock=r"(?:^|/)(?:skyrl(?:_train|/train)/entrypoints/\w+|orch_\w+)\.py$",
        ),
        hint=r"skyrl|trainer\.algorithm",
        aliases=("skyrl-train",),
        distributions=("skyrl",),
        files=(
            ReleaseFile("skyrl-train", "skyrl-train/pyproject.toml"),
            ReleaseFile("skyrl-train", "skyrl_train/pyproject.toml"),
        ),
    )
    dumps_rollouts = True

    translate = staticmethod(translate.translate)
    gpu_memory = staticmethod(memory.gpu_memory)
    checkpoint_use = staticmethod(memory.checkpoint_use)
    read_metrics = staticmethod(metrics.read_metrics)
    logged_metrics = metrics.LOGGED
    find_checkpoints = staticmethod(checkpoints.find_checkpoints)
    begun_checkpoints = staticmethod(checkpoints.begun_checkpoints)
    export_command = staticmethod(checkpoints.export_command)
    parse = staticmethod(parse.parse)
    semantics = staticmethod(dialect.semantics)


BACKEND = SkyRL()
