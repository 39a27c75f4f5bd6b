"""Make an environment from a lock, with uv: a virtual environment, then its packages.

An unfinished environment has no environment.json, and is made again from the start. The module also
resolves a lock for a release, which installs nothing, and checks an environment against its lock.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from orchestrator.environments.lock import (
    MARKER,
    Environment,
    Lock,
    installed,
    lock_of,
    plain_name,
    read_environment,
)
from orchestrator.errors import EnvironmentFault, OrchError
from orchestrator.files import remove_tree, take_lock, write_text

Say = Callable[[str], None]

FOR_ANY_PYTHON = ("--no-deps", "--python-version", "3.12")
"""uv's options for packages that are plain Python: the release that all trainers name, whatever the
environment has."""


class InstallStep(NamedTuple):
    """Packages to install together, and uv's options for them."""

    requirements: Sequence[str]
    options: Sequence[str]


def install_steps(lock: Lock) -> list[InstallStep]:
    """Return a lock's packages: those with wheels, those of any Python, those that are built."""
    alone = {plain_name(word.partition("==")[0]) for word in lock.words("alone")}
    built = {plain_name(word) for word in lock.words("build")}
    steps = (
        (lock.pins.keys() - alone - built, ("--no-deps", *_cpu_builds(lock))),
        (alone, FOR_ANY_PYTHON),
        (built, ("--no-deps", "--no-build-isolation")),
    )
    return [
        InstallStep([f"{name}=={lock.pins[name]}" for name in sorted(names)], options)
        for names, options in steps
        if names
    ]


def _cpu_builds(lock: Lock) -> list[str]:
    """Return uv's option for CPU builds of torch, whose index it knows."""
    configured = any(os.environ.get(name) for name in ("UV_FIND_LINKS", "UV_TORCH_BACKEND"))
    return [] if configured or lock.flavour != "cpu" else ["--torch-backend", "cpu"]


def find_uv() -> str:
    """Return the path of uv. Raise EnvironmentFault without it."""
    uv = shutil.which("uv") or shutil.which("uv", path=str(Path(sys.executable).parent))
    if uv is None:
        raise EnvironmentFault(
            "environments are made by uv, which is neither on PATH nor in orch's own environment: "
            f"{sys.executable} -m pip install uv"
        )
    return uv


def create(
    lock: Lock,
    within: Path,
    *,
    python: Path | None = None,
    again: bool = False,
    checkout: Path | None = None,
    say: Say = lambda _text: None,
) -> Environment:
    """Return the environment of a lock. Make it if it does not exist.

    python: an interpreter instead of one found by the lock's releases. checkout: the git repository
    of a library that is on no registry. Raise EnvironmentFault: no such Python, nothing to build
    with, a package that cannot be installed, or one made from another lock in the way (`again`
    replaces any).
    """
    home = within / lock.folder
    with exclusive(home) as lock_fd:
        existing = read_environment(home)
        if existing is not None and existing.lock == lock.digest and not again:
            say(f"{existing.name} is there: {home}")
            return existing
        if existing is not None and not again:
            raise EnvironmentFault(
                f"{home} was made from another lock of {existing.name} ({existing.lock}, this "
                f"orch's is {lock.digest}). Make it again with --again, or another with --dir"
            )
        repository = _repository(lock, checkout) if lock.words("checkout") else None
        _refuse_build_without_cuda(lock)
        if lock.pins:
            install(home, str(python or _python(lock)), install_steps(lock), lock_fd, say)
        else:
            clear(home)
            home.mkdir(parents=True)
        if repository:
            source = _check_out(lock, home, repository, lock_fd, say)
            add = _add_source if lock.pins else _synchronise
            add(lock, home, source, lock_fd)
        environment = Environment(
            lock.library, lock.version, lock.flavour, home.absolute(), lock.digest
        )
        write_text(home / MARKER, json.dumps(environment.record() | {"made": time.time()}) + "\n")
    return environment


@contextmanager
def exclusive(home: Path) -> Iterator[int]:
    """Keep other processes from making the same environment; yield the descriptor of its lock.

    An installer that is started with the descriptor open keeps the others waiting even when orch is
    killed, so nobody clears the folder that it still writes to.
    """
    try:
        home.parent.mkdir(parents=True, exist_ok=True)
        file = home.with_name(f"{home.name}.lock").open("w")
    except OSError as error:
        raise EnvironmentFault(
            f"{home.parent} cannot hold environments: {error.strerror}. Choose another folder with "
            "--dir or ORCH_ENVIRONMENTS"
        ) from None
    with file:
        take_lock(file)
        yield file.fileno()


def install(
    home: Path,
    python: str,
    steps: Iterable[InstallStep],
    lock_fd: int,
    say: Say = lambda _text: None,
) -> None:
    """Make a new virtual environment of `python` in `home`; install the packages of each step.

    python: a path, or releases as uv has them. lock_fd: the descriptor that `exclusive` yields.
    """
    uv = find_uv()
    clear(home)
    say(f"making {home}")
    wrong = f"{home.name} cannot be made; what is there was left in {home}"
    run([uv, "venv", "-q", "--no-project", "--python", python, home], wrong, lock_fd=lock_fd)
    for requirements, options in steps:
        say(
            f"installing {len(requirements)} packages"
            + (" from source: this can take an hour" if "--no-build-isolation" in options else "")
        )
        wanted = home / "requirements.txt"
        wanted.write_text("\n".join(requirements) + "\n", encoding="utf-8")
        into = ["--python", home / "bin" / "python"]
        run([uv, "pip", "install", "-q", *into, *options, "-r", wanted], wrong, lock_fd=lock_fd)


def clear(home: Path) -> None:
    """Remove the remains of an earlier attempt. Remove the mark of a finished environment first."""
    (home / MARKER).unlink(missing_ok=True)
    if home.exists():
        remove_tree(home)


def _python(lock: Lock) -> str:
    """Return uv's request for a Python of a lock's releases; orch's own, if it is of one."""
    releases = lock.words("python")
    own = "{}.{}".format(*sys.version_info)
    return sys.executable if own in releases else f">={releases[0]},<={releases[-1]}.99"


def _refuse_build_without_cuda(lock: Lock) -> None:
    built = lock.words("build") if lock.flavour == "gpu" else ()
    home = os.environ.get("CUDA_HOME")
    if built and not shutil.which("nvcc") and not (home and (Path(home) / "bin/nvcc").exists()):
        raise EnvironmentFault(
            f"{', '.join(built)} of {lock.library} {lock.version} are built from source and need "
            "the CUDA compiler; nvcc is not on PATH and CUDA_HOME has none. Load your cluster's "
            "CUDA module and run this on a node like those that train"
        )


def _repository(lock: Lock, checkout: Path | None) -> Path:
    """Return the git repository of a library on no registry. Raise EnvironmentFault for none."""
    (commit,), variable = lock.words("checkout"), next(iter(lock.words("variable")), "")
    chosen = checkout or (Path(os.environ[variable]) if os.environ.get(variable) else None)
    if chosen is None:
        raise EnvironmentFault(
            f"{lock.library} is on no package registry: its environment is made from a git "
            f"repository of it, at {commit}. Point to the repository with --checkout or {variable}"
        )
    return chosen


def _check_out(lock: Lock, home: Path, chosen: Path, lock_fd: int, say: Say) -> Path:
    """Check the lock's commit out into a folder of the environment; return the folder."""
    (commit,) = lock.words("checkout")
    source = home / "source"
    wrong = f"{lock.library} {lock.version} cannot be made from {chosen}"
    say(f"checking out {commit[:9]} into {source}")
    run(["git", "clone", "-q", "--no-checkout", chosen.absolute(), source], wrong, lock_fd=lock_fd)
    without_it = f"{wrong}: it has no commit {commit}"
    run(["git", "-C", source, "checkout", "-q", commit], without_it, lock_fd=lock_fd)
    return source


def _add_source(lock: Lock, home: Path, source: Path, _lock_fd: int) -> None:
    """Make a library's package and its programs, from a checkout, known to an environment."""
    [packages] = home.glob("lib/python*/site-packages")
    write_text(packages / f"{lock.library}.pth", f"{source.absolute() / 'src'}\n")
    project = tomllib.loads((source / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for name, target in project.get("scripts", {}).items():
        module, _, function = target.partition(":")
        program = home / "bin" / name
        python = shlex.quote(str(home.absolute() / "bin" / "python"))
        write_text(  # a path with spaces cannot follow #!
            program,
            # The shell reads the second line as `exec python ...`. Python reads it as the start of
            # a text that ends in the third.
            f"#!/bin/sh\n'''exec' {python} \"$0\" \"$@\"\n' '''\nimport sys\n"
            f"from {module} import {function}\nsys.exit({function}())\n",
        )
        program.chmod(0o755)


def _synchronise(lock: Lock, home: Path, source: Path, lock_fd: int) -> None:
    """Install what the uv.lock of a checkout says, with the submodules that it names."""
    wrong = f"{lock.library} {lock.version} cannot be made from its own uv.lock"
    submodules = ["git", "-C", source, "submodule", "-q", "update", "--init", "--recursive"]
    run(submodules, wrong, lock_fd=lock_fd)
    sync = [find_uv(), "sync", "-q", "--frozen", "--all-extras", "--no-dev", "--directory", source]
    run(
        [*sync, "--python", lock.words("python")[0]],
        wrong,
        env={"UV_PROJECT_ENVIRONMENT": str(home.absolute() / "venv")},
        lock_fd=lock_fd,
    )
    # The other environments have these names in `home` itself.
    for name in ("bin", "pyvenv.cfg", "lib"):
        (home / name).symlink_to(Path("venv") / name)


def run(
    argv: Sequence[object],
    wrong: str,
    *,
    env: Mapping[str, str] | None = None,
    lock_fd: int | None = None,
) -> str:
    """Run a program to its end; return its output. Raise EnvironmentFault with its last lines.

    lock_fd: a descriptor that stays open in the program.
    """
    try:
        done = subprocess.run(
            [str(each) for each in argv],
            capture_output=True,
            text=True,
            check=False,
            # A package in the user's own site folder must not stand for one of the lock.
            env={**os.environ, "PYTHONNOUSERSITE": "1", **(env or {})},
            pass_fds=() if lock_fd is None else (lock_fd,),
        )
    except OSError as error:
        raise EnvironmentFault(f"{wrong}: {argv[0]}: {error.strerror}") from None
    if done.returncode:
        last_lines = "\n".join((done.stderr or done.stdout).strip().splitlines()[-8:])
        raise EnvironmentFault(f"{wrong}:\n{last_lines}")
    return done.stdout


METADATA = """
[[dependency-metadata]]
name = "flash-attn"
requires-dist = ["torch", "einops"]
[[dependency-metadata]]
name = "causal-conv1d"
requires-dist = ["torch", "ninja", "packaging"]
"""
"""For uv: what packages need that must be built before they say it themselves."""


def resolve(lock: Lock) -> str:
    """Return the text of the lock with the newest versions that its head allows.

    Raise EnvironmentFault if the head allows no version, or asks for none.
    """
    what, requirements = f"{lock.library} {lock.version} ({lock.flavour})", lock.words("asked")
    if not requirements:
        raise EnvironmentFault(f"the lock of {what} says nothing under `asked`")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        files = {"asked.txt": requirements, "override.txt": _overrides(lock), "uv.toml": [METADATA]}
        for name, lines in files.items():
            write_text(folder / name, "\n".join(lines) + "\n")
        options = {
            "config-file": folder / "uv.toml",
            "python-version": lock.words("python")[0],
            "python-platform": lock.words("platform")[0],
            "override": folder / "override.txt",
        }
        words = [word for name, value in options.items() for word in (f"--{name}", value)]
        argv = [find_uv(), "pip", "compile", "-q", "--no-header", "--no-annotate", *words]
        resolved = run([*argv, *_cpu_builds(lock), folder / "asked.txt"], f"{what} has no solution")
    head = [line for line in lock.text.splitlines() if line.startswith("#")]
    pins = [line for line in resolved.splitlines() if line and not line.startswith("#")]
    return "\n".join([*head, *sorted([*lock.words("alone"), *pins])]) + "\n"


def _overrides(lock: Lock) -> list[str]:
    """Return the versions that a lock overrides, and what it leaves out; without their reasons."""
    bare = {
        key: [re.sub(r"\s*\(.*\)$", "", line) for line in lock.head.get(key, ())]
        for key in ("override", "without")
    }
    # A requirement whose marker is never true: uv then leaves the package out.
    left_out = [f'{name} ; sys_platform == "never"' for name in bare["without"]]
    return [*bare["override"], *left_out]


QUESTION = """
import importlib, importlib.metadata, json, sys
held = {d.metadata["Name"]: d.version for d in importlib.metadata.distributions()}
faults = {}
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except BaseException as error:
        faults[name] = f"{type(error).__name__}: {error}"
print("\\nHELD", json.dumps({"faults": faults, "held": held, "python": list(sys.version_info[:2])}))
"""
"""Program of a Python whose arguments are modules: it imports them. `contents` reads its answer.

The packages are listed first: an import may put a library's own copies of others on the path.
"""
_DEADLINE_SECONDS = 600
"""A first import of a trainer from a cluster's file system takes minutes."""


class Contents(NamedTuple):
    """What a Python has, by its own word."""

    python: str
    """Its release, such as 3.12."""
    versions: Mapping[str, str]
    """Package -> version, by normalised name."""
    faults: Mapping[str, str]
    """Module that cannot be imported -> why."""


def contents(
    argv: Sequence[object],
    env: Mapping[str, str] | None = None,
    deadline_seconds: float = _DEADLINE_SECONDS,
) -> Contents:
    """Return the answer to QUESTION of a command that ends with it and the modules to import.

    Raise EnvironmentFault if the command gives none.
    """
    try:
        done = subprocess.run(
            [str(word) for word in argv],
            env=env,
            capture_output=True,
            text=True,
            check=False,
            timeout=deadline_seconds,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        raise EnvironmentFault(f"its imports did not end within {deadline_seconds:g} s") from None
    except OSError as error:
        raise EnvironmentFault(f"{argv[0]} cannot be run: {error.strerror}") from None
    # Modules may print while they are imported: the answer follows the last mark.
    _, marked, answer = done.stdout.rpartition("\nHELD ")
    if done.returncode or not marked:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise EnvironmentFault(f"its Python ends when it is asked what it holds: {last}")
    reply = json.loads(answer)
    versions = {plain_name(name): version for name, version in reply["held"].items()}
    return Contents(".".join(map(str, reply["python"])), versions, reply["faults"])


def check(environment: Environment, lock: Lock) -> list[str]:
    """Return the faults of an environment, in sentences; nothing if it matches its lock."""
    try:
        # -I: neither PYTHONPATH nor the current folder may add modules.
        argv = [environment.python, "-I", "-c", QUESTION, *lock.words("import")]
        its = contents(argv)
    except EnvironmentFault as fault:
        return [str(fault)]
    told = []
    wanted = lock.words("python")
    if its.python not in wanted:
        told.append(f"its Python is {its.python}, the lock is for {' or '.join(wanted)}")
    told += differences(its.versions, lock)
    told += [f"import {name} fails: {why}" for name, why in its.faults.items()]
    if environment.lock != lock.digest:
        remedy = "nothing uses it: remove the folder"
        if lock.flavour != "cpu":
            flavour = "" if lock.flavour == "gpu" else f" --{lock.flavour}"
            remedy = f"`orch env create {environment.name}{flavour} --again` makes it anew"
        told.append(
            f"it was made from another lock ({environment.lock}, this orch's is {lock.digest}); "
            f"{remedy}"
        )
    return told


def check_installed(release: str, within: Path | None) -> dict[str, list[str]]:
    """Return the path of each finished environment -> its faults.

    release: only those of LIBRARY or LIBRARY@VERSION. Raise EnvironmentFault if there is none.
    """
    library, _, version = release.partition("@")
    chosen = [
        e for e in installed(within) if library in ("", e.library) and version in ("", e.version)
    ]
    if not chosen:
        what = f" of {release}" if release else ""
        raise EnvironmentFault(
            f"there is no environment{what}; `orch env create {release or 'LIBRARY@VERSION'}` "
            "makes one, `orch env list` says which there can be"
        )
    return {str(each.path): _faults(each) for each in chosen}


def _faults(environment: Environment) -> list[str]:
    try:
        lock = lock_of(environment.library, environment.version, environment.flavour)
    except OrchError as error:
        return [str(error)]
    return check(environment, lock)


def listed(what: str, faults: Sequence[str]) -> str:
    """Return the faults of an environment, a line each, below a heading."""
    return "\n".join([f"{what}:", *(f"  {fault}" for fault in faults)])


def differences(versions: Mapping[str, str], lock: Lock) -> list[str]:
    """Return the differences between installed and locked packages, in sentences.

    A lock without a local part (`+cu130`) accepts any.
    """
    plain = {plain_name(name): version for name, version in versions.items()}
    sentences = []
    for name, version in lock.pins.items():
        installed_version = plain.get(name)
        if installed_version is None:
            sentences.append(f"{name} {version} is missing")
        elif version not in (installed_version, installed_version.partition("+")[0]):
            sentences.append(f"{name} must be {version}, it is {installed_version}")
    others = sorted(plain.keys() - lock.pins.keys() - {"pip", "setuptools", "wheel"})
    if others and lock.pins:
        listed = ", ".join(f"{name} {plain[name]}" for name in others[:5])
        sentences.append(
            f"{len(others)} packages are in no lock: {listed}"
            + (", ..." if len(others) > 5 else "")
        )
    return sentences
