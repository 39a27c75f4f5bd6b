"""Ray's workers as forks of one process for each launch, which has imported what takes seconds.

A worker of Ray imports Ray twice, then torch, transformers and the library's other packages: about
4 CPU seconds before its own work. A launch has five to a dozen.
"""

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from orchestrator.launch import processes

FOLDER = Path(__file__).parent
SOCKET = "ORCH_TEST_RAY_FORKS"
MODULES: Mapping[str, tuple[str, ...]] = {
    "openrlhf": ("transformers.models.llama.modeling_llama", "deepspeed", "datasets"),
    "skyrl": ("transformers.models.llama.modeling_llama", "tensordict", "datasets"),
}
"""Library -> packages that its workers import, none of them the library's own: hooks of the launch
act when those are imported."""


@contextlib.contextmanager
def of_library(library: str, variables: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """Yield the variables of a library's launch, whose workers fork if it is in MODULES."""
    if library not in MODULES:
        yield dict(variables)
        return
    with workers_fork(MODULES[library], variables) as changed:
        yield changed


@contextlib.contextmanager
def workers_fork(modules: Sequence[str], variables: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """Yield the variables of a launch whose workers of Ray fork, from those of the launch.

    modules: what their parent has imported.
    """
    python = shutil.which("python", path=variables["PATH"])
    assert python is not None
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "parent"
        search = os.pathsep.join([str(FOLDER), variables["PYTHONPATH"]])
        changed = {**variables, "PYTHONPATH": search, SOCKET: str(path)}
        # It listens before the launch starts: whoever asks early waits for the imports.
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
            listener.listen(64)
            parent = _parent(python, listener.fileno(), modules, changed)
        try:
            yield changed
        finally:
            parent.kill()
            parent.wait()


def _parent(
    python: str, number: int, modules: Sequence[str], variables: Mapping[str, str]
) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [python, FOLDER / "worker_parent.py", str(number), *modules],
        env=variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=[number],
        start_new_session=True,
        preexec_fn=partial(processes.die_with, os.getpid()),
    )
