"""Refuse combinations of fields that OpenRLHF cannot train: GPUs, batches, prompts and paths.

Its parser accepts most of them. README.md describes what would happen.
"""

from collections.abc import Iterator
from typing import NamedTuple

from backends.openrlhf.flags import FLAT, NEWEST
from backends.openrlhf.manifest import PLAIN_ESTIMATORS, STRAIGHT_THROUGH, WEIGHTED, num_copies
from orchestrator.errors import UnsupportedSetting
from orchestrator.records import AttemptPaths
from orchestrator.settings import Resources, Settings

LARGEST_MICRO_BATCH = 8
"""Most sequences of a GPU's micro-batch."""
MOST_COPIES = 256
"""The maximum number of copies of the prompt file. One argument names it once per copy."""


class RankLayout(NamedTuple):
    """The GPUs that train, the engines that sample, and the parts of a batch for them."""

    num_nodes: int
    """Nodes that train; the reference policy shares their GPUs."""
    gpus_per_node: int
    num_engines: int
    """vLLM engines of one GPU each."""
    micro_train: int
    micro_rollout: int


def rank_layout(settings: Settings, resources: Resources, version: str) -> RankLayout:
    """Return the split of the GPUs. Synchronous: all models share every GPU. Else half train.

    Raise UnsupportedSetting if the GPUs cannot be halved, or a batch does not divide over them: the
    library would leave some ranks with fewer samples and hang, or fail in DeepSpeed.
    """
    nodes, gpus = resources.num_nodes, resources.gpus_per_node
    if settings.max_staleness_steps > 0:
        nodes, gpus = _half(nodes, gpus)
    if gpus == 0:
        raise _refused(
            "resources.gpus_per_node",
            resources.gpus_per_node,
            "1 or more",
            "Every model of a run lives on GPUs; set resources.gpus_per_node.",
        )
    workers = nodes * gpus
    per_step = settings.batch.num_prompts * settings.rollout.group_size
    per_minibatch, remainder = divmod(per_step, settings.batch.num_minibatches)
    if remainder or per_minibatch % workers:
        raise _refused(
            "batch.num_prompts",
            settings.batch.num_prompts,
            f"num_prompts x group_size / num_minibatches a multiple of {workers}",
            f"A minibatch has {per_step / settings.batch.num_minibatches:g} rollouts and {workers} "
            "GPUs train: change batch.num_prompts, rollout.group_size or the number of GPUs.",
        )
    share = per_minibatch // workers
    micro = next(n for n in range(min(LARGEST_MICRO_BATCH, share), 0, -1) if share % n == 0)
    by_sequence = version == FLAT and settings.loss.aggregation == "sequence_mean"
    return RankLayout(nodes, gpus, workers, 1 if by_sequence else micro, micro)


def _half(nodes: int, gpus: int) -> tuple[int, int]:
    """Return half of the nodes, or half of each node's GPUs."""
    if nodes % 2 == 0:
        return nodes // 2, gpus
    if gpus % 2:
        raise _refused(
            "resources.gpus_per_node",
            gpus,
            "an even number of nodes or of GPUs",
            "Asynchronous training keeps half of the GPUs for sampling: give an even number, or "
            "set max_staleness_steps=0.",
        )
    return nodes, gpus // 2


def check(settings: Settings, version: str, layout: RankLayout, place: AttemptPaths) -> None:
    """Raise UnsupportedSetting for the first rule that a cell breaks."""
    for refusal in _refusals(settings, version, layout, place):
        raise refusal


def _refusals(
    settings: Settings, version: str, layout: RankLayout, place: AttemptPaths
) -> Iterator[UnsupportedSetting]:
    yield from _weighted_gradient(settings)
    yield from _prompts(settings)
    yield from _words(settings, place)
    if settings.max_staleness_steps % settings.batch.num_minibatches:
        yield _refused(
            "max_staleness_steps",
            settings.max_staleness_steps,
            f"multiples of batch.num_minibatches ({settings.batch.num_minibatches})",
            "The queue between sampler and trainer holds whole rollout batches: take a multiple of "
            "batch.num_minibatches.",
        )
    if version == FLAT and settings.loss.aggregation == "token_mean" and layout.micro_train == 1:
        yield _refused(
            "loss.aggregation",
            "token_mean",
            "sequence_mean",
            f"{FLAT} averages each micro-batch by itself, and only one sequence fits this batch "
            f"and these GPUs: that is sequence_mean. backend.version={NEWEST} divides by the "
            "tokens of the minibatch.",
        )


def _weighted_gradient(settings: Settings) -> Iterator[UnsupportedSetting]:
    """Yield a refusal if the gradient of --algo.kl.unbiased_gradient is not the estimator's.

    It is k2's, weighted by the ratio to the policy at the start of the rollout batch. That ratio is
    1 at the first of the minibatches only, and is not the one to a stale rollout policy.
    """
    estimator, minibatches = settings.kl.estimator, settings.batch.num_minibatches
    stale = settings.max_staleness_steps > 0
    if settings.kl.placement != "loss":
        return
    if estimator in STRAIGHT_THROUGH and minibatches > 1:
        weighted = "k2" if stale else "sg_rho_k2"
        why = (
            "With several minibatches its straight-through gradient is weighted by the importance "
            f"ratio: ask for {weighted}, or set batch.num_minibatches=1."
        )
    elif estimator in WEIGHTED and stale:
        why = (
            "Its ratio is to the policy at the start of the rollout batch, not to the stale "
            "rollout policy: set max_staleness_steps=0, or take kl.estimator=k2."
        )
    else:
        return
    offered = (
        *PLAIN_ESTIMATORS,
        *(STRAIGHT_THROUGH if minibatches == 1 else ()),
        *(() if stale else WEIGHTED),
    )
    yield UnsupportedSetting("openrlhf", "kl.estimator", estimator, offered, why)


def _prompts(settings: Settings) -> Iterator[UnsupportedSetting]:
    known = settings.data.num_prompts
    if known is None:
        yield _refused(
            "data.num_prompts",
            None,
            "the number of prompts of the split",
            "It has no number of steps and stops when its prompts run out: with data.num_prompts "
            "orch repeats and cuts them to exactly num_train_steps.",
        )
    elif (copies := num_copies(settings)) > MOST_COPIES:
        yield _refused(
            "data.num_prompts",
            known,
            f"a split passed at most {MOST_COPIES} times",
            f"num_train_steps needs {copies} passes; take more prompts or fewer train steps.",
        )


def _words(settings: Settings, place: AttemptPaths) -> Iterator[UnsupportedSetting]:
    """Yield a refusal for each path that OpenRLHF cuts: at a comma, or at @ in a data path."""
    for sign in (",", "@"):
        if sign in str(place.plan_dir):
            yield _refused(
                "place.plan_dir",
                place.plan_dir,
                f"a path without '{sign}'",
                "It splits the paths of prompts and rewards there: move the runs folder.",
            )
    if settings.model.path.startswith("-"):
        yield _refused(
            "model.path",
            settings.model.path,
            "a path that starts otherwise",
            "Its parser would take this for a flag: write ./ before it.",
        )


def _refused(field: str, value: object, offered: str, advice: str) -> UnsupportedSetting:
    return UnsupportedSetting("openrlhf", field, value, (offered,), advice)
