"""Try a reward of the user's own before anything trains: three rows, in a child with limits.

The child is a Python of its own in an empty folder, without the environment's secrets, with limits
on time, memory and files. It protects against mistakes and not against malice: the file runs with
its user's rights, here as in the launch.
"""

import json
import os
import resource
import subprocess
import sys
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from orchestrator.data.prepared import data_dir
from orchestrator.errors import EnvironmentFault
from orchestrator.library.prompt_recipe import FORMATS, of_plan
from orchestrator.records import LaunchPlan
from orchestrator.scoring import PACKAGE, is_own

ROWS = 3
SECONDS = 120
MEMORY = 8 * 2**30
FILE_BYTES = 64 * 2**20
_PROGRAM = f"""
import json, sys
sys.path.insert(0, ".")
from importlib import import_module
rule, rows = json.load(sys.stdin)
score = import_module("{PACKAGE}").reward_function(rule)
print("\\nREWARDS", json.dumps([score(text, label) for text, label in rows]))
"""
_PASSED_ON = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "LD_LIBRARY_PATH")


class Trial(NamedTuple):
    """A reward of the user's own on the first rows, with each row's own answer as the response."""

    rule: str
    rewards: tuple[float, ...]

    def __str__(self) -> str:
        listed = ", ".join(f"{value:g}" for value in self.rewards)
        return f"{self.rule}: {listed} for the answers of the first {len(self.rewards)} rows"


def try_reward(
    plan: LaunchPlan, python: Path | None = None, directory: Path | None = None
) -> Trial | None:
    """Return what the reward of a launch gives the first rows; None for a rule of orch's.

    python: that of the trainer's environment, whose packages the file may import. Raise
    EnvironmentFault if it fails, takes too long, or the prompts are not prepared.
    """
    recipe = of_plan(plan.files)
    if recipe is None or not is_own(recipe.data.reward):
        return None
    rule = recipe.data.reward
    labels = _labels((directory or data_dir()) / recipe.prepared, recipe.format)
    rows = [(_text(json.loads(label)["answer"]), label) for label in labels]
    with TemporaryDirectory(prefix="orch-reward-") as scratch:
        for name, text in plan.files.items():
            if name.startswith(f"{PACKAGE}/"):
                path = Path(scratch) / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
        environment = {key: os.environ[key] for key in _PASSED_ON if key in os.environ}
        try:
            done = subprocess.run(
                [python or sys.executable, "-I", "-c", _PROGRAM],
                input=json.dumps([rule, rows]),
                capture_output=True,
                text=True,
                check=False,
                cwd=scratch,
                env=environment,
                timeout=SECONDS,
                preexec_fn=_limit,
            )
        except subprocess.TimeoutExpired as error:
            raise EnvironmentFault(
                f"the reward {rule} took more than {SECONDS} s for {len(rows)} rows"
            ) from error
    _, marked, answer = done.stdout.rpartition("\nREWARDS ")
    if done.returncode or not marked:
        last_line = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        where = [line.strip() for line in done.stderr.splitlines() if "own_code.py" in line][-1:]
        place = f" ({where[0].partition(', ')[2]})" if where else ""
        raise EnvironmentFault(f"the reward {rule} fails on the first rows{place}: {last_line}")
    return Trial(rule, tuple(json.loads(answer)))


def _limit() -> None:
    for name, most in (("CPU", SECONDS), ("AS", MEMORY), ("FSIZE", FILE_BYTES), ("CORE", 0)):
        resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (most, most))


def _text(answer: object) -> str:
    return answer if isinstance(answer, str) else json.dumps(answer)


def _labels(folder: Path, prompts_format: str) -> list[str]:
    """Return the labels of the first prepared rows."""
    file = folder / prompts_format / FORMATS[prompts_format][0]
    if not file.is_file():
        raise EnvironmentFault(
            f"the reward cannot be tried, because {file} does not exist: `orch data prepare SPEC` "
            "prepares the prompts"
        )
    if file.suffix == ".parquet":
        import pyarrow.parquet as pq

        plain: list[Mapping[str, Any]] = pq.read_table(file).slice(0, ROWS).to_pylist()
        return [row["reward_model"]["ground_truth"] for row in plain]
    with file.open(encoding="utf-8") as lines:
        read = [json.loads(line) for line in islice(lines, ROWS)]
    return [row.get("label", row.get("answer")) for row in read]
