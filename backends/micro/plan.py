"""Translate a cell to a launch of the embedded trainer, and read such a launch back."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import get_args

from pydantic import ValidationError

from backends.micro.shipped import PREFIX, names
from backends.micro.skills import ANSWER_TOKENS, NUM_TRAIN_PROBLEMS, PROMPT_TOKENS, SKILLS
from backends.micro.version import VERSION, dialect
from orchestrator.errors import Fault, SpecError, UnsupportedSetting
from orchestrator.estimators import choices
from orchestrator.identity import flatten
from orchestrator.kl.differences import DIFFERENCES, describe, differing
from orchestrator.kl.library_semantics import PLAIN
from orchestrator.records import AttemptPaths, Cell, LaunchPlan, LedgerEntry
from orchestrator.settings import AdvantageEstimator, LossAggregation, Placement, Settings

ENTRY = "backends.micro.train:run"
CELL = "cell.json"
LONGEST_RESPONSE = 56
"""The positions that a prompt leaves, of the embedded policies' 64."""

CAPABILITIES: Mapping[str, Sequence[object]] = {
    "model.path": tuple(PREFIX + name for name in names()),
    "data.path": tuple(PREFIX + skill for skill in SKILLS),
    "data.split": ("train",),
    "data.num_prompts": (None, NUM_TRAIN_PROBLEMS),
    "data.instruction": ("",),
    "data.reward": ("exact",),
    "advantage.estimator": get_args(AdvantageEstimator),
    "loss.aggregation": get_args(LossAggregation),
    "kl.estimator": choices(),
    "kl.placement": (None, *get_args(Placement)),
    "optimizer.schedule": ("constant", "linear", "cosine"),
}
_RANGES = {
    "data.max_prompt_tokens": (PROMPT_TOKENS, sys.maxsize),
    "rollout.max_response_tokens": (ANSWER_TOKENS, LONGEST_RESPONSE),
    "batch.num_prompts": (1, NUM_TRAIN_PROBLEMS),
}

_ADVICE = {
    "model.path": "Leave backend.name to the site: a rehearsal chooses the policy by itself.",
    "data.path": "Leave backend.name to the site: a rehearsal chooses the skill by itself.",
    "data.reward": "Set data.reward=exact: an embedded answer is right or wrong as a whole.",
}
_NOTES = {
    "model.chat_template": "the embedded policies have none; a prompt is given as it is",
    "data.max_prompt_tokens": f"every prompt has {PROMPT_TOKENS} tokens",
    "data.num_prompts": f"the split has {NUM_TRAIN_PROBLEMS} prompts",
    "advantage.estimator": "over the shaped reward of the response, one advantage for all its "
    "tokens; grpo divides by the unbiased standard deviation + 1e-6",
    "kl.estimator": "log-probabilities at rollout.temperature, over the whole vocabulary, "
    "not clamped",
    "backend.version": "what it names after a + is another library's way",
    "kl.placement": "in the reward: summed over the response, of the rollout policy, subtracted "
    "before the group baseline (as verl does); in the loss: of the policy, aggregated as the "
    "policy loss is",
    "kl.beta": "0 leaves the term out: the run is bit for bit that of estimator none",
    "kl.reset_reference_every_steps": "at the end of the rollout batch in which it falls due",
    "rollout.top_p": "truncates sampling only; log-probabilities are of the whole distribution",
    "batch.num_minibatches": "equal parts of the rollout batch by prompt, each used once",
    "max_staleness_steps": "rollouts are sampled from the policy of exactly this many train steps "
    "before their rollout batch, or the first; one process, nothing runs concurrently",
    "seed": "seeds prompts and sampling by (seed, number of the rollout batch)",
}


def translate(cell: Cell, place: AttemptPaths) -> LaunchPlan:
    """Return the launch of a cell. Raise UnsupportedSetting for a field that cannot be trained."""
    leaves = dict(flatten(cell.settings.model_dump()))
    check(leaves)
    version = cell.settings.backend.version or VERSION
    return LaunchPlan(
        cell_id=cell.id,
        backend="micro",
        version=version,
        argv=(
            sys.executable,
            "-m",
            "backends.micro",
            str(place.plan_dir / CELL),
            "--plan-dir",
            str(place.plan_dir),
            "--attempt-dir",
            str(place.attempt_dir),
            "--checkpoints-dir",
            str(place.checkpoints_dir),
        ),
        files={CELL: cell.model_dump_json() + "\n"},
        ledger=tuple(_entry(field, value, version) for field, value in leaves.items()),
        entry=ENTRY,
    )


def check(leaves: Mapping[str, object]) -> None:
    """Raise UnsupportedSetting for the first field that the trainer cannot express."""
    version = leaves["backend.version"]
    dialect(None if version is None else str(version))
    for field, offered in CAPABILITIES.items():
        if leaves[field] not in offered:
            advice = _ADVICE.get(field, f"Set {field}={offered[0]!s}.")
            raise UnsupportedSetting("micro", field, leaves[field], offered, advice)
    for field, (low, high) in _RANGES.items():
        value = leaves[field]
        if not (isinstance(value, int) and low <= value <= high):
            upto = f" to {high}" if high < sys.maxsize else " or more"
            raise UnsupportedSetting(
                "micro", field, value, (f"{low}{upto}",), f"Set {field} within that range."
            )


@cache
def _entry(field: str, value: object, version: str) -> LedgerEntry:
    return LedgerEntry(
        field=field,
        status="exact",
        key=f"settings.{field}",
        value=str(value),
        note=_note(field, version),
    )


def _note(field: str, version: str) -> str:
    """Return the differences of the version's dialect in a field, else the field's own note."""
    told = dialect(version)
    meant = [
        f"{DIFFERENCES[cause].title}: {describe(told, cause)}"
        for cause in differing(told, PLAIN)
        if field in DIFFERENCES[cause].settings
    ]
    return "; ".join(meant) or _NOTES.get(field, "")


def parse(argv: Sequence[str], files: Mapping[str, str]) -> Settings:
    """Return the settings of a launch. `files`: name -> text. Raise SpecError with every fault."""
    name = next((Path(arg).name for arg in argv if arg.endswith(".json")), CELL)
    if name not in files:
        raise SpecError(name, [Fault(f"the launch names {name}, which is not among its files")])
    return parse_cell(name, files[name]).settings


def parse_cell(name: str, text: str) -> Cell:
    """Return the cell in the text of file `name`. Raise SpecError with every fault."""
    try:
        return Cell.model_validate_json(text)
    except ValidationError as error:
        raise SpecError(name, _faults(error)) from error


def _faults(error: ValidationError) -> Iterator[Fault]:
    for each in error.errors():
        where = "".join(f".{part}" for part in each["loc"])
        yield Fault(f"{each['msg']}, got {str(each['input'])[:80]!r}", f"${where}")
