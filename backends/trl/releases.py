"""The marks of TRL, and of its releases, in the text of a launch; and what a release lacks."""

import json
import re
from collections.abc import Mapping
from pathlib import Path

from backends.trl.options import BIAS_CORRECTED, REDECLARED, SCRIPTS, VERSIONS, own_options
from backends.trl.translate import CONFIG
from orchestrator.library.key_tables import is_since, nearest
from orchestrator.library.release_marks import OwnHooks, ReleaseFile, ReleaseMarks, Replaced
from orchestrator.records import LaunchPlan


def _bounds_of(commit: str) -> str:
    """Return the releases around a commit of TRL's main branch (commits.json); empty: unknown."""
    text = Path(__file__).with_name("audit").joinpath("commits.json").read_text(encoding="utf-8")
    between = json.loads(text).items()
    return next((bounds for bounds, commits in between if commit[:7] in commits), "")


_OWN = re.compile(r'(?m)^__version__ = "(\d+\.\d+\.\d+)')
_AROUND_THE_LOSS: Mapping[str, Replaced] = {
    **dict.fromkeys(("_compute_loss", "compute_loss", "compute_liger_loss"), "loss"),
    **dict.fromkeys(("_get_per_token_logps", "_get_per_token_logps_and_entropies"), "loss"),
    **dict.fromkeys(
        ("_generate_and_score_completions", "_generate", "_generate_single_turn"), "samples"
    ),
    "_calculate_rewards": "advantage",
    **dict.fromkeys(("_prepare_inputs", "training_step", "_inner_training_loop"), "trainer"),
    "train": "trainer",  # RLOOTrainer's before 0.22 has the sampling, the KL and the loss in it
}
"""Methods of trl/trainer/grpo_trainer.py and rloo_trainer.py, all releases since 0.14.0."""
MARKS = ReleaseMarks(
    hooks=OwnHooks(
        packages=("trl",),
        classes={r"(?:\w*GRPO|\w*RLOO|GMPO|OnlineDPO|PPO)Trainer": _AROUND_THE_LOSS},
        bare=("Trainer", "Seq2SeqTrainer", "_UnslothGRPOTrainer", "UnslothGRPOTrainer"),
        stock=r"(?:^|/)(?:orch_\w+|trl/(?:scripts|cli)/\w+|open_r1/grpo_(?:jsonl|rec))\.py$",
        trainers=r"\w*(?:GRPO|RLOO|GSPO|PPO|RL)\w*Trainer",
        reward=("._calculate_rewards",),
        known_packages=("unsloth", "verifiers"),
    ),
    hint=r"\btrl\b|GRPOConfig|RLOOConfig|orch_trl|grpo|rloo|gspo|num_generations",
    distributions=("trl",),
    repositories=("trl",),
    bounds_of=_bounds_of,
    files=(
        ReleaseFile("trl", "VERSION", needs="trl"),
        ReleaseFile("trl", "trl/__init__.py", pattern=_OWN),
    ),
    configuration_classes=(
        "GRPOConfig",
        "GMPOConfig",
        "RLOOConfig",
        "grpo_defaults",
        "get_default_grpo_config",
    ),
)


def neighbour(version: str) -> str:
    """Return the nearest driven release on the same side of 1.10.0, which corrects the KL's
    bias; of any side if there is none."""
    corrects = is_since(version, BIAS_CORRECTED)
    oldest_first = VERSIONS[::-1]
    same = [each for each in oldest_first if is_since(each, BIAS_CORRECTED) is corrects]
    known = same or oldest_first
    return known[nearest(known, version)]


def keys_missing(version: str, plan: LaunchPlan) -> tuple[str, ...] | None:
    """Return the options of a launch that are gone from, or not yet in, a release's own class.

    history.json has the options of GRPOConfig and RLOOConfig, release by release; those that
    they inherit from transformers are not judged.
    """
    for script in SCRIPTS:
        text = plan.files.get(CONFIG.format(script))
        history = own_options(script)
        if text is None or version not in history:
            continue
        every = {key for own in history.values() for key in own} - REDECLARED
        set_ = [line.partition(":")[0] for line in text.splitlines()]
        return tuple(key for key in set_ if key in every and key not in history[version])
    return None
