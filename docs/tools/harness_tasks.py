"""Write the list of lm-evaluation-harness's tasks: `python -m docs.tools.harness_tasks`.

Reads the YAML files and, without running them, the Python files of the installed release.
The list is `orchestrator/harness_tasks/<version>.json.xz`; the module beside it says what it holds.
"""

import ast
import json
import lzma
import re
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution, packages_distributions, version
from pathlib import Path
from typing import Any

import lm_eval.tasks
from lm_eval.tasks import TaskManager
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from orchestrator.harness_tasks import list_path

ROOT = Path(lm_eval.tasks.__file__).parent
PINNED = re.compile(r"""version\(["']antlr4-python3-runtime["']\)""")
GATED = re.compile(r"gated[^\n]*huggingface\.co/datasets/([\w.-]+/[\w.-]+)")
NLTK_DATA = re.compile(r"""nltk\.download\(\s*["']([\w.-]+)["']""")


def main() -> None:
    """Write the list."""
    manager = TaskManager()
    all_tags, all_groups = set(manager.all_tags), set(manager.all_groups)
    tasks: dict[str, list[Any]] = {}
    groups: dict[str, list[Any]] = {}
    for name, entry in sorted(manager.task_index.items()):
        config = entry.cfg or {}
        if name in all_tags:
            groups[name] = ["", sorted(entry.tags)]
        elif name in all_groups:
            members = sorted({member for member in _members(config) if member})
            groups[name] = [_place(entry.yaml_path), members]
        else:
            tasks[name] = [
                str(config.get("output_type") or ""),
                str(config.get("dataset_path") or ""),
                sorted({need for file in _files(config) for need in _needs(file)}),
                int(config.get("repeats") or 1),
                _place(entry.yaml_path),
            ]
    gated = sorted(
        {name for page in ROOT.rglob("*.md") for name in GATED.findall(page.read_text())}
    )
    plain = {"tasks": tasks, "groups": groups, "gated": gated}
    text = json.dumps(plain, ensure_ascii=False, sort_keys=True)
    path = list_path(version("lm_eval"))
    path.write_bytes(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))
    print(f"{path}: {len(tasks)} tasks, {len(groups)} groups and tags, gated: {', '.join(gated)}")


def _place(path: Path | None) -> str:
    return "" if path is None else path.relative_to(ROOT).as_posix()


def _members(config: Mapping[str, Any]) -> Iterator[str]:
    for item in config.get("task") or ():
        if isinstance(item, str):
            yield item
        elif isinstance(item.get("task"), list):
            yield from _members(item)
        else:
            yield item.get("task") or item.get("group")


def _files(value: Any) -> Iterator[Path]:
    """Yield the Python files that a configuration names by `!function` or `class`."""
    if isinstance(value, Mapping):
        for each in value.values():
            yield from _files(each)
    elif isinstance(value, list):
        for each in value:
            yield from _files(each)
    elif isinstance(value, str) and value.startswith(str(ROOT)):
        module, _, _ = value[len(str(ROOT)) :].rpartition(".")
        yield ROOT / f"{module.lstrip('/').replace('.', '/')}.py"


@cache
def _needs(file: Path, above: tuple[Path, ...] = ()) -> frozenset[str]:
    """Return what a file and those of its own that it imports need beyond lm-eval[hf,api]."""
    if not file.is_file() or file in above:
        return frozenset()
    text = file.read_text("utf-8")
    needs = {f"nltk data {name}" for name in NLTK_DATA.findall(text)}
    needs |= {ANTLR} if PINNED.search(text) else set()
    for modules in _imports(ast.parse(text)):
        own = [path for module in modules if (path := _own_file(module, file)) is not None]
        for path in own:
            needs |= _needs(path, (*above, file))
        top = modules[0].partition(".")[0]
        if not own and top and top not in _brought():
            needs.add(DISTRIBUTIONS.get(top, top))
    return frozenset(needs)


def _imports(tree: ast.AST) -> Iterator[tuple[str, ...]]:
    """Yield the modules that each import may load: `from a import b` loads a, and perhaps a.b."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name,) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            dot = "." if node.module else ""
            yield (module, *(f"{module}{dot}{alias.name}" for alias in node.names))


def _own_file(module: str, importer: Path) -> Path | None:
    name = module.removeprefix("lm_eval.tasks.")
    base = ROOT if name != module else importer.parent
    for _ in range(len(name) - len(name.lstrip(".")) - 1):
        base = base.parent
    path = base / f"{name.lstrip('.').replace('.', '/')}.py"
    return path if path.is_file() else None


ANTLR = "antlr4-python3-runtime==4.11"
DISTRIBUTIONS = {"antlr4": ANTLR, "math_verify": "math-verify", "kstar_planner": "kstar-planner"}
"""Module -> requirement, where the names differ."""


@cache
def _brought() -> frozenset[str]:
    """Return the top modules of the standard library and of lm-eval[hf,api]."""
    todo, seen = ["lm_eval[hf,api]"], set[str]()
    while todo:
        requirement = Requirement(todo.pop())
        name = canonicalize_name(requirement.name)
        if name in seen and not requirement.extras:
            continue
        seen.add(name)
        try:
            needs = distribution(name).requires or []
        except PackageNotFoundError:
            continue
        for text in needs:
            need = Requirement(text)
            extras = requirement.extras or {""}
            if need.marker is None or any(need.marker.evaluate({"extra": e}) for e in extras):
                todo.append(text.partition(";")[0])
    modules = {
        module
        for module, names in packages_distributions().items()
        if any(canonicalize_name(name) in seen for name in names)
    }
    return frozenset(modules | sys.stdlib_module_names | {"lm_eval"})


if __name__ == "__main__":
    main()
