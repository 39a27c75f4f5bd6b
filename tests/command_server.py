"""A process that has imported what commands import, and forks for each command.

Half a second of a command's processor time is imports, two where it opens MLflow. A command here is
still a process of its own, with its own folder, environment, output and exit code. It reads one
line of JSON for each command and answers with its exit code.
"""

import gc
import json
import os
import runpy
import sys
from importlib import import_module

from orchestrator.cli import COMMANDS

MODULE_NAMES = {"import": "import_"}
ALWAYS = ("hydra", "numpy", "scipy.special")
MLFLOW = ("mlflow.tracking", "mlflow.store.tracking.sqlalchemy_store")
DRAWING = ("vl_convert",)
ALSO = {
    "run": (*MLFLOW, *DRAWING),
    "collect": MLFLOW,
    "report": DRAWING,
    "verify": DRAWING,
}
"""Command -> heavy libraries that it imports in its course."""


def main() -> None:
    """Answer requests until the standard input ends."""
    requests, answers = os.fdopen(os.dup(0), "r"), os.fdopen(os.dup(1), "w")
    with open(os.devnull, "r+b") as nothing:  # noqa: PTH123
        os.dup2(nothing.fileno(), 0)
        os.dup2(nothing.fileno(), 1)
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"  # it would start threads
    for name in (*(f"orchestrator.cli.{MODULE_NAMES.get(c, c)}" for c in COMMANDS), *ALWAYS):
        import_module(name)
    gc.freeze()
    for line in requests:
        request = json.loads(line)
        arguments = request["arguments"]
        for name in ALSO.get(arguments[0] if arguments else "", ()):
            import_module(name)
        child = os.fork()
        if not child:
            requests.close()
            answers.close()
            become(request)
            return
        _, status = os.waitpid(child, 0)
        answers.write(f"{os.waitstatus_to_exitcode(status)}\n")
        answers.flush()


def become(request: "dict[str, object]") -> None:
    """Be `python -m orchestrator ARGUMENTS` in the folder, with the environment and the files."""
    os.chdir(str(request["folder"]))
    os.environ.clear()
    os.environ.update(request["environment"])  # type: ignore[call-overload]  # JSON
    for number, name in ((1, "stdout"), (2, "stderr")):
        sink = os.open(str(request[name]), os.O_WRONLY | os.O_APPEND)
        os.dup2(sink, number)
        os.close(sink)
    sys.path[0] = str(request["folder"])
    sys.argv = ["orch", *request["arguments"]]  # type: ignore[misc]  # JSON
    runpy.run_module("orchestrator", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
