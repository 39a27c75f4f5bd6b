"""Runs launches of TRL, each in a fork of one process that has imported the library.

    python launches.py     with child.py's protocol: a launch as a line of JSON, then its exit code

Importing TRL takes most of a short training's processor time. A launch here is still a process of
its own, with its own folder, variables and output, and runs the plan's program as a script.
test_real.py, test_program.py and `orch prove` start Python anew.
"""

import gc
import importlib
import json
import os
import runpy
import sys
from pathlib import Path
from typing import Any

IMPORTED = (
    "datasets",
    "torch",
    "transformers.models.llama.modeling_llama",
    "trl.scripts.grpo",
    "trl.scripts.rloo",
    "trl.trainer.grpo_trainer",
    "trl.trainer.rloo_trainer",
)


def main() -> None:
    """Answer until the standard input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for name in IMPORTED:
        importlib.import_module(name)
    gc.freeze()
    for line in sys.stdin:
        launch = json.loads(line)
        fork = os.fork()
        if not fork:
            become(launch)
            return
        _, status = os.waitpid(fork, 0)
        answers.write(f"ANSWER {os.waitstatus_to_exitcode(status)}\n")
        answers.flush()


def become(launch: "dict[str, Any]") -> None:
    """Be `python PROGRAM ARGUMENTS` in the folder, with the variables, writing to the file."""
    os.chdir(launch["folder"])
    os.environ.update(launch["variables"])
    # the one variable of a launch that a library reads while it is imported
    config = importlib.import_module("datasets").config
    config.HF_DATASETS_CACHE = Path(os.environ["HF_DATASETS_CACHE"])
    said = os.open(launch["said"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for number in (1, 2):
        os.dup2(said, number)
    program, *_ = sys.argv = launch["argv"]
    sys.path[0] = str(Path(program).parent)
    runpy.run_path(program, run_name="__main__")


if __name__ == "__main__":
    main()
