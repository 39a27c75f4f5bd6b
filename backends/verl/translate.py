"""Translate a cell to a launch of verl's PPO trainer, or refuse it. Pure.

The manifest refuses values of single fields. `check` refuses combinations of fields and GPUs, in
the order of a cell's settings. Only the first broken rule is reported.
"""

from collections.abc import Container, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

from backends.verl import extension
from backends.verl.manifest import (
    ACTOR,
    MANIFEST,
    REJECTED,
    REWARD,
    ROLLOUT,
    TABLES,
    VALIDATION,
    WORKER_ENV,
    is_read,
)
from backends.verl.overrides import write
from orchestrator.library import loggers
from orchestrator.library.manifest import refuse_if, refuse_rest, rollouts_each, validation
from orchestrator.library.memory import longest_sequence
from orchestrator.library.needs import NEEDS, needs, shared_files, text_of
from orchestrator.records import AttemptPaths, Cell, LaunchPlan, LedgerEntry
from orchestrator.settings import Resources, Settings

MAIN, HERE = "verl.trainer.main_ppo", Path(__file__).parent
TEST = "trainer.test_freq"
SCORER = "reward.py"
PROMPTS_FORMAT = "chat"
MODULE = "orch_verl"
EXTENSION = f"extension/{MODULE}.py"
CPUS_PER_GPU, QUEUE_ACTORS = 3, 9
SEQUENCES, MOST_SEQUENCES = f"{ROLLOUT}.max_num_seqs", 1024
"""The key of an engine's sequences, and the most that orch asks for: verl's default up to 0.8.0."""
TOKENS_PER_GPU = 16384
"""Most tokens of a micro-batch, unless a single sequence may be longer."""


class GpuSplit(NamedTuple):
    """The nodes, and GPUs per node, of the trainer and of the standalone rollout engines."""

    train_nodes: int
    train_gpus: int
    rollout_nodes: int
    rollout_gpus: int


def translate(cell: Cell, paths: AttemptPaths) -> LaunchPlan:
    """Return the launch of a cell. Raise UnsupportedSetting for what verl cannot do."""
    settings = cell.settings
    carried = MANIFEST.carry(settings)
    check(cell)
    version = MANIFEST.version_of(settings)
    env = environment(cell, paths)
    arguments = MANIFEST.assignments(settings, carried) | _surroundings(cell, paths)
    arguments |= {f"{WORKER_ENV}.{name}": value for name, value in env.items()}
    arguments, own = MANIFEST.finished(settings, cell.system, arguments)
    needed = needs(settings, version, "backend.version", "precision.checkpoint")
    files = {SCORER: text_of(HERE, "reward.py"), **shared_files(cell, PROMPTS_FORMAT, needed)}
    if needs_extension(settings):
        files[EXTENSION] = text_of(HERE, "extension.py")
    return LaunchPlan(
        cell_id=cell.id,
        backend="verl",
        version=version,
        argv=("python", "-m", MAIN, *_overrides(arguments, version, settings.backend.passed)),
        files=files,
        env=env,
        bring_up="ray",
        ray_cpus=_claimed_cpus(cell, version),
        # TransferQueue's controller has a fixed name and namespace (its interface.py).
        alone_on_ray=is_read(version),
        ledger=(
            *MANIFEST.ledger(settings, arguments | {NEEDS: needed}, carried),
            *own,
            _validation(cell, arguments[TEST]),
        ),
    )


def _claimed_cpus(cell: Cell, version: str) -> int | None:
    """Return the CPUs that verl's actors claim, or None for a release whose claims are unknown.

    verl 0.9.1: each GPU's bundle has three (ResourcePoolManager.max_colocate_count). TransferQueue
    has a controller and eight storage units (transfer_queue.yaml), one each. One more is needed to
    place the actors that hold none.
    """
    if not is_read(version):
        return None
    gpus = cell.resources.num_nodes * cell.resources.gpus_per_node
    return CPUS_PER_GPU * gpus + QUEUE_ACTORS + 1


def _overrides(
    arguments: Mapping[str, object], version: str, passed: Container[str]
) -> Iterator[str]:
    """Yield Hydra's overrides, with a `+` before a key that the configuration lacks.

    passed: the keys of `backend.extra`, which a user writes with their own mark.
    """
    keys = TABLES[version].keys
    for key, value in arguments.items():
        known = key in keys or key in passed or key.startswith("hydra.")
        yield write(key if known else f"+{key}", value)


def needs_extension(settings: Settings) -> bool:
    """Return True if only extension.py lets verl train the cell."""
    added = (*extension.WEIGHTED, "k1_to_go")
    return settings.kl.estimator in added or settings.advantage.estimator == "reinforce"


def environment(cell: Cell, paths: AttemptPaths) -> dict[str, str]:
    """Return the environment variables of the driver and of all Ray workers."""
    env = {"VERL_FILE_LOGGER_PATH": str(paths.attempt_dir / metrics_file(cell.settings))}
    if needs_extension(cell.settings):
        env["VERL_USE_EXTERNAL_MODULES"] = MODULE
        env["PYTHONPATH"] = str((paths.plan_dir / EXTENSION).parent)
    return env | loggers.variables(cell, paths)


def metrics_file(settings: Settings) -> str:
    """Return the name of verl's log.

    The name says how to read its numbers, because the log does not.

    x4: a step is four train steps. c4096: token sums are divided by 4096. k1: k1 is in the reward.
    """
    tags = [f"x{settings.batch.num_minibatches}"]
    if settings.loss.constant_tokens is not None:
        tags.append(f"c{settings.loss.constant_tokens}")
    if settings.kl.estimator in ("k1", "k1+", "k1_to_go") and settings.kl.placement != "loss":
        tags.append("k1")
    return f"verl.{'.'.join(tags)}.jsonl"


def _surroundings(cell: Cell, paths: AttemptPaths) -> dict[str, object]:
    """Return the arguments that do not change the result: paths, GPUs, memory, cadence, names."""
    settings, cadence = cell.settings, cell.cadence
    plan, attempt, checkpoints = map(str, paths)
    updates = settings.batch.num_minibatches
    total = settings.num_train_steps // updates
    longest = longest_sequence(settings)
    return {
        "data.train_files": f"{plan}/data/train.parquet",
        "data.val_files": f"{plan}/data/validation.parquet",
        f"{REWARD}.path": f"{plan}/{SCORER}",
        f"{REWARD}.name": "compute_score",
        f"{ACTOR}.ppo_max_token_len_per_gpu": max(TOKENS_PER_GPU, longest),
        "trainer.save_freq": _frequency(cadence.checkpoint_every_steps, updates, total),
        TEST: _frequency(cadence.evaluate_every_steps, updates, total),
        f"{VALIDATION}.do_sample": True,
        f"{VALIDATION}.temperature": settings.rollout.temperature,
        f"{VALIDATION}.top_p": settings.rollout.top_p,
        f"{VALIDATION}.n": 1,
        "trainer.project_name": loggers.project(paths),
        "trainer.experiment_name": cell.slug,
        "trainer.logger": ["console", "file", *cell.loggers],
        "trainer.default_local_dir": f"{checkpoints}/x{updates}",
        "hydra.run.dir": f"{attempt}/hydra",
        **_gpus(cell),
        **_sequences(cell),
    }


def _sequences(cell: Cell) -> dict[str, object]:
    """Return the key of the sequences that an engine samples at once, where the release's default
    would let rollouts wait: 256 since 0.9.0, 1024 before (trainer/config/rollout/rollout.yaml)."""
    settings, resources = cell.settings, cell.resources
    nodes, gpus = resources.num_nodes, resources.gpus_per_node
    if settings.max_staleness_steps:
        _, _, nodes, gpus = split_gpus(resources)
    engines = max(1, nodes * gpus // (cell.system.tensor_parallel or 1))
    each = -(-settings.batch.num_prompts * settings.rollout.group_size // engines)
    default = TABLES[MANIFEST.version_of(settings)].defaults[SEQUENCES]
    wait = isinstance(default, int) and each > default < MOST_SEQUENCES
    return {SEQUENCES: min(each, MOST_SEQUENCES)} if wait else {}


def _validation(cell: Cell, frequency: object) -> LedgerEntry:
    every = cell.cadence.evaluate_every_steps
    updates = cell.settings.batch.num_minibatches
    steps = _frequency(every, updates, cell.settings.num_train_steps // updates) * updates
    return validation(cell, TEST, frequency, steps)


def _frequency(steps: int | None, updates: int, total: int) -> int:
    """Return train steps as a number of rollout batches, at least 1. None means all of them."""
    return total if steps is None else max(1, round(steps / updates))


def _gpus(cell: Cell) -> dict[str, object]:
    if not cell.settings.max_staleness_steps:
        return {
            "trainer.nnodes": cell.resources.num_nodes,
            "trainer.n_gpus_per_node": cell.resources.gpus_per_node,
        }
    split = split_gpus(cell.resources)
    return {
        "trainer.nnodes": split.train_nodes,
        "trainer.n_gpus_per_node": split.train_gpus,
        f"{ROLLOUT}.nnodes": split.rollout_nodes,
        f"{ROLLOUT}.n_gpus_per_node": split.rollout_gpus,
    }


def split_gpus(resources: Resources) -> GpuSplit:
    """Return the GPUs of the trainer and of the rollout engines, for an asynchronous cell.

    Half of the nodes sample. On a single node, half of its GPUs sample.
    """
    nodes, gpus = resources.num_nodes, resources.gpus_per_node
    if nodes == 1:
        return GpuSplit(1, gpus - gpus // 2, 1, gpus // 2)
    return GpuSplit(nodes - nodes // 2, gpus, nodes // 2, gpus)


def check(cell: Cell) -> None:
    """Raise UnsupportedSetting for the first rule that a cell breaks."""
    settings, batch, stale = cell.settings, cell.settings.batch, cell.settings.max_staleness_steps
    refuse, minibatches = partial(refuse_if, cell), batch.num_minibatches
    known, warmup = settings.data.num_prompts, settings.optimizer.num_warmup_steps
    refuse(
        known is not None and known < batch.num_prompts,
        "batch.num_prompts",
        f"1 to {known}",
        "verl drops a batch that the data set cannot fill; take a smaller batch.",
    )
    refuse(
        warmup % minibatches and not stale,
        "optimizer.num_warmup_steps",
        f"multiples of {minibatches}",
        "verl moves the learning rate once a rollout batch: take a multiple of "
        "batch.num_minibatches.",
    )
    refuse(
        stale % minibatches,
        "max_staleness_steps",
        f"multiples of {minibatches}",
        "verl renews the rollout policy once a rollout batch: take a multiple of "
        "batch.num_minibatches.",
    )
    if settings.loss.correction is not None:
        _check_correction(cell, settings.loss.correction.kind)
    if (controller := settings.kl.controller) is not None:
        refuse(
            settings.kl.placement != "reward",
            "kl.controller",
            "none, where kl.placement is not reward",
            "verl's controller moves the beta of the reward and not that of the loss: set "
            "kl.placement=reward, or leave kl.controller out.",
            controller.target,
        )
        refuse(
            stale,
            "kl.controller",
            "none, where max_staleness_steps is above 0",
            "orch has read verl's controller in its synchronous trainer: leave it out, or "
            "set max_staleness_steps=0.",
            controller.target,
        )
    refuse(
        settings.lora is not None and stale,
        "lora.rank",
        "no lora, where max_staleness_steps is above 0",
        "verl's asynchronous trainer sends its engines the weights without the adapter "
        "(engine_workers.py, update_weights), so they would sample from the model before "
        "training: set max_staleness_steps=0, or leave lora out.",
    )
    _check_gpus(cell)


def _check_correction(cell: Cell, kind: str) -> None:
    """Refuse what verl corrects otherwise. It takes rejected tokens out of the mask."""
    refuse, loss = partial(refuse_if, cell), cell.settings.loss
    refuse(
        cell.settings.max_staleness_steps,
        "loss.correction",
        "none, where max_staleness_steps is above 0",
        "An asynchronous launch has ratios to the engine itself (bypass_mode), where verl "
        "computes no such weight: leave it out, or set max_staleness_steps=0.",
        kind,
    )
    refuse(
        loss.policy == "gmpo",
        "loss.correction",
        "none, where loss.policy is gmpo",
        "verl's geo_mean weights a response by the geometric mean of its tokens' weights, "
        "which is another correction: leave it out.",
        kind,
    )
    refuse(
        kind == "reject_token" and loss.aggregation == "sequence_mean",
        "loss.aggregation",
        "token_mean, constant",
        "verl would divide a response by the tokens that are kept, which is another mean: set "
        "loss.aggregation=token_mean, or loss.correction.kind=mis_token.",
    )
    refuse(
        kind == "reject_token" and loss.policy == "gspo",
        "loss.correction.kind",
        "the others, where loss.policy is gspo",
        "verl would take gspo's mean ratio over the tokens that are kept: set "
        "loss.correction.kind=mis_token.",
    )
    refuse(
        kind in REJECTED and loss.entropy_bonus,
        "loss.entropy_bonus",
        f"0, where loss.correction.kind is {kind}",
        "verl leaves rejected samples out of the entropy bonus too: leave it out, or set "
        "loss.correction.kind=mis_token.",
    )


def _check_gpus(cell: Cell) -> None:
    settings, resources = cell.settings, cell.resources
    refuse, stale = partial(refuse_if, cell), settings.max_staleness_steps
    least = 2 if stale and resources.num_nodes == 1 else 1
    why = "samples and trains on different GPUs" if least > 1 else "trains on GPUs"
    refuse(
        resources.gpus_per_node < least,
        "resources.gpus_per_node",
        f"{least} or more",
        f"verl {why}: set resources.gpus_per_node.",
    )
    trainers = resources.num_nodes * resources.gpus_per_node
    if stale:
        split = split_gpus(resources)
        trainers = split.train_nodes * split.train_gpus
    each = rollouts_each(cell, trainers)
    why = f"Each GPU has {each} rollouts of a minibatch, and verl splits them into equal parts"
    refuse_rest(
        cell,
        "system.micro_batch",
        each,
        cell.system.micro_batch,
        why,
    )
    needed = longest_sequence(settings)
    refuse(
        (cell.system.tokens_per_gpu or needed) < needed,
        "system.tokens_per_gpu",
        f"{needed} or more",
        f"One sequence may have {needed} tokens (data.max_prompt_tokens and "
        "rollout.max_response_tokens), and verl cannot split it: give at least that.",
    )
