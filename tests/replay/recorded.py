"""The log files of one run of each library, and the same files with other numbers.

records/<library>/ holds the files of an attempt as the library itself wrote them, compressed, and
about.json: the release, the cell, each file's hash, and the files of a checkpoint.
tests/replay/test_records.py makes them again. Only numbers are replaced: no name, no line and no
order of lines is made here.
"""

import gzip
import hashlib
import json
import math
import re
import shutil
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from orchestrator.records import AttemptPaths

FOLDER = Path(__file__).parent / "records"
LARGEST = 200_000
"""Most bytes of a recorded file."""
Values = Mapping[str, float | None]
"""What is planted at a step: reward, validation, entropy, gradient, length, kl. None: not a number.
A missing name keeps what was recorded; without `validation` there was no validation at that step.
"""
Steps = Mapping[int, Values]
"""Rollout batch, counted from 1, -> what it logs. 0: a validation before training."""


class Record(NamedTuple):
    """What was recorded of a library."""

    library: str
    release: str
    files: Mapping[str, bytes]
    """Path in the attempt -> content."""
    checkpoint: Sequence[str]
    """Files in the folder of checkpoints, with {} for the number in a checkpoint's name."""


@cache
def record(library: str) -> Record:
    """Return what was recorded of a library. Raise AssertionError if a file is not as it was."""
    about = json.loads((FOLDER / library / "about.json").read_text(encoding="utf-8"))
    files = {}
    for name, known in about["files"].items():
        packed = (FOLDER / library / known["packed"]).read_bytes()
        files[name] = gzip.decompress(packed)
        assert hashlib.sha256(files[name]).hexdigest() == known["sha256"], name
    return Record(library, about["release"], files, about["checkpoint"])


def keep(
    library: str, release: str, attempt_dir: Path, checkpoints_dir: Path, **about: Any
) -> None:
    """Keep what a run left, as the record of its library. Its folder is called /run there."""
    home = FOLDER / library
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    files = {}
    for path in logs_of(library, attempt_dir):
        name = path.relative_to(attempt_dir).as_posix()
        content = path.read_bytes().replace(str(attempt_dir.parents[1]).encode(), b"/run")
        packed = f"{path.name}.gz"
        (home / packed).write_bytes(gzip.compress(content, mtime=0))
        assert (home / packed).stat().st_size <= LARGEST, name
        files[name] = {"packed": packed, "sha256": hashlib.sha256(content).hexdigest()}
    plain = {"release": release, **about, "files": files, "checkpoint": tree(checkpoints_dir)}
    (home / "about.json").write_text(json.dumps(plain, indent=1) + "\n", encoding="utf-8")


_LOGS = {
    "verl": ("verl.x*.jsonl",),
    "trl": ("trl.jsonl",),
    "openrlhf": ("tensorboard/**/events.out.tfevents.*",),
    "skyrl": ("tensorboard-x*/events.out.tfevents.*",),
    "prime_rl": ("logs/trainer.stdout", "logs/orchestrator.stdout"),
}


LIBRARIES = tuple(_LOGS)


def logs_of(library: str, attempt_dir: Path) -> list[Path]:
    """Return the files of an attempt in which a library logs its metrics."""
    return sorted(path for pattern in _LOGS[library] for path in attempt_dir.glob(pattern))


_PASSING = {"torchrun", "rollouts", "broadcasts", "logs", "configs", "control"}
"""Folders of what Prime-RL's processes tell each other."""


def tree(checkpoints_dir: Path) -> list[str]:
    """Return the files of the last checkpoints, with {} for the number in a checkpoint's name."""
    names = [p.relative_to(checkpoints_dir).as_posix() for p in checkpoints_dir.rglob("*")]
    files = [
        n for n in names if (checkpoints_dir / n).is_file() and not _PASSING & set(n.split("/"))
    ]
    of_last = (re.sub(r"(step[_-]?|checkpoint-)20(?!\d)", r"\1{}", name) for name in files)
    return sorted(name for name in of_last if not re.search(r"(step[_-]?|checkpoint-)\d", name))


# ---------------------------------------------------------------- the same files, other numbers


def attempt(library: str, attempt_dir: Path, steps: Steps, updates: int = 1) -> None:
    """Write what an attempt leaves: job.json, and the logs."""
    home = attempt_dir.parents[1]
    log = str(attempt_dir / f"verl.x{updates}.k1.jsonl") if library == "verl" else ""
    replay(
        library, AttemptPaths(home / "plan", attempt_dir, home / "checkpoints"), log, steps, updates
    )
    (attempt_dir / "job.json").write_text(json.dumps({"started": FIRST_SECOND}))


def replay(library: str, place: AttemptPaths, log_path: str, steps: Steps, updates: int) -> None:
    """Write the logs of an attempt: the recorded ones, with planted numbers.

    log_path: the path of verl's log, which its launch names. updates: train steps in a rollout
    batch, which are in the other libraries' folder names.
    """
    for name, content in record(library).files.items():
        target = Path(log_path or place.attempt_dir / name.replace("-x1/", f"-x{updates}/"))
        target.parent.mkdir(parents=True, exist_ok=True)
        rewrite = _events if _is_binary(content) else _text
        target.write_bytes(rewrite(library, content, steps))


_PLANTED: Mapping[str, Mapping[str, str]] = {
    "verl": {
        "critic/score/mean": "reward",
        "critic/rewards/mean": "reward",
        "val-core/copy/acc/mean@1": "validation",
        "val-aux/copy/reward/mean@1": "validation",
        "actor/entropy": "entropy",
        "actor/grad_norm": "gradient",
        "response_length/mean": "length",
        "actor/reward_kl_penalty": "kl",
        "step": "step",
        "training/global_step": "step",
    },
    "trl": {
        "rewards/task_reward/mean": "reward",
        "reward": "reward",
        "eval_rewards/task_reward/mean": "validation",
        "entropy": "entropy",
        "grad_norm": "gradient",
        "completions/mean_length": "length",
        "kl": "kl",
        "step": "step",
        "time": "time",
    },
    "openrlhf": {
        "train/rollout/reward_mean": "reward",
        "train/reward": "reward",
        "eval/eval_default_pass1": "validation",
        "train/entropy_loss": "entropy",
        "train/actor_grad_norm": "gradient",
        "train/rollout/response_length_mean": "length",
        "train/kl": "kl",
        "train/logprobs_diff": "kl",
    },
    "skyrl": {
        "reward/avg_raw_reward": "reward",
        "eval/all/avg_score": "validation",
        "eval/copy/avg_score": "validation",
        "policy/policy_entropy": "entropy",
        "policy/grad_norm": "gradient",
        "generate/avg_num_tokens": "length",
        "loss/avg_kl": "kl",
    },
    "prime_rl": {
        "Reward": "reward",
        "Entropy": "entropy",
        "Grad. Norm": "gradient",
        "Step": "step",
        "checkpoint step": "policy",
        "Avg@1": "validation",
        "Pass@1": "validation",
        "\x1b[2m": "clock",
    },
}
"""The library's name -> what is planted there. Written by hand from the records, not from readers.
"""
FEW = 4
"""The recorded steps of an event file that are repeated: what no cell changes is made once."""
_NOT_A_NUMBER = {"verl": "null", "trl": "NaN", "prime_rl": "nan"}
FIRST_SECOND, STEP_SECONDS = 1.79e9, 40.0
"""Unix time of step 0, and the time of a step."""


def _text(library: str, content: bytes, steps: Steps) -> bytes:
    """Return lines of JSON or of a console with planted numbers."""
    before, rows = _text_rows(library, content.decode())
    nan = _NOT_A_NUMBER[library]
    out = [re.sub(r"(?<=\x1b\[2m)[\d:]{8}", _clock(min(steps, default=1) - 1), before)]
    for number, (step, values) in enumerate(sorted(steps.items())):
        shown = {name: nan if value is None else f"{value:.6g}" for name, value in values.items()}
        shown |= {"step": str(step - (library == "prime_rl")), "policy": str(step)}
        shown["clock"] = _clock(step)
        shown |= {"time": f"{FIRST_SECOND + STEP_SECONDS * step:.3f}"}
        for kinds in _choice(frozenset(rows), values):
            row, known = rows[kinds][number % len(rows[kinds])]
            out.append(row % {**known, **shown})
    return "".join(out).encode()


def _clock(step: int) -> str:
    return time.strftime("%H:%M:%S", time.gmtime(FIRST_SECOND + STEP_SECONDS * step))


def _choice(recorded: frozenset[frozenset[str]], values: Values) -> Iterator[frozenset[str]]:
    """Yield the kinds of recorded rows that together have what a step logs."""
    wanted = frozenset({"reward", "validation"} & values.keys())
    if "reward" in values and recorded == {frozenset()}:  # a log beside that of the reward
        yield frozenset()
    parts = sorted((k for k in recorded if k and k <= wanted), key=lambda k: "validation" in k)
    yield from [wanted] if wanted in recorded else parts


TextRow = tuple[str, Mapping[str, str]]
"""A line with places for numbers, `%(reward)s`, and what was recorded there."""


@cache
def _text_rows(library: str, text: str) -> tuple[str, Mapping[frozenset[str], list[TextRow]]]:
    """Return what stands before the first row, and the rows by the kinds of what they log."""
    names = _PLANTED[library]
    either = "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True))
    number = r"[-+]?[\d.]+(?:[eE][-+]?\d+)?|null|NaN|nan"
    shape = rf'("(?:{either})": ?)({number})(?=[,}}])'
    if library == "prime_rl":
        shape = rf"((?:{either})(?:: | |=)|\x1b\[2m)((?<=2m)[\d:]+|{number})(?=[ \n,)]|\x1b|$)"
    before, rows = "", dict[frozenset[str], list[TextRow]]()
    known: dict[str, str] = {}

    def place(match: re.Match[str]) -> str:
        slot = names[match[1].strip('":= ')]
        known[slot] = match[2]
        return f"{match[1]}%({slot})s"

    row = ""
    for line in text.splitlines(keepends=True):
        if "policy" not in known:  # else an evaluation of Prime-RL, of several lines, goes on
            row, known = "", {}
        shown = re.sub(shape, place, line.replace("%", "%%"))
        row += shown if not row or "valuat" in line else ""
        kinds = frozenset(known.keys() & {"reward", "validation"})
        if kinds or (library == "prime_rl" and "step" in known):
            rows.setdefault(kinds, []).append((row, known))
            row, known = "", {}
        elif not rows and "policy" not in known:
            before += line
    return before, rows


def _is_binary(content: bytes) -> bool:
    return b"brain.Event" in content[:64]


def kinds(library: str, content: bytes) -> set[str]:
    """Return which of reward and validation a log holds."""
    _, rows = (
        _event_rows(library, content)
        if _is_binary(content)
        else _text_rows(library, content.decode())
    )
    return {kind for each in rows for kind in each}


class Event(NamedTuple):
    """A scalar in an event file, without time and step."""

    tag: str
    rest: bytes
    """Its summary. The last four bytes are the number."""


def _events(library: str, content: bytes, steps: Steps) -> bytes:
    """Return an event file with planted numbers. Checksums are 0: orch reads none."""
    head, rows = _event_rows(library, content)
    names, parts = _PLANTED[library], [head]
    for number, (step, values) in enumerate(sorted(steps.items())):
        # a varint of two bytes, also for small steps
        when = struct.pack(
            "<BdBBB", 9, FIRST_SECOND + STEP_SECONDS * step, 16, step & 127 | 128, step >> 7
        )
        planted = {
            slot: struct.pack("<f", math.nan if value is None else value)
            for slot, value in values.items()
        }
        for kinds in _choice(frozenset(rows), values):
            for event in rows[kinds][number % len(rows[kinds])]:
                value = planted.get(names.get(event.tag, ""), event.rest[-4:])
                body = when + event.rest[:-4] + value
                parts += (struct.pack("<Q", len(body)), bytes(4), body, bytes(4))
    return b"".join(parts)


@cache
def _event_rows(
    library: str, content: bytes
) -> tuple[bytes, Mapping[frozenset[str], list[list[Event]]]]:
    """Return the file's first record, and the events of each step by the kinds of what they log."""
    steps: dict[int, list[Event]] = {}
    head, at = b"", 0
    while at < len(content):
        (size,) = struct.unpack_from("<Q", content, at)
        event, end = content[at + 12 : at + 12 + size], at + 16 + size
        summary = event.find(b"\x2a", 9)
        step = event[10] if event[9:10] == b"\x10" else 0  # fewer than 128 steps were recorded
        if summary < 0 or event[-5] != 0x15:
            head = head or content[at:end]  # the file's version; texts and hyperparameters go
        else:
            steps.setdefault(step, []).append(Event(_tag(event[summary:]), event[summary:]))
        at = end
    rows: dict[frozenset[str], list[list[Event]]] = {}
    for own in steps.values():
        kinds = frozenset(
            {_PLANTED[library].get(e.tag, "") for e in own} & {"reward", "validation"}
        )
        if kinds:
            rows.setdefault(kinds, []).append(own)
    return head, {kinds: same[-FEW:] for kinds, same in rows.items()}


def _tag(summary: bytes) -> str:
    """Return the tag of a summary of one short scalar: 2a, size, 0a, size, 0a, size, tag."""
    assert summary[0:5:2] == b"\x2a\x0a\x0a", summary
    return summary[6 : 6 + summary[5]].decode()


# ---------------------------------------------------------------- checkpoints


def checkpoint(library: str, checkpoints_dir: Path, batch: int, updates: int) -> None:
    """Write the files of a checkpoint under the recorded names, as small as their kinds can be."""
    for name in record(library).checkpoint:
        target = checkpoints_dir / re.sub(r"(^|-)x1/", rf"\1x{updates}/", name).format(batch)
        target.parent.mkdir(parents=True, exist_ok=True)
        if "latest" in target.name:
            target.write_text(str(batch))
        elif not target.exists():
            target.write_bytes(_SMALLEST.get(target.suffix, b"-"))


_ZIP = b"PK\x05\x06" + bytes(18)
_TENSORS = json.dumps({"w": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}}).encode()
_SMALLEST = {
    ".json": b"{}",
    ".safetensors": struct.pack("<Q", len(_TENSORS)) + _TENSORS + b"\0",
    **dict.fromkeys((".pt", ".pth", ".bin"), _ZIP),
}
