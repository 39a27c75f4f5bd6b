"""Are model, tokenizer and evaluation data in the hub's cache that a job of the site will see?

The cache is that of the site's variables (`HF_HOME`, `HF_HUB_CACHE` in `site.options.env`), else of
this process. Only files are looked at; nothing is loaded, and no network is asked.
"""

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from orchestrator import harness_tasks, plugins
from orchestrator.errors import OrchError
from orchestrator.library.model_size import hub_cache, hub_folder
from orchestrator.records import Cell, EvaluationSpec, Site

EVAL_DATA = "ORCH_EVAL_DATA"
OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE")
_HUB = re.compile(r"\bhub: ([\w.-]+/[\w.-]+)")
_ID = re.compile(r"[\w.-]+/[\w.-]+")
_FILES = {
    "config.json": ("config.json",),
    "weights": ("*.safetensors", "*.bin"),
    "tokenizer": ("tokenizer.json", "tokenizer_config.json", "tokenizer.model"),
}


class SiteFinding(NamedTuple):
    """One line of the table of `orch doctor`."""

    check: str
    verdict: str
    """ok, missing or broken; only `broken` fails the command."""
    found: str
    advice: str = ""


def hub_findings(
    site: Site, cells: Sequence[Cell], evaluation: EvaluationSpec | None
) -> list[SiteFinding]:
    """Return a finding for each model and each data set that jobs of cells on GPUs would read."""
    full = [cell for cell in cells if cell.scale == "full" and cell.resources.gpus_per_node]
    if not full:
        return []
    own = site.options.get("env")
    variables = {**os.environ, **(own if isinstance(own, Mapping) else {})}
    models = dict.fromkeys(
        path
        for cell in full
        for path in (cell.settings.model.path, getattr(cell.settings.kl.reference, "path", None))
        if path and ":" not in path
    )
    findings = [_model(path, variables) for path in models]
    tasks = evaluation.tasks if evaluation is not None else ()
    data = dict.fromkeys(pair for task in tasks for pair in _data_sets(task.name))
    return [*findings, *(_data_set(name, hub, variables) for name, hub in data)]


def is_local(path: str) -> bool:
    """Return True for a path of a file system, and not a name on the Hub."""
    return path.startswith(("/", "./", "../", "~"))


def _model(path: str, variables: Mapping[str, str]) -> SiteFinding:
    check, fetch = f"model {path}", f"hf download {path}"
    folder = Path(path).expanduser() if is_local(path) else hub_folder(path, hub_cache(variables))
    if folder is None:
        return _absent(check, fetch, variables)
    if not folder.exists():
        return SiteFinding(check, "broken", "is not there", "model.path: a folder that a node sees")
    lacking = [name for name, patterns in _FILES.items() if not _has(folder, patterns)]
    if lacking:
        advice = "copy what is lacking" if is_local(path) else f"{fetch}, where there is a network"
        return SiteFinding(check, "broken", f"{folder} lacks {', '.join(lacking)}", advice)
    return SiteFinding(check, "ok", str(folder))


def _data_sets(task: str) -> Iterator[tuple[str, str]]:
    """Yield the task and the hub's name of each data set that a task reads, as far as is known."""
    if task in plugins.task_names():
        for folder in (plugins.TASKS_FOLDER, *plugins.task_folders()):
            for path in folder.rglob(f"{task}.yaml"):
                yield from ((task, hub) for hub in _HUB.findall(path.read_text(encoding="utf-8")))
        return
    try:
        leaves = harness_tasks.find(task).leaves
    except OrchError:
        return
    yield from ((leaf.name, leaf.dataset) for leaf in leaves if _ID.fullmatch(leaf.dataset))


def _data_set(task: str, hub: str, variables: Mapping[str, str]) -> SiteFinding:
    check = f"data of {task}"
    local = variables.get(EVAL_DATA)
    if local and task in plugins.task_names():
        kept = [path for path in Path(local).glob(f"{task}*") if path.exists()]
        if kept:
            return SiteFinding(check, "ok", str(kept[0]))
    folder = hub_folder(hub, hub_cache(variables), "datasets")
    if folder is None:
        return _absent(check, f"hf download --repo-type dataset {hub}", variables)
    return SiteFinding(check, "ok", str(folder))


def _absent(check: str, command: str, variables: Mapping[str, str]) -> SiteFinding:
    found, advice = f"not in {hub_cache(variables)}", f"{command}, where there is a network"
    offline = [name for name in OFFLINE if variables.get(name, "0") not in ("0", "", "false")]
    if offline:
        return SiteFinding(check, "broken", f"{found}, and {offline[0]} is set", advice)
    return SiteFinding(check, "missing", found, f"{advice}; else the job loads it, if it has one")


def _has(folder: Path, patterns: Iterable[str]) -> bool:
    """Return True if a file of these names is there; the hub's links may lead nowhere."""
    return any(path.exists() for pattern in patterns for path in folder.glob(pattern))
