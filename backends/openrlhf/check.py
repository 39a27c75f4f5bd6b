"""What a release cannot run, told before anything starts. Its parser accepts most of this.

What the library itself would do silently instead is in README.md.
"""

import math
from collections.abc import Iterator, Mapping, Sequence

from backends.openrlhf.flags import FLAT, NEWEST, VERSIONS
from backends.openrlhf.topology import Topology
from orchestrator.errors import UnsupportedSetting, did_you_mean
from orchestrator.records import AttemptPaths
from orchestrator.settings import BackendRef, Kl, Settings

ADVANTAGES = {"rloo": "rloo", "grpo": "group_norm", "dr_grpo": "dr_grpo"}
AGGREGATIONS = {"token_mean": "token-mean", "sequence_mean": "seq-mean-token-mean"}
SCHEDULES = {"constant": "constant_with_warmup", "linear": "linear", "cosine": "cosine"}
PLAIN = ("k1", "k2", "k3")
UNBIASED = {"k1+": "k1", "k2+": "k2", "k3+": "k3", "sg_rho_k2": "k2", "rho_k3": "k3"}
"""Estimators in the loss that share the gradient of --algo.kl.unbiased_gradient -> whose value."""
MOST_COPIES = 256
"""Of the prompt file; it is named once a copy in one argument."""

CAPABILITIES: Mapping[str, Sequence[object]] = {
    "backend.version": (None, *VERSIONS),
    "advantage.estimator": tuple(ADVANTAGES),
    "loss.aggregation": tuple(AGGREGATIONS),
    "loss.constant_tokens": (None,),
    "kl.estimator": ("none", *PLAIN, *UNBIASED),
    "kl.placement": (None, "reward", "loss"),
    "kl.reset_reference_every_steps": (None,),
}

_ADVICE = {
    "advantage.estimator": "Its `reinforce` subtracts the batch mean and whitens by default, which "
    "is REINFORCE++; the nearest with a baseline per prompt is advantage.estimator=rloo.",
    "loss.aggregation": "It divides by tokens or by sequences, never by a constant; the nearest is "
    "loss.aggregation=token_mean (drop constant_tokens) with advantage.estimator=dr_grpo.",
    "kl.placement": "--algo.kl.use_loss would silently turn the KL in the reward off; the nearest "
    "are kl.placement=reward with k1, and kl.placement=loss with k2.",
    "kl.reset_reference_every_steps": "Its reference policy stays the first policy: leave the "
    "field out.",
}


def version_of(backend: BackendRef) -> str:
    """The release a cell runs in; None is the newest. Raises UnsupportedSetting."""
    version = NEWEST if backend.version is None else backend.version
    if version not in VERSIONS:
        raise UnsupportedSetting(
            "openrlhf",
            "backend.version",
            version,
            VERSIONS,
            f"orch knows the flags of these releases only{did_you_mean(version, VERSIONS)}; they "
            f"were all renamed at 0.10.2. Set backend.version={NEWEST}.",
        )
    return version


def check(settings: Settings, version: str, top: Topology, place: AttemptPaths) -> None:
    """Raises UnsupportedSetting for the first field that this release cannot express."""
    for fault in _faults(settings, version, top, place):
        raise fault


def _faults(
    settings: Settings, version: str, top: Topology, place: AttemptPaths
) -> Iterator[UnsupportedSetting]:
    for field in (
        "advantage.estimator",
        "loss.aggregation",
        "kl.placement",
        "kl.reset_reference_every_steps",
    ):
        section, _, leaf = field.partition(".")
        value = getattr(getattr(settings, section), leaf)
        if value not in CAPABILITIES[field]:
            yield UnsupportedSetting("openrlhf", field, value, CAPABILITIES[field], _ADVICE[field])
    yield from _kl(settings, version)
    yield from _prompts(settings)
    yield from _words(settings, place)
    if settings.max_staleness_steps % settings.batch.num_minibatches:
        yield UnsupportedSetting(
            "openrlhf",
            "max_staleness_steps",
            settings.max_staleness_steps,
            (f"multiples of batch.num_minibatches ({settings.batch.num_minibatches})",),
            "The queue between sampler and trainer holds whole rollout batches: take a multiple of "
            "batch.num_minibatches.",
        )
    if version == FLAT:
        yield from _flat(settings, top)


def _kl(settings: Settings, version: str) -> Iterator[UnsupportedSetting]:
    kl, minibatches = settings.kl, settings.batch.num_minibatches
    if kl.placement is None or kl.estimator in PLAIN:
        return
    offered: tuple[str, ...] = PLAIN
    if kl.placement == "reward":
        why = _in_reward(kl)
    elif version == FLAT:
        why = f"backend.version={NEWEST} has --algo.kl.unbiased_gradient; the nearest here is k2."
    else:
        offered += tuple(e for e in UNBIASED if _fits(e, settings))
        if kl.estimator in offered:
            return
        weighted = "sg_rho_k2" if _fits("sg_rho_k2", settings) else "k2"
        if kl.estimator.endswith("+") and minibatches > 1 and kl.estimator in UNBIASED:
            why = (
                "With several minibatches its straight-through gradient is weighted by the "
                f"importance ratio: ask for {weighted}, or set batch.num_minibatches=1."
            )
        elif kl.estimator in UNBIASED:
            why = (
                "Its ratio is to the policy at the start of the rollout batch, not to the stale "
                "rollout policy: set max_staleness_steps=0, or take kl.estimator=k2."
            )
        else:
            why = f"The nearest with the gradient of the reverse KL is {weighted}."
    yield UnsupportedSetting("openrlhf", "kl.estimator", kl.estimator, offered, why)


def _fits(estimator: str, settings: Settings) -> bool:
    """Whether the weighted straight-through gradient is this estimator's, in this cell."""
    if estimator.endswith("+"):
        return settings.batch.num_minibatches == 1
    return settings.max_staleness_steps == 0


def _in_reward(kl: Kl) -> str:
    plain = kl.estimator.removesuffix("+").rpartition("rho_")[2]
    if plain not in PLAIN:
        return "The nearest is kl.estimator=k1."
    if kl.estimator.endswith("+"):
        return f"No gradient flows through the reward, so {kl.estimator} is {plain} there."
    return f"It weighs no reward by a ratio; the nearest is kl.estimator={plain}."


def _prompts(settings: Settings) -> Iterator[UnsupportedSetting]:
    known = settings.data.num_prompts
    if known is None:
        yield UnsupportedSetting(
            "openrlhf",
            "data.num_prompts",
            None,
            ("the number of prompts of the split",),
            "It has no number of steps and stops when its prompts run out: with data.num_prompts "
            "orch repeats and cuts them to exactly num_train_steps.",
        )
    elif (copies := num_copies(settings)) > MOST_COPIES:
        yield UnsupportedSetting(
            "openrlhf",
            "data.num_prompts",
            known,
            (f"a split passed at most {MOST_COPIES} times",),
            f"num_train_steps needs {copies} passes; take more prompts or fewer train steps.",
        )


def _words(settings: Settings, place: AttemptPaths) -> Iterator[UnsupportedSetting]:
    """What its command line cannot carry: it cuts data and reward paths at commas, data at @."""
    for sign in (",", "@"):
        if sign in str(place.plan_dir):
            yield UnsupportedSetting(
                "openrlhf",
                "place.plan_dir",
                place.plan_dir,
                (f"a path without '{sign}'",),
                "It splits the paths of prompts and rewards there: move the runs folder.",
            )
    if settings.model.path.startswith("-"):
        yield UnsupportedSetting(
            "openrlhf",
            "model.path",
            settings.model.path,
            ("a path that starts otherwise",),
            "Its parser would take this for a flag: write ./ before it.",
        )


def _flat(settings: Settings, top: Topology) -> Iterator[UnsupportedSetting]:
    """What 0.10.1.post2 lacks."""
    optimizer = settings.optimizer
    if optimizer.schedule != "constant":
        yield UnsupportedSetting(
            "openrlhf",
            "optimizer.schedule",
            optimizer.schedule,
            ("constant",),
            f"{FLAT} gives every schedule a min_lr that this one refuses once training starts; "
            f"backend.version={NEWEST} runs it.",
        )
    if optimizer.epsilon != 1e-8:
        yield UnsupportedSetting(
            "openrlhf",
            "optimizer.epsilon",
            optimizer.epsilon,
            (1e-8,),
            f"{FLAT} has no flag for it; backend.version={NEWEST} has --actor.adam.eps.",
        )
    if settings.loss.aggregation == "token_mean" and top.micro_train == 1:
        yield UnsupportedSetting(
            "openrlhf",
            "loss.aggregation",
            "token_mean",
            ("sequence_mean",),
            f"{FLAT} averages each micro-batch by itself, and only one sequence fits this batch "
            f"and these GPUs: that is sequence_mean. backend.version={NEWEST} divides by the "
            "tokens of the minibatch.",
        )


def num_rows(settings: Settings) -> int:
    """Prompts, with repetitions, that make exactly num_train_steps."""
    return settings.num_train_steps // settings.batch.num_minibatches * settings.batch.num_prompts


def num_copies(settings: Settings) -> int:
    """How often the prompt file is named so that it has at least num_rows."""
    return math.ceil(num_rows(settings) / (settings.data.num_prompts or 1))
