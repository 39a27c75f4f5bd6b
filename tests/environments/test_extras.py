"""The sentence for a module that this installation of orch leaves out."""

import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from orchestrator.environments import extras


@pytest.fixture
def origin(monkeypatch: pytest.MonkeyPatch) -> Any:
    def set_(data: dict[str, Any]) -> None:
        monkeypatch.setattr(extras, "origin", lambda: data)

    return set_


@pytest.mark.parametrize(
    ("module", "extra"),
    [
        ("scipy", "run"),
        ("optuna", "tune"),
        ("torch", "micro"),
        ("lm_eval.api", "eval"),
        ("reasoning_gym", "data"),
        ("orchestrator", None),
        ("nobody_has_this", None),
    ],
)
def test_a_module_is_brought_by_the_extra_that_declares_it(module: str, extra: str | None) -> None:
    assert extras.extra_of(module) == extra


@pytest.mark.parametrize(
    ("data", "target"),
    [
        ({}, "orch-rl[run]"),
        ({"url": "file:///a/orch.whl", "archive_info": {}}, "orch-rl[run] @ file:///a/orch.whl"),
        ({"url": "file:///my%20code/orch", "dir_info": {}}, "/my code/orch[run]"),
        (
            {"url": "https://h/o.git", "vcs_info": {"vcs": "git", "commit_id": "ab12"}},
            "orch-rl[run] @ git+https://h/o.git@ab12",
        ),
    ],
)
def test_the_line_installs_from_where_orch_came(
    origin: Any, data: dict[str, Any], target: str
) -> None:
    origin(data)
    assert shlex.split(extras.install_line("run")) == ["pip", "install", target]


def test_every_module_of_a_run_is_a_requirement_of_an_extra() -> None:
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    declared = tomllib.loads(text)["project"]["optional-dependencies"]
    names = {canonicalize_name(Requirement(r).name) for each in declared.values() for r in each}
    for module in extras.RUN:
        assert canonicalize_name(extras.DISTRIBUTIONS.get(module, module)) in names, module
