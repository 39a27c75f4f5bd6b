"""Rows of a data set: from the Hub or a file through `datasets`, or from the generator; checked."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from pydantic import ValidationError

from orchestrator import plugins
from orchestrator.data import generate
from orchestrator.data.gym_problems import GYM, gym_problems
from orchestrator.environments.extras import install_line
from orchestrator.errors import EnvironmentFault, Fault, SelectionError, SpecError, did_you_mean
from orchestrator.scoring import is_own
from orchestrator.scoring.math_answers import extract
from orchestrator.settings import Data

QUESTION, ANSWER = ("question", "problem", "prompt"), ("answer", "solution", "metadata", "label")
"""Columns that are looked for, in this order."""
KINDS = {".jsonl": "json", ".json": "json", ".parquet": "parquet"}


class PromptRow(NamedTuple):
    """One prompt and its answer."""

    question: str
    """Without the instruction."""
    answer: str
    """The answer that the reward compares with: an answer without its box, JSON, or a text."""


class PromptRows(NamedTuple):
    """The prompts of a data set, for training and for validation."""

    train: list[PromptRow]
    validation: list[PromptRow]
    origin: str
    """For people: where they came from."""

    @property
    def num_shared(self) -> int:
        """Return the number of validation prompts that are training prompts too."""
        trained = {row.question for row in self.train}
        return sum(row.question in trained for row in self.validation)

    @property
    def digest(self) -> str:
        """Return a digest of the content of all rows."""
        # A text may hold half of a surrogate pair, which plain UTF-8 refuses.
        text = json.dumps([self.train, self.validation], ensure_ascii=False)
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def rows(data: Data, roots: Sequence[Path]) -> PromptRows:
    """Return the rows of a data set. A relative file is looked for in `roots`.

    Raise SpecError with every difference from what is declared or known of the data set, and
    EnvironmentFault if the data set cannot be read.
    """
    if (shipped := plugins.shipped_prompts(data.path, data.num_prompts)) is not None:
        train, held_out = ([PromptRow(*pair) for pair in part] for part in shipped)
        return _checked(data, PromptRows(train, held_out, data.path))
    if data.path.startswith(GYM):
        return _checked(data, _from_gym(data))
    if data.reward == "reasoning_gym":
        raise EnvironmentFault(
            f"reward reasoning_gym scores problems of data.path {GYM}<dataset>; got {data.path}"
        )
    if Path(data.path).suffix not in KINDS:
        return _checked(data, _from_hub(data))
    file = next((root / data.path for root in roots if (root / data.path).exists()), None)
    if file is not None:
        return _checked(data, _from_file(data, file))
    if data.reward == "countdown":
        return _checked(data, _generated(data))
    where = " or ".join(str(root) for root in roots)
    raise EnvironmentFault(f"data.path {data.path} is a file that is not in {where}")


def entry(name: str, group: Path) -> Data:
    """Return an entry of a config group `data`. Raise SelectionError for an unknown name, and
    SpecError with every fault of the entry."""
    file = group / f"{name}.yaml"
    if not file.is_file():
        known = sorted(path.stem for path in group.glob("*.yaml"))
        raise SelectionError(
            f"there is no data '{name}' in {group}{did_you_mean(name, known)} "
            f"(it has: {', '.join(known) or 'nothing'}). Name one of them, or a spec"
        )
    try:
        return Data.model_validate({"name": name, **yaml.safe_load(file.read_text("utf-8"))})
    except (yaml.YAMLError, TypeError) as error:
        raise SpecError(str(file), [Fault(f"is no YAML of fields: {error}")]) from error
    except ValidationError as error:
        faults = [
            Fault(f"{e['msg']}, got {e['input']!r}", f"$.{'.'.join(map(str, e['loc']))}")
            for e in error.errors()
        ]
        raise SpecError(str(file), faults) from error


@cache
def known() -> Mapping[str, Mapping[str, Any]]:
    """Return the known facts on data sets of the Hub: columns, sizes, validation split, source."""
    text = Path(__file__).with_name("known.json").read_text(encoding="utf-8")
    facts: Mapping[str, Mapping[str, Any]] = json.loads(text)
    return facts


def num_validation(data: Data) -> int | None:
    """Return the number of validation prompts that is known of a data set without its rows."""
    facts = known().get(data.path, {})
    if facts:
        return int(facts["splits"][facts["validation"]])
    generated = data.reward == "countdown" and not Path(data.path).exists()
    return generate.NUM_VALIDATION if generated or data.path.startswith(GYM) else None


def _from_gym(data: Data) -> PromptRows:
    """Return problems of one of reasoning-gym's data sets, with what its scorer needs of each."""
    if data.reward != "reasoning_gym" and not is_own(data.reward):
        raise EnvironmentFault(
            f"problems of {data.path} are scored by their own scorer: set data.reward to "
            f"reasoning_gym, or to a file of your own; got {data.reward}"
        )
    name = data.path.removeprefix(GYM)

    def made(seed: int, count: int) -> list[PromptRow]:
        return [
            PromptRow(
                entry["question"].strip(),
                _own_label(entry, entry["answer"])
                if is_own(data.reward)
                else json.dumps({"dataset": name, "row": entry}, ensure_ascii=False),
            )
            for entry in gym_problems(name, seed, count)
        ]

    train = made(generate.TRAIN_SEED, data.num_prompts or generate.NUM_TRAIN)
    held_out = made(generate.VALIDATION_SEED, generate.NUM_VALIDATION)
    return PromptRows(train, held_out, f"{data.path}, made by reasoning-gym")


def _own_label(row: Mapping[str, Any], answer: object) -> str:
    """Return the label of a reward of the user's own: the answer, and the whole row."""
    content = {"answer": answer, "row": dict(row)}
    return json.dumps(content, ensure_ascii=False, default=str)


def _generated(data: Data) -> PromptRows:
    count = data.num_prompts or generate.NUM_TRAIN
    train = generate.problems(count, generate.TRAIN_SEED)
    held_out = generate.problems(generate.NUM_VALIDATION, generate.VALIDATION_SEED, without=train)
    trained, held = ([PromptRow(p.question, p.label) for p in part] for part in (train, held_out))
    return PromptRows(trained, held, "reasoning-gym's generator")


def validation_beside(file: Path) -> Path | None:
    """Return the file with the prompts to validate with, beside the file to train on."""
    beside = (
        file.with_name(name + file.suffix) for name in ("validation", "test") if file.stem != name
    )
    return next((path for path in beside if path.exists()), None)


def _from_file(data: Data, file: Path) -> PromptRows:
    neighbour = validation_beside(file)
    if neighbour is None:
        raise _unusable(
            str(file),
            "has no prompts to validate with: put them beside it, in a file named "
            f"validation{file.suffix}, with the same columns",
        )
    return PromptRows(_read(data, file), _read(data, neighbour), str(file))


def _read(data: Data, file: Path) -> list[PromptRow]:
    datasets = _datasets()
    kind = KINDS[file.suffix]
    try:
        loaded = datasets.load_dataset(kind, data_files=str(file), split="train")
    except Exception as error:
        raise _unusable(str(file), f"cannot be read as {kind}: {_first_line(error)}") from error
    return _rows(data, loaded, str(file))


def _from_hub(data: Data) -> PromptRows:
    facts = known().get(data.path, {})
    validation = str(facts.get("validation", "test" if data.split == "train" else "validation"))
    splits = {name: _split(data.path, name) for name in (data.split, validation)}
    faults = []
    for name, loaded in splits.items():
        size, columns = facts.get("splits", {}).get(name, len(loaded)), loaded.column_names
        wanted = facts.get("columns", columns)
        what = f"split {name} of {data.path} has"
        if len(loaded) != size:
            faults.append(f"{what} {len(loaded)} rows, not the {size} that {facts['source']} names")
        if not set(wanted) <= set(columns):
            faults.append(
                f"{what} the columns {', '.join(columns)}, not {', '.join(wanted)} as "
                f"{facts['source']} says"
            )
    if faults:
        raise _unusable(data.path, *(f"{fault}: the data set changed" for fault in faults))
    train, held_out = (_rows(data, loaded, data.path) for loaded in splits.values())
    return PromptRows(train, held_out, f"{data.path} of the Hub")


def _unusable(where: str, *faults: str, field: str = "path") -> SpecError:
    return SpecError(where, [Fault(fault, f"$.data.{field}") for fault in faults])


def _split(path: str, split: str) -> Any:
    datasets = _datasets()
    try:
        return datasets.load_dataset(path, split=split)
    except ValueError as error:
        fault = f"has no split {split}: {_first_line(error)}"
        raise _unusable(path, fault, field="split") from error
    except Exception as error:
        raise EnvironmentFault(
            f"{path} (split {split}) cannot be had from the Hub: {type(error).__name__}: "
            f"{_first_line(error)}. Run this where there is a network, or fill the cache of "
            "`datasets` there and set HF_HOME, or name a local file as data.path"
        ) from error


def _datasets() -> Any:
    try:
        import datasets
    except ImportError as error:
        raise EnvironmentFault(
            f"data sets are read with `datasets`, which is not installed: {install_line('data')}"
        ) from error
    datasets.disable_progress_bars()
    return datasets


def _rows(data: Data, loaded: Any, where: str) -> list[PromptRow]:
    names = loaded.column_names
    question = next((name for name in QUESTION if name in names), None)
    answer = next((name for name in ANSWER if name in names), None)
    if data.reward == "countdown" and {"numbers", "target"} <= set(names):
        answer = "numbers"
    own = is_own(data.reward)
    needed = {QUESTION: question} if own else {QUESTION: question, ANSWER: answer}
    if missing := [" or ".join(each) for each, column in needed.items() if column is None]:
        raise _unusable(where, *(f"has no column {m}; it has {', '.join(names)}" for m in missing))
    prompts, faults = [], []
    for number, row in enumerate(loaded):
        value: object = row[answer] if answer is not None else None
        if answer == "numbers":
            value = {k: row[k] for k in ("numbers", "target")}
        label = _own_label(row, value) if own else LABELS[data.reward](value)
        text = row[question]
        if not isinstance(text, str) or not text.strip():
            faults.append(f"row {number} has no question")
        elif label is None:
            shown = repr(str(value)[:80])
            faults.append(f"row {number} has no answer that reward {data.reward} can use: {shown}")
        else:
            prompts.append(PromptRow(text.strip(), label))
    if faults:
        more = [f"... and {len(faults) - 5} more rows"] if len(faults) > 5 else []
        raise _unusable(where, *faults[:5], *more)
    return prompts


def _math(value: object) -> str | None:
    """Return the content of a solution's last box, or an answer without a box as it is.

    None if nothing is left.
    """
    if isinstance(value, int | float):
        return str(value)
    if not isinstance(value, str):
        return None
    boxed = extract(value) if "boxed" in value else value.strip()
    return boxed or None


def _countdown(value: object) -> str | None:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except json.JSONDecodeError:
            return None
    if not isinstance(value, Mapping):
        return None
    numbers, target = value.get("numbers"), value.get("target")
    # `type(n) is int`: JSON's true is an int for isinstance(), and no number of the game.
    integers = isinstance(numbers, Sequence) and all(type(n) is int for n in numbers)
    if not numbers or not integers or type(target) is not int:
        return None
    return json.dumps({"numbers": list(numbers), "target": target})


def _exact(value: object) -> str | None:
    return value if isinstance(value, str) and value.strip() else None


LABELS = {"math_boxed": _math, "countdown": _countdown, "exact": _exact}


def _checked(data: Data, prompts: PromptRows) -> PromptRows:
    for name, part in (("train", prompts.train), ("validation", prompts.validation)):
        if not part:
            raise _unusable(data.name, f"{prompts.origin} has no prompts in split {name}")
    if data.num_prompts not in (None, len(prompts.train)):
        raise _unusable(
            data.name,
            f"{prompts.origin} has {len(prompts.train)} prompts in split {data.split}, and the "
            f"spec says {data.num_prompts}: correct data.num_prompts, or find out what changed",
            field="num_prompts",
        )
    return prompts


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), "") or type(error).__name__
