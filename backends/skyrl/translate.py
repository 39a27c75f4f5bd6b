"""Translate a cell to a launch of SkyRL, or refuse it.

The manifest refuses values of single fields. `gpu_layout` and `check` refuse combinations
that SkyRL cannot train as asked: GPUs, batches and data.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

from backends.skyrl.checkpoints import exports_of, state_of
from backends.skyrl.manifest import (
    ADAPTER,
    ENGINE,
    EVAL_SAMPLING,
    FIXED,
    MANIFEST,
    PLACEMENT,
    TO_ENGINE,
    counts_steps,
    is_read,
)
from backends.skyrl.metrics import tensorboard_of
from backends.skyrl.overrides import write
from backends.skyrl.system import MICRO
from orchestrator.library import loggers
from orchestrator.library.manifest import refuse_if, refuse_rest, rollouts_each, validation
from orchestrator.library.memory import longest_sequence, micro_batch
from orchestrator.library.needs import NEEDS, needs, shared_files, text_of
from orchestrator.records import AttemptPaths, Cell, LaunchPlan, LedgerEntry
from orchestrator.settings import Cadence, Resources, Settings

ENTRY, REWARD = "orch_skyrl.py", "reward.py"
LAUNCH = Path(__file__).parent / "launch"
PROMPTS_FORMAT = "chat"

MOST_TOKENS = 8192
"""Most tokens of a micro batch, whose size changes memory and no results. Its logits take the most
memory of a GPU."""


class GpuLayout(NamedTuple):
    """The GPUs that train, which the reference policy shares, and the engines."""

    num_nodes: int
    gpus_per_node: int
    num_engines: int
    colocated: bool
    gpus_of_engine: int = 1

    @property
    def ranks(self) -> int:
        """Return the number of GPUs that train."""
        return self.num_nodes * self.gpus_per_node


def translate(cell: Cell, paths: AttemptPaths) -> LaunchPlan:
    """Return the launch of a cell. Raise UnsupportedSetting for a cell that SkyRL cannot train."""
    loggers.refuse(
        cell,
        ("tensorboard",),
        "SkyRL has one logger at a time, and orch reads its TensorBoard files. Leave the others "
        "out: MLflow has the curves.",
    )
    settings = cell.settings
    version = MANIFEST.version_of(settings)
    carried = MANIFEST.carry(settings)
    check(cell, version)
    layout = gpu_layout(cell)
    sequences = rollouts_each(cell, layout.ranks)
    asked = ("backend.version", "model.name", "precision.training", "precision.checkpoint")
    needed = needs(settings, version, *asked)
    overrides = {
        **_paths(paths, settings),
        **dict(_machines(layout)),
        **_engine_probabilities(settings),
        **_micro_batches(cell, sequences),
        **dict(_cadence(cell.cadence, settings)),
        **MANIFEST.assignments(settings, carried),
    }
    overrides, own = MANIFEST.finished(settings, cell.system, overrides)
    updates = settings.batch.num_minibatches
    return LaunchPlan(
        cell_id=cell.id,
        backend="skyrl",
        version=version,
        argv=(
            "python",
            str(paths.plan_dir / ENTRY),
            *(write(key, value) for key, value in FIXED.items() if key not in overrides),
            *(write(key, value) for key, value in overrides.items()),
        ),
        files={
            ENTRY: text_of(LAUNCH, ENTRY),
            REWARD: text_of(LAUNCH, REWARD),
            **shared_files(cell, PROMPTS_FORMAT, needed),
        },
        env={"TENSORBOARD_DIR": str(tensorboard_of(paths.attempt_dir, updates))},
        ledger=MANIFEST.ledger(settings, {**overrides, NEEDS: needed}, carried)
        + own
        + _of_cadence(cell, version, overrides),
        bring_up="ray",
        ray_cpus=_claimed_cpus(cell.resources, version),
    )


def _claimed_cpus(resources: Resources, version: str) -> int | None:
    """Return the CPUs that SkyRL claims of Ray, or None for a release whose claims are unknown.

    SkyRL 0.4.0: one for each GPU's bundle (BasePPOExp.get_colocate_pg; apart, its trainer and its
    servers), and a part of one on each node, by the task that removes old checkpoints
    (run_on_each_node). ENTRY trains in a task, which claims one.
    """
    if not is_read(version):
        return None
    return resources.num_nodes * (resources.gpus_per_node + 1) + 1


def _paths(paths: AttemptPaths, settings: Settings) -> dict[str, object]:
    data, updates = paths.plan_dir / "data", settings.batch.num_minibatches
    # SkyRL's own place for adapters is one of /tmp, which two cells of a node would share.
    synced = {f"{ADAPTER}.lora_sync_path": str(paths.checkpoints_dir / "adapter")}
    return {
        **(synced if settings.lora is not None else {}),
        "data.train_data": [str(data / "train.parquet")],
        "data.val_data": [str(data / "validation.parquet")],
        "trainer.ckpt_path": str(state_of(paths.checkpoints_dir)),
        "trainer.export_path": str(exports_of(paths.checkpoints_dir, updates)),
        "trainer.log_path": str(paths.attempt_dir / "infrastructure"),
        f"{EVAL_SAMPLING}.temperature": settings.rollout.temperature,
        f"{EVAL_SAMPLING}.top_p": settings.rollout.top_p,
        f"{EVAL_SAMPLING}.max_generate_length": settings.rollout.max_response_tokens,
    }


def _micro_batches(cell: Cell, sequences: int) -> dict[str, object]:
    declared = MANIFEST.micro_batch(cell.settings, cell.system, MICRO[0])
    why = f"A GPU has {sequences} sequences of a minibatch, and SkyRL takes equal parts"
    refuse_rest(
        cell,
        "system.micro_batch",
        sequences,
        declared,
        why,
    )
    most = micro_batch(sequences, longest_sequence(cell.settings), MOST_TOKENS)
    return dict.fromkeys(MICRO, declared or most)


def _machines(layout: GpuLayout) -> Iterator[tuple[str, object]]:
    yield f"{PLACEMENT}.colocate_all", layout.colocated
    yield f"{PLACEMENT}.colocate_policy_ref", True
    for model in ("policy", "ref"):
        yield f"{PLACEMENT}.{model}_num_nodes", layout.num_nodes
        yield f"{PLACEMENT}.{model}_num_gpus_per_node", layout.gpus_per_node
    yield f"{ENGINE}.num_engines", layout.num_engines
    yield f"{ENGINE}.tensor_parallel_size", layout.gpus_of_engine


def _engine_probabilities(settings: Settings) -> dict[str, object]:
    """Return the key with which vLLM reports probabilities at the rollout's temperature.

    An asynchronous launch, `loss.correction` and the losses TO_ENGINE have ratios to the engine.
    vLLM's default is the model's raw probability, the trainer's is at the temperature: at 0.6, an
    unchanged policy's token of 0.2 had ratio 0.66.
    """
    loss = settings.loss
    to_engine = (
        settings.max_staleness_steps or loss.correction is not None or loss.policy in TO_ENGINE
    )
    if not to_engine or settings.rollout.temperature == 1:
        return {}
    return {f"{ENGINE}.engine_init_kwargs.logprobs_mode": "processed_logprobs"}


def _cadence(cadence: Cadence, settings: Settings) -> Iterator[tuple[str, object]]:
    """Yield the keys of the cadence, in rollout batches, rounded up.

    SkyRL also evaluates and saves after the last batch.
    """
    updates = settings.batch.num_minibatches
    steps = settings.num_train_steps
    save = -(-(cadence.checkpoint_every_steps or steps) // updates)
    yield "trainer.ckpt_interval", save
    yield "trainer.hf_save_interval", save
    yield "trainer.eval_interval", -(-(cadence.evaluate_every_steps or steps) // updates)


def _of_cadence(
    cell: Cell, version: str, overrides: Mapping[str, object]
) -> tuple[LedgerEntry, ...]:
    """Return the ledger entries of the validation, and of checkpoints that no cadence asked for.

    A launch of a release that counts no steps uses its prompts once.
    """
    settings, key = cell.settings, "trainer.eval_interval"
    updates = settings.batch.num_minibatches
    every = cell.cadence.evaluate_every_steps or settings.num_train_steps
    validated = validation(cell, key, overrides[key], -(-every // updates) * updates)
    batch, known = settings.batch, settings.data.num_prompts
    if known is None or not counts_steps(version):
        return (validated,)
    steps = known // batch.num_prompts * batch.num_minibatches
    if steps >= settings.num_train_steps:
        return (validated,)
    key = "trainer.hf_save_interval"
    return (
        validated,
        LedgerEntry(
            field="cadence.checkpoint_every_steps",
            status="approximated",
            key=key,
            value=str(overrides[key]),
            note=f"SkyRL also saves and exports at the end of each pass over the prompts, every "
            f"{steps} train steps: leave disk for {settings.num_train_steps // steps} exports more",
        ),
    )


def gpu_layout(cell: Cell) -> GpuLayout:
    """Return the split of the GPUs: all train and sample in turn, or, asynchronously, half train.

    Raise UnsupportedSetting for resources that cannot be split so.
    """
    refuse, stale = partial(refuse_if, cell), bool(cell.settings.max_staleness_steps)
    nodes, gpus = cell.resources.num_nodes, cell.resources.gpus_per_node
    parallel = cell.system.tensor_parallel or 1
    refuse(
        gpus < 1,
        "resources.gpus_per_node",
        "1 or more",
        "Set resources.gpus_per_node to what a node of the cluster has.",
    )
    train_nodes, train_gpus = nodes, gpus
    if stale:
        train_nodes, train_gpus = (nodes // 2, gpus) if nodes % 2 == 0 else (nodes, gpus // 2)
    why = f"Engines of {parallel} GPUs do not fill the {train_gpus} GPUs that a node has for them"
    refuse_rest(
        cell,
        "system.tensor_parallel",
        train_gpus,
        parallel,
        why,
    )
    refuse(
        stale and nodes % 2 and gpus % 2,
        "resources.gpus_per_node",
        "an even number",
        "Asynchronous training needs as many GPUs to sample as to train: make the number of nodes "
        "or of GPUs a node even.",
    )
    engines = train_nodes * train_gpus // parallel
    return GpuLayout(train_nodes, train_gpus, engines, not stale, parallel)


def check(cell: Cell, version: str) -> None:
    """Raise UnsupportedSetting for a rollout batch that the data or the trainer does not allow."""
    refuse, settings = partial(refuse_if, cell), cell.settings
    known, batch = settings.data.num_prompts, settings.batch.num_prompts
    refuse(
        known is not None and known < batch and counts_steps(version),
        "batch.num_prompts",
        f"1 to {known}",
        f"SkyRL drops a batch that its data cannot fill: of {known} prompts it would make none "
        f"and end without a train step. Set batch.num_prompts={known} or less.",
    )
    if (correction := settings.loss.correction) is not None:
        refuse(
            settings.max_staleness_steps,
            "loss.correction",
            "none, where max_staleness_steps is above 0",
            "orch's asynchronous launches of SkyRL have ratios to the policy that sampled, which "
            "leave nothing to correct: leave it out, or set backend=openrlhf, whose ratios are to "
            "the trainer's own policy.",
            correction.kind,
        )
        refuse(
            settings.loss.policy in TO_ENGINE,
            "loss.correction",
            f"none, where loss.policy is {settings.loss.policy}",
            "The ratio of this loss is to the engine already, and SkyRL would count it twice: "
            "leave it out, or set loss.policy=cispo, whose ratio is to the trainer's own policy.",
            correction.kind,
        )
    refuse(
        settings.max_staleness_steps and settings.batch.num_minibatches > 1,
        "batch.num_minibatches",
        1,
        "SkyRL's asynchronous trainer makes one update a rollout batch. Set "
        "batch.num_minibatches=1, or max_staleness_steps=0.",
    )
