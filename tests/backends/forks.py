"""Runs programs, each in a fork of one process that has imported what takes long.

    python forks.py MODULE...     with child.py's protocol: a program, its arguments, folder and
                                  input as a line of JSON, then its exit code, output and errors

A program is text, as for `python -c`, and still has a process, a folder and modules of its own.
"""

import contextlib
import gc
import importlib
import json
import os
import sys
import tempfile
import traceback
from typing import IO


def main() -> None:
    """Answer until the standard input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    sys.path[0] = ""  # as of `python -c`, not the folder of this file
    for name in sys.argv[1:]:
        importlib.import_module(name)
    gc.freeze()
    for line in sys.stdin:
        program, arguments, folder, given = json.loads(line)
        with contextlib.ExitStack() as files:
            into, out, errors = (files.enter_context(tempfile.TemporaryFile()) for _ in range(3))
            into.write(given.encode())
            into.seek(0)
            fork = os.fork()
            if not fork:
                for number, file in enumerate((into, out, errors)):
                    os.dup2(file.fileno(), number)
                sys.stdin = os.fdopen(0, encoding="utf-8")
                os.chdir(folder)
                become(program, arguments)
            _, status = os.waitpid(fork, 0)
            ended = (os.waitstatus_to_exitcode(status), text_of(out), text_of(errors))
        answers.write(f"ANSWER {json.dumps(ended)}\n")
        answers.flush()


def become(program: str, arguments: "list[str]") -> None:
    """Be `python -c PROGRAM ARGUMENTS`, and end."""
    sys.argv = ["-c", *arguments]
    code = 1
    try:
        exec(program, {"__name__": "__main__"})  # noqa: S102  (what a test of ours asks)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def text_of(file: IO[bytes]) -> str:
    """Return all that was written into a file."""
    file.seek(0)
    return file.read().decode(errors="replace")


if __name__ == "__main__":
    main()
