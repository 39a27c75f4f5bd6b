"""Runs inside a verl environment: prints ANSWER and what Hydra composes of launches, as JSON.

Standard input: a line for each question. A question is a list of launches, each a list of
overrides, or {"launches": the list, "keys": the keys to answer}. Of each launch the answer is
{"values": key -> value}, of the keys that it sets if none are named, or {"error": sentence}.
"""

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import yaml
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

CONFIG = "ppo_trainer"


def answer(overrides: list[str], keys: list[str] | None) -> dict[str, Any]:
    """Return what comes of a launch."""
    if keys is None:
        keys = [word.lstrip("+").partition("=")[0] for word in overrides]
        keys = [key for key in keys if not key.startswith("hydra.")]
    try:
        composed = compose(CONFIG, overrides=overrides)
        return {"values": {key: value_of(composed, key) for key in keys}}
    except Exception as error:
        return {"error": str(error)[:500]}


def value_of(composed: Any, key: str) -> Any:
    """Return the value of a key; ??? if it is mandatory and missing."""
    home, _, leaf = key.rpartition(".")
    parent = OmegaConf.select(composed, home)
    if parent is not None and OmegaConf.is_missing(parent, leaf):
        return "???"
    raw = OmegaConf.select(composed, key)
    return OmegaConf.to_container(raw) if OmegaConf.is_config(raw) else raw


def answers(question: Any) -> list[Any]:
    """Return the answers of a question."""
    if isinstance(question, list):
        return [answer(launch, None) for launch in question]
    return [answer(launch, question["keys"]) for launch in question["launches"]]


def main() -> None:
    """Answer the questions on standard input."""
    # half of composing is parsing
    vars(yaml)["SafeLoader"] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    spec = importlib.util.find_spec("verl")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("verl")
    config = Path(spec.submodule_search_locations[0]) / "trainer" / "config"
    with initialize_config_dir(config_dir=str(config), version_base=None):
        for line in sys.stdin:
            sys.stdout.write("ANSWER " + json.dumps(answers(json.loads(line))) + "\n")
            sys.stdout.flush()


main()
