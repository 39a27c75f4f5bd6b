"""Translate a cell to a launch of openrlhf.cli.train_ppo_ray, or refuse it.

The manifest refuses values of single fields. `check` refuses combinations that OpenRLHF cannot
train: GPUs, batches, prompts and paths. Its parser accepts most of them. README.md describes what
would happen.
"""

from functools import partial
from pathlib import Path
from typing import NamedTuple

from backends.openrlhf.checkpoints import FINAL_DIR, STEPS_DIR
from backends.openrlhf.flags import (
    NEWEST,
    argv,
    dotted_names,
    is_read,
    own_tables,
    spelled,
)
from backends.openrlhf.manifest import (
    HELD_OUT,
    MANIFEST,
    PLAIN_ESTIMATORS,
    PROMPTS,
    STRAIGHT_THROUGH,
    UNBIASED,
    WEIGHTED,
    num_copies,
)
from orchestrator.errors import UnsupportedSetting
from orchestrator.library import loggers
from orchestrator.library.manifest import (
    Carried,
    refuse_if,
    refuse_rest,
    rollouts_each,
    validation,
)
from orchestrator.library.memory import longest_sequence, micro_batch
from orchestrator.library.needs import NEEDS, needs, shared_files, text_of
from orchestrator.records import AttemptPaths, Cell, LaunchPlan, LedgerEntry
from orchestrator.settings import Settings

REWARDS, REWARD = Path(__file__).parent / "rewards", "reward.py"
NO_KEY = "of_the_environment"
"""OpenRLHF logs to W&B where it is given a key, and uses it only if the environment has none. A
key does not belong into arguments."""
PROMPTS_FORMAT = "labelled"
COLUMNS = {"prompt": "prompt", "label": "label"}
REWARD_CLIP = (-1000.0, 1000.0)
"""A clip that never acts. The default of 10 would cut standardised rewards of groups over 101."""

CONSTANTS = frozenset(
    {
        "ckpt.max_num",
        "ds.enable_sleep",
        "ds.packing_samples",
        "ds.zero_stage",
        "train.colocate_actor_ref",
        "train.colocate_all",
        "vllm.enable_prefix_caching",
        "vllm.enable_sleep",
    }
)
"""Flags that every launch sends and that `backend.extra` may replace."""
Options = dict[str, object]
"""Dotted name of a flag -> its value; False, None and ABSENT leave the flag out."""


MOST_COPIES = 256
"""The maximum number of copies of the prompt file. One argument names it once per copy."""


LARGEST_MICRO_BATCH, MOST_TOKENS = 8, 16384
"""Most sequences of a GPU's micro-batch, and most tokens, where its size is not mathematics."""


class RankLayout(NamedTuple):
    """The GPUs that train, the engines that sample, and the parts of a batch for them."""

    num_nodes: int
    """Nodes that train; the reference policy shares their GPUs."""
    gpus_per_node: int
    num_engines: int
    """vLLM engines."""
    micro_train: int
    micro_rollout: int
    gpus_of_engine: int = 1


def translate(cell: Cell, paths: AttemptPaths) -> LaunchPlan:
    """Return the launch of a cell. Raise UnsupportedSetting for a cell the release cannot train."""
    settings = cell.settings
    loggers.refuse(cell, ("wandb", "tensorboard"), "OpenRLHF logs to W&B and to TensorBoard alone.")
    version = MANIFEST.version_of(settings)
    carried = _carried(settings)
    layout = rank_layout(cell, version)
    check(cell, version, layout, paths)
    needed = needs(
        settings,
        version,
        *("backend.version", "model.name"),
        *("precision.training", "precision.rollout", "precision.checkpoint"),
        *(["kl.estimator"] if settings.kl.estimator in UNBIASED else []),
    )
    options = {
        **MANIFEST.assignments(settings, carried),
        **_files(settings, paths),
        **_machines(settings, layout, version),
        **_validates(cell, paths),
        **_output(cell, paths),
    }
    options, own = MANIFEST.finished(
        settings,
        cell.system,
        options,
        table=own_tables()[version],
        constants=CONSTANTS,
        names=dotted_names(version),
    )
    extra = settings.backend.passed
    dotted = {dotted_names(version).get(name, name) for name in extra}
    program = argv({k: v for k, v in options.items() if k not in {*extra, *dotted}}, version, extra)
    return LaunchPlan(
        cell_id=cell.id,
        backend="openrlhf",
        version=version,
        argv=program,
        files={REWARD: text_of(REWARDS, REWARD), **shared_files(cell, PROMPTS_FORMAT, needed)},
        env={
            **({"RAY_ADDRESS": "auto"} if cell.resources.num_nodes > 1 else {}),
            **loggers.variables(cell, paths),
        },
        ledger=MANIFEST.ledger(settings, {**options, NEEDS: needed}, carried)
        + own
        + (_validation(cell, options, version),),
        bring_up="ray",
    )


def _carried(settings: Settings) -> tuple[Carried, ...]:
    try:
        return MANIFEST.carry(settings)
    except UnsupportedSetting:
        # Refuse the placement first: the offered values of other fields depend on it.
        MANIFEST.row(settings, "kl.placement", settings.kl.placement)
        raise


def _files(settings: Settings, paths: AttemptPaths) -> Options:
    prompts = [str(paths.plan_dir / PROMPTS)] * num_copies(settings)
    return {
        "data.prompt_dataset": ",".join(prompts),
        "data.input_key": COLUMNS["prompt"],
        "data.label_key": COLUMNS["label"],
        "reward.remote_url": str(paths.plan_dir / REWARD),
        "reward.clip_range": REWARD_CLIP,
    }


def _machines(settings: Settings, layout: RankLayout, version: str) -> Options:
    synchronous = settings.max_staleness_steps == 0
    return {
        "rollout.micro_batch_size": layout.micro_rollout,
        "train.micro_batch_size": layout.micro_train,
        "actor.num_nodes": layout.num_nodes,
        "actor.num_gpus_per_node": layout.gpus_per_node,
        "ref.num_nodes": layout.num_nodes,
        "ref.num_gpus_per_node": layout.gpus_per_node,
        "vllm.num_engines": layout.num_engines,
        "vllm.tensor_parallel_size": layout.gpus_of_engine,
        # The rollouts of a group share a prompt. The policy's process empties the cache before it
        # sends new weights (0.11.2, trainer/ray/ppo_actor.py, broadcast_to_vllm, line 410); an
        # asynchronous engine may be sampling then, and keeps the blocks that are in use.
        "vllm.enable_prefix_caching": is_read(version)
        and synchronous
        and settings.rollout.group_size > 1,
        "ds.zero_stage": 3,
        "ds.packing_samples": True,
        "actor.gradient_checkpointing_enable": True,
        "train.colocate_all": synchronous,
        "train.colocate_actor_ref": not synchronous,
        "vllm.enable_sleep": synchronous,
        "ds.enable_sleep": synchronous,
        "vllm.gpu_memory_utilization": 0.6 if synchronous else 0.9,
    }


def _validates(cell: Cell, paths: AttemptPaths) -> Options:
    return {
        "eval.dataset": str(paths.plan_dir / HELD_OUT),
        "eval.steps": _batches_between(cell),
        "eval.temperature": cell.settings.rollout.temperature,
        "eval.n_samples_per_prompt": 1,
        "ckpt.best_metric_key": "none",  # else it also saves its best policy at each evaluation
    }


def _batches_between(cell: Cell) -> int:
    """Return the rollout batches from one validation to the next."""
    every = cell.cadence.evaluate_every_steps or cell.settings.num_train_steps
    return max(1, round(every / cell.settings.batch.num_minibatches))


def _validation(cell: Cell, options: Options, version: str) -> LedgerEntry:
    """Return the ledger entry of the validation.

    OpenRLHF 0.11.2 evaluates where its step divides, never before training, and cuts the
    evaluation set as it cuts the training set (trainer/ppo_trainer.py, fit and prepare_datasets).
    """
    every, settings = _batches_between(cell), cell.settings
    steps = every * settings.batch.num_minibatches
    last = " nor after the last step" if settings.num_train_steps % steps else ""
    return validation(
        cell,
        spelled("eval.steps", version) or "",
        every,
        steps,
        f"not before training{last}; the first {options['data.max_samples']} validation prompts at "
        "most",
    )


def _output(cell: Cell, paths: AttemptPaths) -> Options:
    minibatches = cell.settings.batch.num_minibatches
    every = cell.cadence.checkpoint_every_steps
    steps = f"{STEPS_DIR}{minibatches}"
    wandb = {
        "logger.wandb.key": NO_KEY,
        "logger.wandb.project": loggers.project(paths),
        "logger.wandb.group": loggers.group(cell),
    }
    return {
        "ckpt.path": str(paths.checkpoints_dir / steps),
        "ckpt.output_dir": f"{paths.checkpoints_dir / FINAL_DIR}{cell.settings.num_train_steps}",
        "ckpt.save_steps": None if every is None else max(1, round(every / minibatches)),
        "ckpt.save_hf": every is not None,
        "ckpt.max_num": 2,
        "ckpt.load_enable": True,
        # the run's name, which W&B shows, is a folder below that of TensorBoard
        "logger.tensorboard_dir": str(paths.attempt_dir / "tensorboard" / steps),
        "logger.wandb.run_name": cell.slug,
        **(wandb if "wandb" in cell.loggers else {}),
    }


def rank_layout(cell: Cell, version: str) -> RankLayout:
    """Return the split of the GPUs. Synchronous: all models share every GPU. Else half train.

    Raise UnsupportedSetting if the GPUs cannot be halved, or a batch does not divide over them: the
    library would leave some ranks with fewer samples and hang, or fail in DeepSpeed.
    """
    refuse, settings = partial(refuse_if, cell), cell.settings
    nodes, gpus = cell.resources.num_nodes, cell.resources.gpus_per_node
    halved = settings.max_staleness_steps > 0
    refuse(
        halved and nodes % 2 and gpus % 2,
        "resources.gpus_per_node",
        "an even number of nodes or of GPUs",
        "Asynchronous training keeps half of the GPUs for sampling: give an even number, or "
        "set max_staleness_steps=0.",
    )
    if halved:
        nodes, gpus = (nodes, gpus // 2) if nodes % 2 else (nodes // 2, gpus)
    refuse(
        gpus == 0,
        "resources.gpus_per_node",
        "1 or more",
        "Every model of a run lives on GPUs; set resources.gpus_per_node.",
    )
    workers = nodes * gpus
    share = rollouts_each(cell, workers)
    tokens = longest_sequence(settings) if is_read(version) else 1
    by_sequence = not is_read(version) and settings.loss.aggregation == "sequence_mean"
    key = spelled("train.micro_batch_size", version) or ""
    declared = MANIFEST.micro_batch(settings, cell.system, key.removeprefix("--"))
    why = f"A GPU has {share} rollouts of a minibatch and takes equal parts"
    refuse_rest(
        cell,
        "system.micro_batch",
        share,
        declared,
        why,
    )
    refuse(
        by_sequence and declared not in (None, 1),
        "system.micro_batch",
        "1",
        f"In {version} micro-batches of one sequence make loss.aggregation=sequence_mean: "
        "leave it out.",
        declared,
    )
    parallel = cell.system.tensor_parallel or 1
    why = f"Engines of {parallel} GPUs do not fill the {gpus} GPUs that a node has for them"
    refuse_rest(
        cell,
        "system.tensor_parallel",
        gpus,
        parallel,
        why,
    )
    micro = declared or micro_batch(share, tokens, MOST_TOKENS, LARGEST_MICRO_BATCH)
    return RankLayout(
        nodes, gpus, workers // parallel, 1 if by_sequence else micro, micro, parallel
    )


def check(cell: Cell, version: str, layout: RankLayout, paths: AttemptPaths) -> None:
    """Raise UnsupportedSetting for the first rule that a cell breaks."""
    refuse, settings, loss = partial(refuse_if, cell), cell.settings, cell.settings.loss
    _check_weighted_gradient(settings)
    copies = num_copies(settings)
    refuse(
        settings.data.num_prompts and copies > MOST_COPIES,
        "data.num_prompts",
        f"a split passed at most {MOST_COPIES} times",
        f"num_train_steps needs {copies} passes; take more prompts or fewer train steps.",
    )
    for sign in (",", "@"):  # OpenRLHF cuts paths at a comma, and those of data at @
        refuse(
            sign in str(paths.plan_dir),
            "site.runs_dir",
            f"a path without '{sign}'",
            "It splits the paths of prompts and rewards there: move the runs folder.",
            paths.plan_dir,
        )
    refuse(
        settings.model.path.startswith("-"),
        "model.path",
        "a path that starts otherwise",
        "Its parser would take this for a flag: write ./ before it.",
    )
    refuse(
        settings.max_staleness_steps % settings.batch.num_minibatches,
        "max_staleness_steps",
        f"multiples of batch.num_minibatches ({settings.batch.num_minibatches})",
        "The queue between sampler and trainer holds whole rollout batches: take a multiple of "
        "batch.num_minibatches.",
    )
    refuse(
        loss.policy == "gspo" and loss.correction is not None,
        "loss.correction",
        "none, where loss.policy is gspo",
        "OpenRLHF's gspo with a correction takes its ratio to the engine and weights nothing "
        "(openrlhf/models/loss.py, PolicyLoss): leave it out, or set loss.policy=ppo.",
        loss.correction and loss.correction.kind,
    )
    by_token = loss.aggregation == "token_mean"
    refuse(
        not is_read(version) and by_token and layout.micro_train == 1,
        "loss.aggregation",
        "sequence_mean",
        f"{version} averages each micro-batch by itself, and only one sequence fits this batch "
        f"and these GPUs: that is sequence_mean. backend.version={NEWEST} divides by the "
        "tokens of the minibatch.",
    )


def _check_weighted_gradient(settings: Settings) -> None:
    """Raise UnsupportedSetting if --algo.kl.unbiased_gradient has not the estimator's gradient.

    It has k2's, weighted by the ratio to the policy at the start of the rollout batch. That ratio
    is 1 at the first of the minibatches only, and is not the one to a stale rollout policy.
    """
    estimator, minibatches = settings.kl.estimator, settings.batch.num_minibatches
    stale = settings.max_staleness_steps > 0
    why = ""
    if settings.kl.placement == "loss" and estimator in STRAIGHT_THROUGH and minibatches > 1:
        weighted = "k2" if stale else "sg_rho_k2"
        why = (
            "With several minibatches its straight-through gradient is weighted by the importance "
            f"ratio: ask for {weighted}, or set batch.num_minibatches=1."
        )
    elif settings.kl.placement == "loss" and estimator in WEIGHTED and stale:
        why = (
            "Its ratio is to the policy at the start of the rollout batch, not to the stale "
            "rollout policy: set max_staleness_steps=0, or take kl.estimator=k2."
        )
    if why:
        straight = STRAIGHT_THROUGH if minibatches == 1 else ()
        offered = (*PLAIN_ESTIMATORS, *straight, *(() if stale else WEIGHTED))
        raise UnsupportedSetting("openrlhf", "kl.estimator", estimator, offered, why)
