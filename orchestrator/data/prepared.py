"""The folder of prepared prompts: <data>/<name>-<hash>/{about.json, chat/, labelled/, questions/}.

A format's folder appears whole or not at all; about.json keeps the size and the hash of each file.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from orchestrator import plugins
from orchestrator.data.source import PromptRow, PromptRows, rows
from orchestrator.errors import EnvironmentFault
from orchestrator.files import link_folder, read_json, take_lock, write_text
from orchestrator.library.prompt_recipe import FORMATS, PLAN_FILE, PromptRecipe, key, of_plan
from orchestrator.records import LaunchPlan
from orchestrator.settings import Data

DEFAULT = Path("data") / "prepared"
ABOUT = "about.json"


def data_dir() -> Path:
    """Return the folder of prepared prompts: $ORCH_DATA_DIR, else data/prepared.

    The latter lies in the working directory.
    """
    return Path(os.environ.get("ORCH_DATA_DIR") or DEFAULT).absolute()


class PreparedPrompts(NamedTuple):
    """One prepared data set."""

    folder: Path
    num_prompts: int
    num_validation: int
    num_shared: int
    """Of the validation prompts, those that are training prompts too."""
    fresh: bool
    """False: it was there already."""


def prepare(data: Data, formats: Sequence[str], directory: Path) -> PreparedPrompts:
    """Write the formats of a data set that are missing or damaged; leave whole files alone.

    Raise EnvironmentFault if the content differs from what was prepared before, because cells
    have trained on that. `source.rows` raises further errors.
    """
    folder = directory / key(data)
    about = read_json(folder / ABOUT) or {}
    wanted = [name for name in formats if _fault(folder, about, name, by_hash=True)]
    prompts = rows(data, [Path.cwd(), directory]) if wanted or not about else None
    if prompts is not None:
        about = _written(folder, about, wanted, data, prompts)
    return PreparedPrompts(
        folder,
        about["num_prompts"],
        about["num_validation"],
        about.get("num_shared", 0),
        fresh=prompts is not None,
    )


def _written(
    folder: Path, about: dict[str, Any], wanted: Sequence[str], data: Data, prompts: PromptRows
) -> dict[str, Any]:
    """Write the wanted formats, and return what is now known of the data set."""
    if about and about["content"] != prompts.digest:
        raise EnvironmentFault(
            f"{prompts.origin} is not what {folder} was prepared from (content "
            f"{about['content'][:12]}, now {prompts.digest[:12]}). If no cell of yours has trained "
            "on it, remove that folder and prepare again; else give the data another name"
        )
    about = about or {
        "data": data.model_dump(),
        "origin": prompts.origin,
        "content": prompts.digest,
        "num_prompts": len(prompts.train),
        "num_validation": len(prompts.validation),
        "num_shared": prompts.num_shared,
        "formats": {},
    }
    for name in wanted:
        about["formats"][name] = _write(folder, name, data, prompts)
        # After every format, so that a killed process leaves the formats before recorded as whole.
        write_text(folder / ABOUT, json.dumps(about, indent=1, ensure_ascii=False) + "\n")
    return about


def _write(
    folder: Path, name: str, data: Data, prompts: PromptRows
) -> dict[str, dict[str, object]]:
    nascent = folder / f".new-{name}-{os.getpid()}"
    shutil.rmtree(nascent, ignore_errors=True)
    nascent.mkdir(parents=True)
    for file, part in zip(FORMATS[name], (prompts.train, prompts.validation), strict=True):
        split = file.partition(".")[0]
        lines = [_row(name, data, row, split, index) for index, row in enumerate(part)]
        _save(nascent / file, lines)
    facts = {file: _facts(nascent / file) for file in FORMATS[name]}
    # A rename cannot replace a folder that has files. A kill here leaves the format missing, and
    # the next `prepare` writes it again.
    shutil.rmtree(folder / name, ignore_errors=True)
    nascent.replace(folder / name)
    return facts


def _row(name: str, data: Data, row: PromptRow, split: str, index: int) -> dict[str, object]:
    prompt = f"{row.question} {data.instruction}".rstrip()
    if name == "labelled":
        return {"prompt": prompt, "label": row.answer}
    if name == "questions":
        return {"question": prompt, "answer": row.answer}
    return {
        "data_source": data.name,
        "prompt": [{"role": "user", "content": prompt}],
        "ability": "countdown" if data.reward == "countdown" else "math",
        "reward_model": {"style": "rule", "ground_truth": row.answer},
        "reward_spec": {"ground_truth": row.answer},
        "extra_info": {"split": split, "index": index},
    }


def _save(file: Path, lines: list[dict[str, object]]) -> None:
    if file.suffix == ".jsonl":
        file.write_text(
            "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in lines), encoding="utf-8"
        )
        return
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.Table.from_pylist(lines), file)


def _facts(file: Path) -> dict[str, object]:
    content = file.read_bytes()
    return {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def _fault(folder: Path, about: Mapping[str, Any], name: str, *, by_hash: bool) -> str | None:
    """Return a sentence on what is wrong with one format of a data set; None if it is whole."""
    recorded = about.get("formats", {}).get(name)
    if recorded is None:
        return f"{folder / name} is missing"
    for file, facts in recorded.items():
        path = folder / name / file
        if not path.exists():
            return f"{path} is missing"
        actual = _facts(path) if by_hash else {"bytes": path.stat().st_size}
        if any(actual[what] != facts[what] for what in actual):
            return f"{path} is not the file that was prepared"
    return None


def missing(plan: LaunchPlan, directory: Path | None = None) -> str | None:
    """Return a sentence if the prompts that a plan reads are not prepared, else None.

    A plan that brings its own prompts has none missing, nor one whose prompts `make_shipped`
    prepares. Sizes are compared, not content.
    """
    recipe = of_plan(plan.files)
    if recipe is None or _is_shipped(recipe):
        return None
    return _missing(recipe, directory or data_dir(), by_hash=False)


def make_shipped(plan: LaunchPlan) -> None:
    """Prepare the prompts that a plan reads, if they ship with a backend and are missing.

    They need no network. Prompts of other origins are left to `orch data prepare`.
    """
    recipe, directory = of_plan(plan.files), data_dir()
    if recipe is None or not _missing(recipe, directory, by_hash=False):
        return
    if _is_shipped(recipe):
        directory.mkdir(parents=True, exist_ok=True)
        with (directory / f".{recipe.prepared}.lock").open("w") as file:
            # Cells of one plan may start at once, in several processes; the one who waited finds
            # the files whole.
            take_lock(file)
            prepare(recipe.data, [recipe.format], directory)


def _is_shipped(recipe: PromptRecipe) -> bool:
    return recipe.data.path.partition(":")[0] in plugins.names()


def _missing(recipe: PromptRecipe, directory: Path, *, by_hash: bool) -> str | None:
    folder = directory / recipe.prepared
    fault = _fault(folder, read_json(folder / ABOUT) or {}, recipe.format, by_hash=by_hash)
    return fault and (
        f"the prompts of data '{recipe.data.name}' are not prepared: {fault}. Run `orch data "
        f"prepare SPEC` with the spec of the cell (ORCH_DATA_DIR says where; it is {directory})"
    )


def link(plan_dir: Path, directory: Path | None = None) -> Path | None:
    """Link `data` in a plan's folder to the prepared prompts, after a check of hashes.

    Return the target, or None for a plan that brings its own prompts. A `data` folder that a
    person put in place is left alone and returned. Raise EnvironmentFault if the prompts are
    missing or were changed.
    """
    file = plan_dir / PLAN_FILE
    if not file.exists():
        return None
    recipe = PromptRecipe.model_validate_json(file.read_text(encoding="utf-8"))
    place = plan_dir / "data"
    if place.is_dir() and not place.is_symlink():
        return place
    directory = directory or data_dir()
    if fault := _missing(recipe, directory, by_hash=True):
        raise EnvironmentFault(fault)
    target = directory / recipe.prepared / recipe.format
    link_folder(place, target)
    return target
