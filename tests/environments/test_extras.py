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
    ("module", "extra"), [("lm_eval.api", "eval"), ("orchestrator", None), ("pytest", None)]
)
def test_a_module_is_brought_by_the_extra_that_declares_it(module: str, extra: str | None) -> None:
    assert extras.extra_of(module) == extra


@pytest.mark.parametrize(
    ("data", "target"),
    [
        ({}, "orch-rl[run]"),
        ({"url": "file:///a/orch.whl", "archive_info": {}}, "orch-rl[run] @ file:///a/orch.whl"),
        (
            {"url": "file:///my%20code/orch", "dir_info": {}},
            "orch-rl[run] @ file:///my%20code/orch",
        ),
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


def test_the_table_is_that_of_the_project() -> None:
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    declared = tomllib.loads(text)["project"]["optional-dependencies"]
    renamed = {"vl-convert-python": "vl-convert"}
    for extra, modules in extras.EXTRAS.items():
        names = {canonicalize_name(Requirement(each).name) for each in declared[extra]}
        named = {renamed.get(name, name) for name in names - {"orch-rl"}}
        assert named == {canonicalize_name(module) for module in modules}, extra
    assert all(extras.extra_of(module) for module in extras.RUN)
