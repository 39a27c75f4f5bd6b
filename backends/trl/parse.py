"""Read a launch of TRL, with its YAML file, back as settings."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import PurePath
from typing import Any

import yaml

from backends.trl.manifest import CHAT, ESTIMATOR, MANIFEST, PLACEMENT, PROCESSES, SCRIPT, WEIGHT
from backends.trl.options import SCRIPTS, VERSIONS, Script, defaults, script_table
from backends.trl.translate import PROGRAM, flag
from orchestrator.errors import Fault, SpecError, did_you_mean
from orchestrator.library.needs import (
    NEEDS,
    passed_keys,
    read_needs,
    settings_of,
    with_extra,
)
from orchestrator.settings import Settings


def parse(argv: Sequence[str], files: Mapping[str, str]) -> Settings:
    """Return the settings of a launch. Raise SpecError with every fault."""
    faults: list[Fault] = []
    script = next((name for name in SCRIPTS if name in argv), None)
    if script is None or not any(PurePath(word).name == PROGRAM for word in argv):
        raise SpecError("TRL launch", [Fault(f"the launch does not run {PROGRAM} grpo or rloo")])
    needs = read_needs(files, faults)
    given, extra = _config(argv, files, faults), passed_keys(files)
    version = needs["asked"].get("backend.version") or VERSIONS[0]
    if version not in VERSIONS:
        faults.append(Fault(f"{NEEDS} names TRL {version}; orch knows {', '.join(VERSIONS)}"))
    else:
        faults += _wrong_options(script, version, given)
    if faults:
        raise SpecError("TRL launch", faults)
    given = {
        key: value
        for key, value in given.items()
        if key not in extra or key in MANIFEST.system_keys
    }
    launch = {
        # TRL weighs against vLLM unless told not to.
        **{key: value for key, value in defaults(script, version).items() if key in WEIGHT},
        **given,
        NEEDS: needs,
        SCRIPT: script,
        CHAT: "--chat" in argv,
        PROCESSES: _processes(argv),
        **_shipped_kl(argv),
    }
    faults += _other_training(launch, version)
    try:
        settings = MANIFEST.read(launch, version)
    except SpecError as error:
        faults += error.faults
    except (ArithmeticError, TypeError, KeyError) as error:
        faults.append(Fault(f"the options make no cell: {type(error).__name__}: {error}"))
    if faults:
        raise SpecError("TRL launch", faults)
    return settings_of(with_extra(settings, extra), "TRL launch")


def values_of_anybody(
    program: Sequence[str], given: Mapping[str, object], version: str
) -> Mapping[str, object]:
    """Return the values of a launch that others wrote: the options of its script with their
    defaults, the script, the model and the prompts.

    TRL's own programs make each prompt a user's message, as `--chat` does.
    """
    called = " ".join(program).lower()
    script: Script = "rloo" if "rloo" in called else "grpo"
    prompts = {"path": given.get("dataset_name"), "split": given.get("dataset_train_split")}
    return {
        **defaults(script, version),
        **given,
        SCRIPT: script,
        CHAT: True,
        PROCESSES: _processes(program),
        NEEDS: {
            "prompts": {name: value for name, value in prompts.items() if value is not None},
            "asked": {"model.path": given.get("model_name_or_path")},
        },
    }


def _config(argv: Sequence[str], files: Mapping[str, str], faults: list[Fault]) -> dict[str, Any]:
    """Return the options in the file that `--config` names."""
    try:
        name = PurePath(argv[list(argv).index("--config") + 1]).name
        plain = yaml.safe_load(files[name])
    except (ValueError, IndexError, KeyError, yaml.YAMLError) as error:
        faults.append(Fault(f"--config names no file of the launch that is YAML ({error})"))
        return {}
    if not isinstance(plain, dict):
        faults.append(Fault(f"{name} is no table of options"))
        return {}
    return plain


def _shipped_kl(argv: Sequence[str]) -> dict[str, str]:
    """Return estimator and placement of the KL in the arguments of orch_trl.py, if any."""
    following = dict(pairwise(argv))
    return {name: following[flag(name)] for name in (ESTIMATOR, PLACEMENT) if flag(name) in argv}


def _processes(argv: Sequence[str]) -> int:
    words = list(argv)
    return int(words[words.index("--num_processes") + 1]) if "--num_processes" in words else 1


def _wrong_options(script: Script, version: str, given: Mapping[str, object]) -> Iterator[Fault]:
    """Yield a fault for each option that the script lacks or whose value it does not take."""
    table = script_table(script, version)
    for key, value in given.items():
        if not table.has(key):
            hint = did_you_mean(key, table.keys)
            yield Fault(f"{script} of TRL {version} has no option {key}{hint}", f"$.{key}")
        elif why := table.objection(key, value):
            yield Fault(why, f"$.{key}")


def _other_training(launch: Mapping[str, Any], version: str) -> Iterator[Fault]:
    """Yield a fault for each option with which TRL trains on data or terms that no cell has."""
    of_script = defaults(launch[SCRIPT], version)
    for constant in MANIFEST.constants:
        value = launch.get(constant.key, of_script.get(constant.key))
        if constant.accepts and constant.key in of_script and value not in constant.accepts:
            taken = ", ".join(map(str, constant.accepts))
            yield Fault(f"{constant.key} is {value}: a cell has {taken}", f"$.{constant.key}")
    if launch.get("steps_per_generation", 1) % launch.get("gradient_accumulation_steps", 1):
        yield Fault(
            "steps_per_generation is no multiple of gradient_accumulation_steps: train steps "
            "would cross rollout batches",
            "$.steps_per_generation",
        )
