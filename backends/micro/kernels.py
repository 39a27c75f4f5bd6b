"""Compile kernels.c with this machine's C compiler, and load it.

It is compiled once for each source, compiler and CPU, and kept in the user's cache folder. Without
a compiler, and on another CPU than x86-64, torch computes the same (`batched.py`), several times
slower.
"""

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple

from backends.micro import shape, skills
from orchestrator.errors import EnvironmentFault
from orchestrator.files import cache_folder, is_kept, short_digest

ENGINE = "ORCH_MICRO_ENGINE"
"""Environment variable: `torch` keeps the kernels out."""
SOURCE = Path(__file__).with_name("kernels.c")
COMPILERS = ("cc", "gcc", "clang")
FLAGS = (
    *("-std=gnu11", "-O3", "-ffp-contract=fast", "-fno-math-errno", "-shared", "-fPIC"),
    "-march=native",
)
CPUS = ("x86_64", "AMD64")
"""Machines on which the kernels were compiled and compared with torch, as Python names them."""
COMPILE_SECONDS = 300

Real = Literal["float", "double"]
"""The C type of a number. The trainer's is float; double is for tests."""


class Unavailable(Exception):
    """Raised with the reason for which the kernels cannot be used."""


class Kernels(NamedTuple):
    """The compiled kernels, loaded."""

    library: ctypes.CDLL
    name: str
    """What made them: two machines with equal names compute equal bits."""


class Compilation(NamedTuple):
    """A command that compiles the kernels, without the name of its output."""

    command: tuple[str, ...]
    compiler: str
    """The first line of what the compiler says of itself."""
    key: str
    """A hash of all that decides the result: source, compiler, flags and CPU."""


def is_wanted() -> bool:
    """Return True unless the environment asks for torch. Raise EnvironmentFault for other words."""
    choice = os.environ.get(ENGINE, "")
    if choice not in ("", "c", "torch"):
        raise EnvironmentFault(f"{ENGINE} must be c or torch, got {choice!r}")
    return choice != "torch"


def described() -> str:
    """Return what computes the training of a cell on a CPU here, in a few words."""
    if not is_wanted():
        return f"torch ({ENGINE}=torch)"
    try:
        return loaded("float").name
    except Unavailable as why:
        return f"torch ({why})"


def loaded(real: Real) -> Kernels:
    """Return the kernels. Raise Unavailable. The first call compiles them if no file has them."""
    kernels = _attempt(real)
    if isinstance(kernels, Unavailable):
        raise kernels
    return kernels


@cache
def _attempt(real: Real) -> Kernels | Unavailable:
    try:
        if platform.machine() not in CPUS:
            raise Unavailable(f"the kernels are for {CPUS[0]}, and this is {platform.machine()}")
        compiler = _compiler()
        banner = _finished([*compiler, "--version"]).stdout
        compilation = _compilation(compiler, banner, real)
        folder = cache_folder()
        if folder is not None:
            with suppress(OSError):
                return _from_folder(folder, compilation)
        with tempfile.TemporaryDirectory() as private:
            # The mapping stays when the file is gone.
            return _from_folder(Path(private), compilation)
    except OSError as error:
        return Unavailable(f"the kernels cannot be kept or loaded: {error}")
    except Unavailable as why:
        return why


def _compiler() -> list[str]:
    """Return the compiler's command: that of CC, or the first of COMPILERS."""
    try:
        named = shlex.split(os.environ.get("CC", ""))
    except ValueError as error:
        raise Unavailable(f"CC cannot be read as a command: {error}") from error
    names = [named] if named else [[name] for name in COMPILERS]
    for command in names:
        path = shutil.which(command[0])
        if path is not None:
            return [path, *command[1:]]
    candidates = f"CC={os.environ['CC']}" if named else ", ".join(COMPILERS)
    raise Unavailable(f"no C compiler: {candidates} not found")


def _compilation(compiler: list[str], banner: str, real: Real) -> Compilation:
    defined = {
        "REAL": real,
        "WIDTH": shape.WIDTH,
        "LAYERS": shape.NUM_LAYERS,
        "HIDDEN": shape.HIDDEN,
        "HEAD": shape.HEAD_WIDTH,
        "TOKENS": shape.NUM_TOKENS,
        "PARAMETERS": shape.NUM_PARAMETERS,
        "LONGEST": shape.MAX_TOKENS,
        "EPSILON": shape.NORM_EPSILON,
        "PROMPT": skills.PROMPT_TOKENS,
        "EOS": skills.EOS,
        "PAD": skills.PAD,
    }
    flags = [*FLAGS, *(f"-D{k}={v}" for k, v in defined.items())]
    parts = (SOURCE.read_bytes(), *map(str.encode, (banner, *compiler, *flags, *_cpu())))
    key = hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]
    return Compilation((*compiler, *flags, str(SOURCE)), banner.partition("\n")[0], key)


def _finished(command: list[str]) -> "subprocess.CompletedProcess[str]":
    try:
        return subprocess.run(
            command,
            capture_output=True,
            check=False,
            encoding="utf-8",
            errors="replace",
            stdin=subprocess.DEVNULL,
            timeout=COMPILE_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"the C compiler {command[0]} does not work: {error}") from error


def _cpu() -> Iterator[str]:
    """Yield what decides which instructions the CPU has. A home may be shared by several CPUs."""
    yield platform.machine()
    facts = ("model name", "flags")
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        yield platform.node()
        return
    first: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip() in facts:
            first.setdefault(name.strip(), value.strip())
    yield from first.values()


def _from_folder(folder: Path, compilation: Compilation) -> Kernels:
    """Return the kernels of a compilation, kept in the folder or new."""
    for file in sorted(folder.glob(f"kernels-{compilation.key}-*.so")):
        # Its name has its digest: the loader crashes on a file that was cut in half.
        if is_kept(file):
            with suppress(OSError):
                return _opened(file, compilation)
        with suppress(OSError):
            file.unlink()
    handle, name = tempfile.mkstemp(prefix=".kernels-", dir=folder)
    os.close(handle)
    unfinished = Path(name)
    try:
        done = _finished([*compilation.command, "-o", name, "-lm"])
        if done.returncode:
            fault = next(iter(done.stderr.strip().splitlines()), "no message")
            raise Unavailable(f"{compilation.command[0]} cannot compile the kernels: {fault}")
        unfinished.chmod(0o700)
        file = folder / f"kernels-{compilation.key}-{short_digest(unfinished)}.so"
        unfinished.replace(file)
    finally:
        unfinished.unlink(missing_ok=True)
    return _opened(file, compilation)


def _opened(file: Path, compilation: Compilation) -> Kernels:
    library = ctypes.CDLL(str(file))
    for name in ("policy_bytes", "tree_bytes", "slope_bytes"):
        getattr(library, name).restype = ctypes.c_size_t
    return Kernels(library, f"C kernels {compilation.key} ({compilation.compiler})")
