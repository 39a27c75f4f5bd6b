"""Read a launch of verl, written by orch or by anybody, as settings.

verl accepts some launches although it ignores one of their settings, or fails later. Their faults
come from `accepted_faults`. verl's own validate_config finds only one: an unknown loss_agg_mode.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from backends.verl.manifest import (
    ACTOR,
    AGGREGATION,
    AHEAD,
    ASKED,
    BATCH,
    CONSTANT_TOKENS,
    CONTROLLER,
    CORRECTION,
    DATA,
    ENGINE,
    EPOCHS,
    LIMIT,
    LOSS_BETA,
    LOSS_TYPE,
    MANIFEST,
    MINIBATCH,
    MODE,
    MODEL,
    NEWEST,
    OPTIMIZER,
    PARTS,
    PENALTY,
    PROJECT,
    REWARD_BETA,
    ROLLOUT,
    STEPS,
    STRATEGY,
    TABLES,
    USE_LOSS,
    USE_REWARD,
    VERSIONS,
    WORKER_ENV,
    has_v1,
    unweighted,
)
from backends.verl.overrides import read
from backends.verl.translate import MAIN
from orchestrator.errors import Fault, SpecError, did_you_mean
from orchestrator.library.manifest import Values
from orchestrator.library.needs import name_of, passed_keys, settings_of, with_extra
from orchestrator.settings import Settings

SOURCE = "launch of verl"


def parse(argv: Sequence[str], files: Mapping[str, str]) -> Settings:
    """Return the settings of a launch: its overrides over the release's defaults.

    Overrides come after `-m verl.trainer.main_ppo`. The file `data.json` holds the content of the
    training file. Without it, data.path is the training file itself, with orch's default reward
    rule. A launch without a seed has seed 0. Raise SpecError with every fault.
    """
    given, faults = _given(argv)
    extra = passed_keys(files)
    for key in extra:
        given.pop(key.lstrip("+"), None)
    data, requested = _object(DATA, files, faults), _object(ASKED, files, faults)
    version = _version(given, faults) or NEWEST
    values = {**TABLES[version].defaults, **given}
    faults += accepted_faults(LaunchValues(given, values, version, data.get("num_prompts")))
    if faults:
        raise SpecError(SOURCE, faults)
    plain = MANIFEST.read(
        given | {name: carried for name, carried in ((DATA, data), (ASKED, requested)) if carried},
        version,
    )
    return settings_of(with_extra(_named(plain, values), extra), SOURCE)


def _given(argv: Sequence[str]) -> tuple[dict[str, object], list[Fault]]:
    """Return the overrides of a command line, and the faults. The last override of a key counts."""
    if MAIN not in argv:
        return {}, [Fault(f"{MAIN} is not what this launch runs; it is all that is read here")]
    given: dict[str, object] = {}
    faults = []
    for text in argv[list(argv).index(MAIN) + 1 :]:
        try:
            key, value = read(text)
            given[key] = value
        except ValueError as error:
            faults.append(Fault(str(error)))
    return given, faults


def _object(name: str, files: Mapping[str, str], faults: list[Fault]) -> dict[str, object]:
    """Return the content of a JSON file of the launch, or {} for a launch without it."""
    if name not in files:
        return {}
    try:
        return dict(json.loads(files[name]))
    except (ValueError, TypeError) as error:
        faults.append(Fault(f"{name} is not a JSON object: {error}"))
        return {}


def _version(given: Values, faults: list[Fault]) -> str | None:
    """Return the release in trainer.project_name, where translate writes it."""
    name, _, version = str(given.get(PROJECT, "")).partition("@")
    if name != "verl" or not version:
        return None
    if version not in VERSIONS:
        faults.append(
            Fault(
                f"verl {version} is not driven by orch, which knows {', '.join(VERSIONS)}",
                f"$.{PROJECT}",
            )
        )
        return None
    return version


def _named(plain: dict[str, object], values: Values) -> dict[str, object]:
    """Return the fields with names for the model, and for prompts without data.json.

    A name is the last part of a path.
    """
    model, data = plain["model"], plain["data"]
    model = {"name": name_of(str(values[f"{MODEL}.path"]))} | _section(model)
    data = {"name": name_of(str(values["data.train_files"]))} | _section(data)
    return plain | {"model": model, "data": data}


def _section(value: object) -> dict[str, object]:
    return dict(value) if isinstance(value, dict) else {}


KL_KEYS = (
    USE_REWARD,
    PENALTY,
    CONTROLLER,
    REWARD_BETA,
    "algorithm.kl_ctrl.horizon",
    "algorithm.kl_ctrl.target_kl",
    USE_LOSS,
    LOSS_TYPE,
    LOSS_BETA,
    f"{ACTOR}.policy_loss.kl_cov_ratio",
    f"{ACTOR}.policy_loss.ppo_kl_coef",
)
_LIKE_KL = re.compile(rf"(?:algorithm|{re.escape(ACTOR)})\.(?:\w+\.)*\w*kl_?\w*")
LOGGER = "trainer.logger"
OUTDATED_REWARD_KEYS = ("custom_reward_function.", "reward_model.")
"""Prefixes of reward keys before 0.8. 0.8.0 moves them to `reward.*`; 0.9.1 ignores them."""
EXTERNAL = f"{WORKER_ENV}.VERL_USE_EXTERNAL_MODULES"
KeyFaults = Iterator[tuple[str, str]]
"""Pairs of a key and its fault in words."""


class LaunchValues(NamedTuple):
    """The given values of a launch, all its values with the release's defaults, and its data
    size.
    """

    given: Mapping[str, object]
    values: Mapping[str, object]
    version: str
    num_prompts: object = None


def accepted_faults(launch: LaunchValues) -> Iterator[Fault]:
    """Yield every fault of a launch."""
    taught = EXTERNAL in launch.given
    yield from MANIFEST.unreadable(launch.given, launch.version, taught=taught)
    for rule in _RULES:
        for key, message in rule(launch):
            yield Fault(f"{key}={launch.values.get(key)}: {message}", f"$.{key}")


def _loggers(launch: LaunchValues) -> KeyFaults:
    chosen, known = launch.values[LOGGER], TABLES[launch.version].values[LOGGER]
    for name in chosen if isinstance(chosen, list) else [chosen]:
        if name not in known:
            yield LOGGER, f"{name} is none of {', '.join(sorted(map(str, known)))}"


def _reward(launch: LaunchValues) -> KeyFaults:
    for key in launch.given:
        if key.startswith(OUTDATED_REWARD_KEYS) and has_v1(launch.version):
            yield key, f"is ignored by verl {launch.version}: write reward.{key}"


def _named_kl(launch: LaunchValues) -> KeyFaults:
    """Yield keys that look like keys of a KL and are none.

    Hydra's `+` adds them; verl never reads them.
    """
    for key in launch.given:
        if _LIKE_KL.match(key) and key not in KL_KEYS:
            hint = did_you_mean(key, KL_KEYS)
            yield key, f"verl {launch.version} has no such key and would read none{hint}"


def _batches(launch: LaunchValues) -> KeyFaults:
    batch, minibatch = _batch(launch)
    if not minibatch or not batch or batch % minibatch:
        message = f"must be a multiple of {MINIBATCH}={minibatch}, both in prompts"
        yield BATCH, message


def _batch(launch: LaunchValues) -> tuple[int, int]:
    """Return the prompts of a rollout batch and of a minibatch; 0 for what is not a number."""
    batch, minibatch = (launch.values[key] for key in (BATCH, MINIBATCH))
    return (
        batch if isinstance(batch, int) else 0,
        minibatch if isinstance(minibatch, int) else 0,
    )


def _steps(launch: LaunchValues) -> KeyFaults:
    steps, epochs = (launch.values[key] for key in (STEPS, EPOCHS))
    if not isinstance(steps, int):
        yield STEPS, "set it: it would follow from the data set's size"
    elif not isinstance(epochs, int):
        yield EPOCHS, "must be a number"
    elif isinstance(launch.num_prompts, int) and (batch := _batch(launch)[0]):
        reached = launch.num_prompts // batch * epochs
        if reached < steps:
            message = f"training ends after {reached} of {steps} steps: raise it"
            yield EPOCHS, message


def _constant(launch: LaunchValues) -> KeyFaults:
    constant = launch.values[AGGREGATION] == "seq-mean-token-sum-norm"
    if constant and not isinstance(launch.values[CONSTANT_TOKENS], int):
        message = "set a number of tokens: verl divides by the padded width, which varies"
        yield CONSTANT_TOKENS, message


def _clips(launch: LaunchValues) -> KeyFaults:
    given = launch.given
    bounds = {f"{ACTOR}.clip_ratio_low", f"{ACTOR}.clip_ratio_high"}
    if f"{ACTOR}.clip_ratio" in given and not bounds <= given.keys():
        yield f"{ACTOR}.clip_ratio", "is ignored: set clip_ratio_low and clip_ratio_high"
    if f"{ACTOR}.grad_clip" in given and f"{OPTIMIZER}.clip_grad" not in given:
        yield f"{ACTOR}.grad_clip", f"verl does not read it: set {OPTIMIZER}.clip_grad"


def _both_places(launch: LaunchValues) -> KeyFaults:
    values = launch.values
    if not (values[USE_REWARD] and values[USE_LOSS]):
        return
    reward, loss = values[PENALTY], values[LOSS_TYPE]
    in_reward = MANIFEST.meanings(PENALTY, launch.version).get(reward)
    in_loss = MANIFEST.meanings(LOSS_TYPE, launch.version).get(loss)
    if in_reward != unweighted(str(in_loss)):
        yield LOSS_TYPE, f"differs from algorithm.kl_penalty={reward}: a cell has one"
    beta = values[REWARD_BETA]
    if beta != values[LOSS_BETA]:
        yield (
            LOSS_BETA,
            f"differs from algorithm.kl_ctrl.kl_coef={beta}: a cell has one",
        )


def _correction(launch: LaunchValues) -> KeyFaults:
    values = launch.values
    bypass = values[f"{CORRECTION}.bypass_mode"]
    for key in (f"{CORRECTION}.rollout_is", f"{CORRECTION}.rollout_rs"):
        if values[key] is not None and bypass:
            yield key, "is ignored with bypass_mode=True and policy_loss.loss_mode=vanilla"
        elif values[key] is not None and not has_v1(launch.version):
            yield key, "no cell has this correction: leave it out, or take verl 0.9.1"
    if values.get(MODE) == "separate_async" and not bypass:
        message = "set it, or ratios are to the trainer's policy, not to the one that sampled"
        yield f"{CORRECTION}.bypass_mode", message


def _separate(launch: LaunchValues) -> KeyFaults:
    values = launch.values
    if values.get(MODE) != "separate_async":
        return
    batch, minibatch = _batch(launch)
    if values[PARTS] != batch // max(1, minibatch):
        message = f"times {MINIBATCH}={minibatch} must be {BATCH}={batch}"
        yield PARTS, message
    if not values[f"{ROLLOUT}.nnodes"]:
        yield f"{ROLLOUT}.nnodes", "separate_async samples on nodes of its own: set 1 or more"
    if values[ENGINE] == "naive":
        yield ENGINE, "separate_async needs nccl"
    if not values["actor_rollout_ref.hybrid_engine"]:
        yield "actor_rollout_ref.hybrid_engine", "stops verl 0.9.1 at start: leave it True"
    ahead = values[AHEAD]
    if not isinstance(ahead, int) or values[LIMIT] != ahead + 1:
        message = f"must be one more than {AHEAD}={ahead}"
        yield LIMIT, message
    if values[STRATEGY] == "drop":
        message = "drops the slowest rollouts, which are the longest ones: set wait"
        yield STRATEGY, message


_RULES: tuple[Callable[[LaunchValues], KeyFaults], ...] = (
    _loggers,
    _reward,
    _named_kl,
    _batches,
    _steps,
    _constant,
    _clips,
    _both_places,
    _correction,
    _separate,
)
