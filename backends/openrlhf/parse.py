"""Read a launch back as settings, with a fault for each flag that the library would not follow.

An absent flag has the release's default. A flag that orch does not know is a fault.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from backends.openrlhf.flags import (
    FLAT_NAMES,
    MODULE,
    CommandLine,
    default,
    dotted_names,
    own_tables,
    read,
    spelled,
    without,
)
from backends.openrlhf.manifest import BOUNDS, GATING, LEVEL, MANIFEST, MODE
from orchestrator.errors import Fault, SpecError
from orchestrator.library.needs import (
    NEEDS,
    name_of,
    passed_keys,
    read_needs,
    settings_of,
    with_extra,
)
from orchestrator.settings import Settings

_WITHOUT: Mapping[str, str] = {
    "algo.kl.unbiased_gradient": "algo.kl.use_loss",
    "train.async_queue_size": "train.async_enable",
    MODE: LEVEL,
    GATING: LEVEL,
    BOUNDS: LEVEL,
}
"""Flag -> the other flag without which the library ignores it."""


_OF_SYSTEM = MANIFEST.system_keys | {
    flat for key in MANIFEST.system_keys if (flat := FLAT_NAMES[key]) is not None
}


def parse(argv: Sequence[str], files: Mapping[str, str]) -> Settings:
    """Return the settings of a launch. Raise SpecError with every fault of its command line.

    Without needs.json, which orch writes beside its launches, the prompts are the files that the
    flags name, with orch's default reward rule.
    """
    faults: list[Fault] = []
    extra = passed_keys(files)
    flags = read(without(argv, extra.keys() - _OF_SYSTEM), faults)
    faults += _ignored(flags)
    needs = read_needs(files, faults) if NEEDS in files else _needs_of(flags)
    if not faults or flags.given:
        faults += _other_steps(flags, needs)
    if faults:
        raise SpecError(MODULE, faults)
    launch = {**flags.given, NEEDS: needs}
    try:
        plain = with_extra(MANIFEST.read(launch, flags.version), extra)
        return settings_of(plain, MODULE)
    except (ArithmeticError, TypeError) as error:
        sentence = f"the flags make no cell: {type(error).__name__}: {error}"
        raise SpecError(MODULE, [Fault(sentence)]) from error


_FORMER = {"prompt_max_len": "data.max_len", "generate_max_len": "rollout.max_new_tokens"}
"""Flags before 0.9.10, each with a default of 1024 -> what has their number now."""


def values_of_anybody(
    program: Sequence[str], given: Mapping[str, object], version: str
) -> Mapping[str, object]:
    """Return the values of a launch that others wrote, under the dotted names of its flags.

    A flag of several words has them in one text. `eps_clip` bounds both sides, as the library's
    script makes of it. `max_samples` is a cap on prompts whose number is not known. Before 0.9.10
    (cli/train_ppo_ray.py) prompts and responses had a limit each.
    """
    del program
    dotted, kinds = dotted_names(version), own_tables()[version].kinds
    values = {
        dotted.get(name, _FORMER.get(name, name)): _several(value)
        if " x " in kinds.get(name, "")
        else value
        for name, value in given.items()
    }
    for name in ("actor.eps_clip", "eps_clip"):
        if (bound := values.get(name, default(name, version))) is not None:
            values.setdefault("actor.eps_clip_low_high", (bound, bound))
    prompts = values.get("data.prompt_dataset")
    if given.keys() & _FORMER.keys():
        prompt, response = (given.get(name, 1024) for name in _FORMER)
        if isinstance(prompt, int) and isinstance(response, int):
            values["data.max_len"] = prompt + response
    values["data.max_samples"] = "at most"  # no number: what it decides is not known
    return values | ({NEEDS: {"prompts": {"path": prompts}}} if isinstance(prompts, str) else {})


def _several(value: object) -> object:
    """Return the numbers of a flag that takes several; one number is an upper bound."""
    try:
        numbers = tuple(map(float, str(value).split()))
    except ValueError:
        return value
    return (0.0, *numbers) if len(numbers) == 1 else numbers


def _needs_of(flags: CommandLine) -> Mapping[str, Any]:
    """Return the content that needs.json would have for a launch that orch did not write."""
    model, prompts = flags["actor.model_name_or_path"], flags["data.prompt_dataset"]
    path = str(prompts or "unknown").partition(",")[0]
    named = {"model.name": name_of(str(model or "unknown"))}
    return {"prompts": {"name": name_of(path), "path": path}, "asked": named}


def _ignored(flags: CommandLine) -> list[Fault]:
    """Return a fault for each setting of the launch that has no effect."""
    return [
        Fault(
            f"{spelled(name, flags.version)} is ignored without {spelled(other, flags.version)}: "
            "give both or neither"
        )
        for name, other in _WITHOUT.items()
        if flags.given.get(name) and flags.given.get(other) in (None, False, "off")
    ]


def _other_steps(flags: CommandLine, needs: Mapping[str, Any]) -> Iterator[Fault]:
    """Yield a fault for each launch that the library accepts and that trains unlike any cell.

    It would make another number of train steps than its flags suggest, or train on data that no
    cell has.
    """
    version = flags.version
    rows, batch = flags["data.max_samples"], flags["rollout.batch_size"]
    per_step = flags["train.batch_size"]
    if batch < 1 or per_step < 1:
        return
    name = {n: spelled(n, version) for n in FLAT_NAMES}
    if "data.max_samples" not in flags.given:
        yield Fault(f"the number of train steps is unknown: give {name['data.max_samples']}")
    elif rows % batch:
        yield Fault(
            f"{name['data.max_samples']} {rows} is no multiple of {name['rollout.batch_size']} "
            f"{batch}: the last batch is cut short or left out; give {rows - rows % batch}"
        )
    elif (num_held := _prompts_held(flags, needs)) is not None and num_held < rows:
        yield Fault(
            f"the files of {name['data.prompt_dataset']} hold {num_held} prompts together, and "
            f"{name['data.max_samples']} {rows} makes no more of them: training ends early; name "
            "the file more often"
        )
    if batch * flags["rollout.n_samples_per_prompt"] % per_step:
        yield Fault(
            f"{name['rollout.batch_size']} x {name['rollout.n_samples_per_prompt']} = "
            f"{batch * flags['rollout.n_samples_per_prompt']} rollouts are no multiple of "
            f"{name['train.batch_size']} {per_step}: what is left over makes no train step"
        )
    if flags["train.max_epochs"] != 1:
        yield Fault(
            f"{name['train.max_epochs']} {flags['train.max_epochs']}: no cell trains on a rollout "
            "batch more than once; give 1"
        )


def _prompts_held(flags: CommandLine, needs: Mapping[str, Any]) -> int | None:
    """Return the number of prompts in all named files, or None if the launch does not give it."""
    known = needs["prompts"].get("num_prompts")
    files = flags["data.prompt_dataset"] or ""
    return known * len(files.split(",")) if isinstance(known, int) else None
