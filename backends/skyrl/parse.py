"""Read a launch of SkyRL, written by orch or by anybody, as settings.

SkyRL's configuration checks the names of keys and not the types of their values. So a value that
SkyRL accepts and then treats differently is a fault here.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from backends.skyrl.manifest import (
    ALGORITHM,
    BATCH,
    BOUND,
    ENABLED,
    HELD,
    IN_LOSS,
    IN_REWARD,
    MANIFEST,
    MINIBATCH,
    OF_RESPONSES,
    OUR_STEPS,
    PLACEMENT,
    SAMPLING,
    STEPS,
    TIS,
    VERSIONS,
    counts_steps,
    is_asynchronous,
    masks_tokens,
)
from backends.skyrl.overrides import read
from orchestrator.errors import Fault, SpecError
from orchestrator.library.manifest import ReleaseTable, Values, equal, fits
from orchestrator.library.needs import (
    NEEDS,
    faults_of,
    passed_keys,
    settings_of,
    with_extra,
)
from orchestrator.settings import Settings

_SOURCE = "SkyRL launch"
_KINDS = {
    "bool": "true or false",
    "int": "an integer",
    "float": "a number",
    "str": "text",
    "List": "a list",
}


def parse(argv: Sequence[str], files: Mapping[str, str]) -> Settings:
    """Return the settings of a launch. Raise SpecError with every fault."""
    given, extra = read(argument for argument in argv if "=" in argument), passed_keys(files)
    passed_on = extra.keys() - MANIFEST.system_keys
    given = {key: value for key, value in given.items() if key not in passed_on}
    needed = _needed(files)
    version = _version(given, needed)
    table = MANIFEST.tables[version]
    values = {**table.defaults, **given}
    faults = [
        Fault("SkyRL takes no `+`: it has the keys it has", key)
        for key in given
        if key.startswith("+")
    ]
    wrong = list(_wrong_types(given, table))
    if not wrong:
        faults += _contradictions(values, given)
        if not any(fault.path == MINIBATCH for fault in faults):
            known = needed.get("data", {}).get("num_prompts")
            faults += _silent(values, given, " ".join(argv), known)
    plain: dict[str, object] = {}
    if not wrong and not faults:
        try:
            plain = MANIFEST.read({**given, NEEDS: needed}, version)
        except SpecError as error:
            faults += error.faults
        except ValidationError as error:
            faults += faults_of(error)
    if wrong or faults:
        raise SpecError(_SOURCE, [*faults, *wrong])
    return settings_of(with_extra(plain, extra), _SOURCE)


def _needed(files: Mapping[str, str]) -> Mapping[str, Mapping[str, Any]]:
    if NEEDS not in files:
        return {}
    try:
        needed: Mapping[str, Mapping[str, Any]] = json.loads(files[NEEDS])
    except ValueError as error:
        raise SpecError(NEEDS, [Fault(f"is not JSON: {error}")]) from error
    return needed


def _version(given: Values, needed: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the release that a launch names, else the newest release with its keys."""
    version = needed.get("backend", {}).get("version")
    if version in VERSIONS:
        return str(version)
    by_epochs = OUR_STEPS in given and STEPS not in given
    return next(v for v in VERSIONS if not (by_epochs and counts_steps(v)))


def _wrong_types(given: Values, table: ReleaseTable) -> Iterator[Fault]:
    for key, value in given.items():
        kind = table.kinds.get(key)
        if kind is None or fits(kind, value):
            continue
        inner = kind.removeprefix("Optional[").partition("[")[0].removesuffix("]")
        yield Fault(f"must be {_KINDS[inner]}, got {value!r}; SkyRL would not notice", key)


def _contradictions(values: Values, given: Values) -> Iterator[Fault]:
    """Yield a fault for each combination of values that no cell has."""
    if values[IN_REWARD] and values[IN_LOSS]:
        yield Fault(
            "SkyRL refuses use_kl_in_reward with use_kl_loss, which is on by default: "
            f"add {IN_LOSS}=false",
            IN_REWARD,
        )
    if values[f"{ALGORITHM}.kl_ctrl.type"] != "fixed":
        yield Fault(
            "orch has no coefficient that adapts; set it to fixed", f"{ALGORITHM}.kl_ctrl.type"
        )
    if not given.get(STEPS) and not given.get(OUR_STEPS):
        yield Fault("epochs do not say the number of train steps: set it", STEPS)
    prompts, minibatch = _integer(values, BATCH), _integer(values, MINIBATCH)
    if minibatch < 1 or prompts % minibatch:
        yield Fault(f"{minibatch} must divide train_batch_size, {prompts}", MINIBATCH)


def _integer(values: Values, key: str) -> int:
    value = values[key]
    return value if isinstance(value, int) else 0


# Values that SkyRL accepts and then does not follow.


def _silent(values: Values, given: Values, argv: str, num_prompts: object) -> Iterator[Fault]:
    """Yield a fault for each value that SkyRL accepts and does not follow.

    `values`: the launch over SkyRL's defaults. `argv`: its words, which name the entry point.
    `num_prompts`: the number of its prompts, if known.
    """
    for key, value in HELD.items():
        if key in given and not equal(given[key], value):
            yield Fault(
                f"no cell has {given[key]!r}: it trains on something else; set it to "
                f"{'null' if value is None else str(value).lower()}",
                key,
            )
    alone = values[TIS] is None and values[OF_RESPONSES] is None
    if masks_tokens(values) and alone and values[f"{SAMPLING}.logprobs"] is None:
        yield Fault(
            "SkyRL masks tokens by the engine's log-probabilities, and without them trains as if "
            "no mask were set: set it to 1",
            f"{SAMPLING}.logprobs",
        )
    yield from _asynchronous(values, given, argv)
    yield from _ranks(values, given)
    yield from _ends_early(values, given, num_prompts)


def _asynchronous(values: Values, given: Values, argv: str) -> Iterator[Fault]:
    if not is_asynchronous(given):
        if BOUND in given:
            yield Fault(
                f"is ignored without {ENABLED}=true (before 0.3.0: without an entry point of "
                "the asynchronous trainer): the launch is synchronous",
                BOUND,
            )
        return
    if "entrypoints.main_base" in argv or "entrypoints/main_base" in argv:
        yield Fault(
            "is ignored by skyrl.train.entrypoints.main_base, which always builds the synchronous "
            "trainer: run an entry point that builds FullyAsyncRayPPOTrainer (orch_skyrl.py does)",
            ENABLED,
        )
    batch, minibatch = values[BATCH], values[MINIBATCH]
    if batch != minibatch:
        yield Fault(
            f"must be {BATCH}={batch} here: the asynchronous trainer makes one "
            "update a rollout batch, and says so only once it is built",
            MINIBATCH,
        )
    if given.get(f"{PLACEMENT}.colocate_all", True) is not False:
        yield Fault(
            "must be false here, and is true by default: the asynchronous trainer "
            "samples on GPUs of its own",
            f"{PLACEMENT}.colocate_all",
        )


def _ranks(values: Values, given: Values) -> Iterator[Fault]:
    nodes, gpus = (given.get(f"{PLACEMENT}.policy_num_{n}") for n in ("nodes", "gpus_per_node"))
    minibatch = values[MINIBATCH]
    group = values["generator.n_samples_per_prompt"]
    known = [x for x in (nodes, gpus, minibatch, group) if isinstance(x, int) and x > 0]
    if len(known) == 4 and known[2] * known[3] % (known[0] * known[1]):
        yield Fault(
            f"{minibatch} prompts x {group} rollouts do not divide among {known[0] * known[1]} "
            "GPUs: SkyRL drops prompts until they do",
            MINIBATCH,
        )


def _ends_early(values: Values, given: Values, num_prompts: object) -> Iterator[Fault]:
    wanted, epochs, batch = given.get(STEPS), values["trainer.epochs"], values[BATCH]
    if not (
        isinstance(wanted, int)
        and isinstance(epochs, int)
        and isinstance(num_prompts, int)
        and isinstance(batch, int)
        and batch > 0
    ):
        return
    if (reached := num_prompts // batch * epochs) < wanted:
        yield Fault(
            f"training ends after {reached} of {wanted} rollout batches: an epoch has "
            f"{num_prompts // batch} whole ones; raise it",
            "trainer.epochs",
        )
