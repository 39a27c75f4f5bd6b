"""Makes an environment: a virtual environment of its own Python, then packages, whole or not.

uv installs where it is found, else pip. What is unfinished has no environment.json, and is begun
anew.
"""

import fcntl
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from orchestrator.environments.lock import Lock
from orchestrator.environments.place import MARKER, Environment, name_of, read
from orchestrator.errors import EnvironmentFault
from orchestrator.files import remove_tree, write_text

Say = Callable[[str], None]


class Step(NamedTuple):
    """Packages installed together."""

    requirements: Sequence[str]
    with_dependencies: bool = False
    from_source: bool = False
    """Built against what is installed already."""
    any_python: bool = False
    """Whatever Python the packages name."""


def steps_of(lock: Lock) -> list[Step]:
    """A lock's packages: those with wheels, then those that are built."""
    any_python = "requires-python" in lock.words("ignores")
    steps = [
        Step(lock.requirements(built=False), any_python=any_python),
        Step(lock.requirements(built=True), from_source=True),
    ]
    return [step for step in steps if step.requirements]


def create(
    lock: Lock, within: Path, *, python: Path | None = None, again: bool = False,
    remake: bool = False, checkout: Path | None = None, say: Say = lambda _text: None,
) -> Environment:  # fmt: skip
    """The environment of a lock, made if it is not there.

    python: an interpreter instead of one found by the lock's releases. checkout: the git repository
    of a library that is on no registry. Raises EnvironmentFault: no such Python, nothing to build
    with, a package that cannot be installed, or one made from another lock in the way (`remake`
    replaces it, `again` replaces any).
    """
    home = within / name_of(lock.library, lock.version, lock.flavour)
    with alone(home):
        there = read(home)
        if there is not None and there.lock == lock.digest and not again:
            say(f"{there.name} is there: {home}")
            return there
        if there is not None and not (again or remake):
            raise EnvironmentFault(
                f"{home} was made from another lock of {there.name} ({there.lock}, this orch's is "
                f"{lock.digest}). Make it again with --again, or another with --dir"
            )
        if lock.words("checkout"):
            _from_checkout(lock, home, checkout, say)
        else:
            _refuse_build_without_cuda(lock)
            fill(home, python or interpreter(lock.words("python")), steps_of(lock), say)
        made = Environment(lock.library, lock.version, lock.flavour, home.absolute(), lock.digest)
        write_text(home / MARKER, json.dumps(made.record() | {"made": time.time()}) + "\n")
    return made


@contextmanager
def alone(home: Path) -> Iterator[None]:
    """Holds others off from making the same environment."""
    try:
        home.parent.mkdir(parents=True, exist_ok=True)
        lock = home.with_name(f"{home.name}.lock").open("w")
    except OSError as error:
        raise EnvironmentFault(
            f"{home.parent} cannot hold environments: {error.strerror}. Choose another folder with "
            "--dir or ORCH_ENVIRONMENTS"
        ) from None
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def fill(home: Path, python: Path, steps: Iterable[Step], say: Say = lambda _text: None) -> None:
    """A new virtual environment of `python` in `home`, and the packages of each step."""
    clear(home)
    say(f"making {home}")
    run([python, "-m", "venv", "--without-pip", home], f"{python} cannot make {home}")
    for step in steps:
        say(f"installing {len(step.requirements)} packages" + (
            " from source: this can take an hour" if step.from_source else ""))  # fmt: skip
        wanted = home / "requirements.txt"
        wanted.write_text("\n".join(step.requirements) + "\n", encoding="utf-8")
        run([*_installer(home, step), "-r", wanted],
            f"{home.name} cannot be made; what is there was left in {home}")  # fmt: skip


def clear(home: Path) -> None:
    """Removes what an earlier making left."""
    if home.exists():
        remove_tree(home)


def _installer(home: Path, step: Step) -> list[object]:
    """uv or pip, told to install into `home`. uv cannot be told to overlook a package's Python."""
    options = [] if step.with_dependencies else ["--no-deps"]
    options += ["--no-build-isolation"] if step.from_source else []
    uv = shutil.which("uv")
    if uv and not step.any_python:
        return [uv, "pip", "install", "-q", "--python", home / "bin" / "python", *options]
    if importlib.util.find_spec("pip") is None:
        raise EnvironmentFault(
            "orch's environment has no pip, and no uv is on PATH: install one of them"
        )
    options += ["--ignore-requires-python"] if step.any_python else []
    pip = [sys.executable, "-m", "pip", "--python", home / "bin" / "python", "install", "-q"]
    return [*pip, "--disable-pip-version-check", *options]


def interpreter(releases: Sequence[str]) -> Path:
    """A Python of one of these releases (`3.12`): orch's own, one on PATH, pyenv's, uv's."""
    if "{}.{}".format(*sys.version_info) in releases:
        return Path(sys.executable)
    for release in releases:
        pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
        on_path = shutil.which(f"python{release}")
        others = sorted(pyenv.glob(f"{release}.*/bin/python"))
        for path in [Path(on_path), *others] if on_path else others:
            if _release(path) == release:
                return path
        if uv := shutil.which("uv"):
            told = subprocess.run(
                [uv, "python", "find", release], capture_output=True, text=True, check=False
            )
            if told.returncode == 0 and _release(told.stdout.strip()) == release:
                return Path(told.stdout.strip())
    raise EnvironmentFault(
        f"this environment needs Python {' or '.join(releases)}, and none was found on PATH. "
        "Install one (uv python install, pyenv, your system's packages), or name one with --python"
    )


def _release(python: str | Path) -> str:
    code = "import sys; print('{}.{}'.format(*sys.version_info))"
    try:
        told = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return told.stdout.strip()


def _refuse_build_without_cuda(lock: Lock) -> None:
    built = lock.words("build")
    home = os.environ.get("CUDA_HOME")
    if built and not shutil.which("nvcc") and not (home and (Path(home) / "bin/nvcc").exists()):
        raise EnvironmentFault(
            f"{', '.join(built)} of {lock.library} {lock.version} are built from source and need "
            "the CUDA compiler; nvcc is not on PATH and CUDA_HOME has none. Load your cluster's "
            "CUDA module and run this on a node like those that train"
        )


def _from_checkout(lock: Lock, home: Path, checkout: Path | None, say: Say) -> None:
    """A library on no registry: its commit, and the versions its own uv.lock says."""
    (commit,), variable = lock.words("checkout"), next(iter(lock.words("variable")), "")
    chosen = checkout or (Path(os.environ[variable]) if os.environ.get(variable) else None)
    uv, git = shutil.which("uv"), shutil.which("git")
    if chosen is None or not uv or not git:
        raise EnvironmentFault(
            f"{lock.library} is on no package registry: its environment is made from a git "
            f"repository of it, at {commit}, by its own uv.lock. "
            + (f"Point to the repository with --checkout or {variable}"
               if chosen is None else "Install uv and git")
        )  # fmt: skip
    clear(home)
    home.mkdir(parents=True)
    source = home / "source"
    wrong = f"{lock.library} {lock.version} cannot be made from {chosen}"
    say(f"checking out {commit[:9]} into {source}")
    run([git, "clone", "-q", "--no-checkout", chosen.absolute(), source], wrong)
    run([git, "-C", source, "checkout", "-q", commit], f"{wrong}: it has no commit {commit}")
    run([git, "-C", source, "submodule", "-q", "update", "--init", "--recursive"], wrong)
    python = " ".join(lock.words("python")[:1])
    say("installing what its uv.lock says")
    run([uv, "sync", "-q", "--frozen", "--all-extras", "--no-dev", "--python", python], wrong,
        cwd=source, env={"UV_PROJECT_ENVIRONMENT": str(home.absolute() / "venv")})  # fmt: skip
    for name in ("bin", "pyvenv.cfg", "lib"):
        (home / name).symlink_to(Path("venv") / name)


def run(
    argv: Sequence[object], wrong: str, *, cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> str:  # fmt: skip
    """A program to its end; its output. Raises EnvironmentFault with its last words."""
    done = subprocess.run(
        [str(each) for each in argv], capture_output=True, text=True, check=False, cwd=cwd,
        env={**os.environ, "PYTHONNOUSERSITE": "1", **(env or {})},
    )  # fmt: skip
    if done.returncode:
        said = "\n".join((done.stderr or done.stdout).strip().splitlines()[-8:])
        raise EnvironmentFault(f"{wrong}:\n{said}")
    return done.stdout
