"""Recognise verl, and its release, in the text of a launch and by its keys.

Since April 2025 (0.4.0) `algorithm.use_kl_in_reward` switches the KL in the reward. A launch with
the coefficient and neither switch may be older or newer, and its keys often fit both. `example`
dates one that has exactly the keys of one of verl's own shell scripts. examples.json has every such
script of verl's repository, in each version up to August 2026: a hash of its keys -> path, first
day, "before" or "since" the change. None of its 118 sets of keys existed both before and after it.
"""

import hashlib
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path

from backends.verl.manifest import FACTS, TABLES, VERSIONS
from orchestrator.library.key_tables import load_tables, nearest, version_tuple
from orchestrator.library.release_marks import OwnHooks, ReleaseFile, ReleaseMarks
from orchestrator.records import LaunchPlan

CONFIG = "verl/trainer/config/ppo_trainer.yaml"
_RECIPES = (
    "dapo|prime|spin|sppo|r1|drgrpo|entropy|flowrl|gkd|one_step_off_policy|fully_async_policy|retool"
    "|char_count|langgraph_agent|collabllm|deepeyes|genrm_remote|fapo|gvpo|rep_exp|minicpmo|vla"
    "|transfer_queue|open_math_reasoning|infigui-g1|async_flow|gspo|cispo"
)
"""Folders of verl's own recipes."""
_EXPERIMENTS = (
    r"fully_async_policy/fully_async_main|(?:one_step_off_policy|transfer_queue)/main_ppo"
    r"|vla/main_\w+"
)
"""Programs of verl's own experiments."""


def by_configuration(
    read: Callable[[str], str | None], known: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    """Yield the release that verl's own configuration shows in a copy of verl.

    Forks keep an old version file. verl's own version file stayed at 0.2.0.dev for months, during
    which the switch of the KL in the reward was added.
    """
    text = read(CONFIG) or read(f"verl/{CONFIG}")
    if text is None or "verl" not in known:
        return
    version, _, why = known["verl"].partition(" ")
    before = tuple(int(n) for n in version.split(".")[:2]) < (0, 4)
    if before and "use_kl_in_reward" in text and reads_switch(read):
        yield "verl", f"0.4.0 {CONFIG} beside it has use_kl_in_reward (though {why}: {version})"
    elif not before and "algorithm:" in text and "use_kl_in_reward" not in text:
        yield "verl", f"0.3.0 {CONFIG} beside it has no use_kl_in_reward (though {why}: {version})"


def reads_switch(read: Callable[[str], str | None]) -> bool:
    """Return False if a copy's trainer is at hand and does not read the switch of 0.4.0: a fork's
    configuration may have the key without it."""
    return "use_kl_in_reward" in (read("verl/trainer/ppo/ray_trainer.py") or "use_kl_in_reward")


HOOKS = OwnHooks(
    packages=("verl",),
    classes={
        r"Ray\w*Trainer|\w*PPOTrainer\w*": {
            "fit": "trainer",
            "_update_actor": "trainer",
            "_compute_old_log_prob": "loss",
            "_compute_ref_log_prob": "loss",
            "_compute_advantage": "advantage",
        },
        # What starts a trainer of the library's, unchanged.
        "run_ppo|main_task|main_ppo|TaskRunner": {},
        r"\w*PPOActor": {"update_policy": "loss", "compute_log_prob": "loss"},
        r"\w*(?:ActorRollout|Training)\w*Worker\w*": {
            **dict.fromkeys(("update_actor", "update_policy", "train_mini_batch"), "loss"),
            **dict.fromkeys(("set_loss_fn", "compute_ref_log_prob"), "loss"),
        },
    },
    functions={
        **dict.fromkeys(
            ("compute_advantage", "apply_kl_penalty", "compute_grpo_outcome_advantage"), "advantage"
        ),
        **dict.fromkeys(("kl_penalty", "kl_penalty_forward"), "trainer"),
        **dict.fromkeys(("compute_policy_loss", "compute_policy_loss_vanilla"), "loss"),
        **dict.fromkeys(("agg_loss", "ppo_loss", "get_policy_loss_fn"), "loss"),
    },
    registers={
        "register_policy_loss": "loss",
        **dict.fromkeys(("register_adv_est", "register_adv_estimator"), "advantage"),
    },
    imports=("external_lib",),
    forked=r"verl\.(?!experimental\.|trainer\.(?:main_|\w*sft_trainer|ppo\.(?:ray_trainer|v1)\b)"
    r"|workers\.(?:roles|fsdp_workers|megatron_workers|engine_workers)\b)"
    r"[\w.]*\.\w*(?:Trainer|ActorRolloutRefWorker)",
    loop=(
        "_?update_actor",
        r"(actor_rollout_|_?compute_)?ref(_log_prob|_policy_wg|_in_actor)?|use_(reference_policy|kl_\w+)",
    ),
    stock=r"(?:^|/)verl/trainer/main\.py$"
    rf"|^verl/(?:trainer/(?:main_(?:ppo(?:_sync|_monarch)?|generation\w*|eval|fastrl))|experimental/(?:{_EXPERIMENTS}))\.py$"
    r"|(?:^|/)orch_\w+\.py$|^verl/trainer/fsdp_sft_trainer\.py$"
    rf"|^(?:verl/)?recipe/(?:{_RECIPES})/",
)
"""Functions and methods of trainer/ppo/core_algos.py, trainer/ppo/ray_trainer.py and workers/, all
releases; their recipes are read by the reader."""
MARKS = ReleaseMarks(
    hooks=HOOKS,
    hint=r"main_ppo|verl\.(?:trainer|experimental)|\brecipe\.\w[\w.]*_main\b|actor_rollout_ref"
    r"|worker\.actor\.",
    distributions=("verl",),
    repositories=("verl",),
    images=("verlai/verl:app-verl",),
    files=tuple(ReleaseFile("verl", f"{top}verl/version/version") for top in ("", "verl/")),
    amended=by_configuration,
)


def example(keys: Collection[str]) -> Sequence[str]:
    """Return path, first day and side of the script of verl's that gives exactly these keys; empty
    without one."""
    known = json.loads(Path(__file__).with_name("examples.json").read_text(encoding="utf-8"))
    named: Mapping[str, Sequence[str]] = known
    return named.get(hashlib.sha256("\n".join(sorted(keys)).encode()).hexdigest()[:12], ())


def keys_missing(version: str, plan: LaunchPlan) -> tuple[str, ...] | None:
    """Return the keys of a launch that a release's own configuration does not have.

    audit/keys.json has the keys of every release, as Hydra composes them. `+` adds a key.
    """
    history = Path(__file__).parent / "audit" / "keys.json"
    known = load_tables(history, driven=FACTS) if history.is_file() else None
    if known is None or version not in known.versions:
        return None
    had = known.facts_of(version)
    driven = sorted(VERSIONS, key=version_tuple)
    own = TABLES[driven[nearest(driven, version)]].keys  # without Hydra's, and added ones
    keys = (word.partition("=")[0] for word in plan.argv if "=" in word)
    return tuple(key for key in keys if key in own and key not in had)
