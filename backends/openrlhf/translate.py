"""Translate a cell to a launch of openrlhf.cli.train_ppo_ray."""

from collections.abc import Mapping
from functools import cache, lru_cache
from pathlib import Path

from backends.openrlhf import rules
from backends.openrlhf.checkpoints import FINAL_DIR, STEPS_DIR
from backends.openrlhf.flags import NEWEST, argv
from backends.openrlhf.manifest import MANIFEST, PROMPTS, UNBIASED, num_copies
from backends.openrlhf.rules import RankLayout, rank_layout
from orchestrator import scoring
from orchestrator.errors import UnsupportedSetting
from orchestrator.library import prompt_recipe, rollout_dump
from orchestrator.library.manifest import Carried, without_evaluation
from orchestrator.library.needs import NEEDS, needs_file
from orchestrator.records import AttemptPaths, Cell, LaunchPlan
from orchestrator.settings import Data, Settings

REWARD, DUMP = "reward.py", "orch_openrlhf_rollouts.py"
PROMPTS_FORMAT = "labelled"
COLUMNS = {"prompt": "prompt", "label": "label"}
REWARD_CLIP = (-1000.0, 1000.0)
"""A clip that never acts. The default of 10 would cut standardised rewards of groups over 101."""

Options = dict[str, object]
"""Dotted name of a flag -> its value; False, None and ABSENT leave the flag out."""


def translate(cell: Cell, place: AttemptPaths) -> LaunchPlan:
    """Return the launch of a cell. Raise UnsupportedSetting for a cell the release cannot train."""
    settings = cell.settings
    version = MANIFEST.version_of(settings)
    carried = _carried(settings)
    layout = rank_layout(settings, cell.resources, version)
    rules.check(settings, version, layout, place)
    needed, needed_text = needs(settings, version)
    options = {
        **MANIFEST.assignments(settings, carried),
        **_files(settings, place),
        **_machines(settings, layout),
        **_output(cell, place),
    }
    dump_files, dump_variables = _dump(cell, version, place)
    program = argv(options, version)
    if dump_files:
        program = (program[0], str(place.plan_dir / DUMP), *program[1:])
    return LaunchPlan(
        cell_id=cell.id,
        backend="openrlhf",
        version=version,
        argv=program,
        files={
            NEEDS: needed_text,
            REWARD: reward_file(),
            **scoring.files(settings.data.reward),
            **prompt_recipe.plan_file(settings.data, PROMPTS_FORMAT),
            **dump_files,
        },
        env={
            **({"RAY_ADDRESS": "auto"} if cell.resources.num_nodes > 1 else {}),
            **dump_variables,
        },
        ledger=MANIFEST.ledger(settings, {**options, NEEDS: needed}, carried)
        + without_evaluation(cell.cadence),
        bring_up="ray",
    )


def _dump(
    cell: Cell, version: str, place: AttemptPaths
) -> tuple[Mapping[str, str], Mapping[str, str]]:
    """Return the files and variables that write a launch's rollouts, both empty if it writes none.

    Raise UnsupportedSetting for a release whose hook was never run.
    """
    if not cell.cadence.dump_rollouts:
        return {}, {}
    if version != NEWEST:
        raise UnsupportedSetting(
            "openrlhf",
            "cadence.dump_rollouts",
            True,
            (False,),
            f"The hook that writes rollouts is for {NEWEST}: set backend.version={NEWEST}.",
        )
    text = (Path(__file__).parent / "launch" / DUMP).read_text(encoding="utf-8")
    files = {DUMP: text, f"{rollout_dump.MODULE}.py": rollout_dump.source()}
    return files, {rollout_dump.VARIABLE: str(place.attempt_dir / rollout_dump.FOLDER)}


def _carried(settings: Settings) -> tuple[Carried, ...]:
    try:
        return MANIFEST.carry(settings)
    except UnsupportedSetting:
        # Refuse the placement first: the offered values of other fields depend on it.
        MANIFEST.row(settings, "kl.placement", settings.kl.placement)
        raise


def _files(settings: Settings, place: AttemptPaths) -> Options:
    prompts = [str(place.plan_dir / PROMPTS)] * num_copies(settings)
    return {
        "data.prompt_dataset": ",".join(prompts),
        "data.input_key": COLUMNS["prompt"],
        "data.label_key": COLUMNS["label"],
        "reward.remote_url": str(place.plan_dir / REWARD),
        "reward.clip_range": REWARD_CLIP,
    }


def _machines(settings: Settings, layout: RankLayout) -> Options:
    synchronous = settings.max_staleness_steps == 0
    return {
        "rollout.micro_batch_size": layout.micro_rollout,
        "actor.entropy_coef": 0.0,
        "train.micro_batch_size": layout.micro_train,
        "actor.num_nodes": layout.num_nodes,
        "actor.num_gpus_per_node": layout.gpus_per_node,
        "ref.num_nodes": layout.num_nodes,
        "ref.num_gpus_per_node": layout.gpus_per_node,
        "vllm.num_engines": layout.num_engines,
        "vllm.tensor_parallel_size": 1,
        "ds.zero_stage": 3,
        "ds.packing_samples": True,
        "actor.gradient_checkpointing_enable": True,
        "train.colocate_all": synchronous,
        "train.colocate_actor_ref": not synchronous,
        "vllm.enable_sleep": synchronous,
        "ds.enable_sleep": synchronous,
        "vllm.gpu_memory_utilization": 0.6 if synchronous else 0.9,
    }


def _output(cell: Cell, place: AttemptPaths) -> Options:
    minibatches = cell.settings.batch.num_minibatches
    every = cell.cadence.checkpoint_every_steps
    return {
        "ckpt.path": str(place.checkpoints_dir / STEPS_DIR.format(minibatches)),
        "ckpt.output_dir": str(
            place.checkpoints_dir / FINAL_DIR.format(cell.settings.num_train_steps)
        ),
        "ckpt.save_steps": None if every is None else max(1, round(every / minibatches)),
        "ckpt.save_hf": every is not None,
        "ckpt.max_num": 2,
        "ckpt.load_enable": True,
        "logger.tensorboard_dir": str(place.attempt_dir / "tensorboard"),
        "logger.wandb.run_name": STEPS_DIR.format(minibatches),
    }


def needs(settings: Settings, version: str) -> tuple[Mapping[str, object], str]:
    """Return the data of a launch that no flag carries, as a mapping and as the text of needs.json.

    It holds the release, the prompts, and, under `asked`, the settings that have the same flags in
    several cells.
    """
    requested: tuple[tuple[str, object], ...] = (
        ("backend.version", settings.backend.version),
        ("model.name", settings.model.name),
    )
    if settings.kl.estimator in UNBIASED:
        requested += (("kl.estimator", settings.kl.estimator),)
    requested += tuple(
        (f"precision.{name}", value) for name, value in settings.precision if value is not None
    )
    return _needs(settings.data, requested, version)


@lru_cache(maxsize=1024)
def _needs(
    data: Data, requested: tuple[tuple[str, object], ...], version: str
) -> tuple[Mapping[str, object], str]:
    """Return the data and the text of `needs`. Cached: cells of a grid share their data."""
    prompts = {
        "file": PROMPTS,
        "columns": COLUMNS,
        "name": data.name,
        "path": data.path,
        "split": data.split,
        "num_prompts": data.num_prompts,
        "instruction": data.instruction,
        "reward": data.reward,
    }
    return needs_file(f"openrlhf=={version}", prompts, requested)


@cache
def reward_file() -> str:
    """Return the text of the reward function that the samplers load."""
    return (Path(__file__).parent / "rewards" / "reward.py").read_text(encoding="utf-8")
