"""verl itself, as far as a machine without a GPU can ask it: Hydra composing the release's own
configuration, and single functions of its source run by the torch at hand."""

import ast
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from tests.backends.child import ask
from tests.backends.environments import contract_python

VERSIONS = ("0.9.1", "0.8.0")

_COMPOSE = """
import importlib.util, json, pathlib, sys
import yaml
yaml.SafeLoader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # half of composing is parsing
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
config = pathlib.Path(importlib.util.find_spec("verl").submodule_search_locations[0])

def answer(overrides, keys):
    try:
        composed = compose("ppo_trainer", overrides=overrides)
        found = {}
        for key in keys:
            home, _, leaf = key.rpartition(".")
            parent = OmegaConf.select(composed, home)
            missing = parent is not None and OmegaConf.is_missing(parent, leaf)
            raw = "???" if missing else OmegaConf.select(composed, key)
            found[key] = OmegaConf.to_container(raw) if OmegaConf.is_config(raw) else raw
        return {"values": found}
    except Exception as error:
        return {"error": str(error)[:500]}

with initialize_config_dir(config_dir=str(config / "trainer" / "config"), version_base=None):
    for line in sys.stdin:
        asked = json.loads(line)
        if asked["launches"] is None:
            plain = OmegaConf.to_container(compose("ppo_trainer"), resolve=False)
            print("ANSWER " + json.dumps([plain]), flush=True)
            continue
        found = [answer(overrides, asked["keys"]) for overrides in asked["launches"]]
        print("ANSWER " + json.dumps(found), flush=True)
"""


def python(version: str) -> Path:
    return contract_python("verl", version)


def compose(
    version: str, launches: Sequence[Sequence[str]], keys: Sequence[str]
) -> list[Mapping[str, Any]]:
    """What verl's own composition makes of each list of overrides: {"values": key -> value}, or
    {"error": sentence}."""
    asked = {"launches": [list(each) for each in launches], "keys": list(keys)}
    answers: list[Mapping[str, Any]] = ask((python(version), "-c", _COMPOSE), asked)
    return answers


@cache
def configuration(version: str) -> Mapping[str, Any]:
    """Return the release's whole ppo_trainer as composed, interpolations as they are written."""
    answers: list[Mapping[str, Any]] = ask((python(version), "-c", _COMPOSE), {"launches": None})
    return answers[0]


@cache
def root(version: str) -> Path:
    """Where the release's sources lie."""
    (found,) = python(version).parents[1].glob("lib/python*/site-packages/verl")
    return found


def functions(version: str, path: str, names: Sequence[str], within: dict[str, Any]) -> None:
    """Put functions or classes of one of verl's files into `within`, which has the names they use.
    verl cannot be imported without Ray, tensordict and vLLM; its arithmetic needs none of them."""
    tree = ast.parse((root(version) / path).read_text(encoding="utf-8"))
    wanted = [
        node
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name in names
    ]
    assert len(wanted) == len(names), f"verl {version} has moved one of {names} out of {path}"
    for node in (each for top in wanted for each in ast.walk(top)):
        if isinstance(node, ast.FunctionDef):
            node.decorator_list, node.returns = [], None
        if isinstance(node, ast.arg):
            node.annotation = None
    module = ast.Module(body=list(wanted), type_ignores=[])
    exec(compile(module, path, "exec"), within)  # noqa: S102  (the library's own file)
