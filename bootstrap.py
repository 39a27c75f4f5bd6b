#!/usr/bin/env python3
"""Sets orch up on a fresh machine and does one of the two main jobs. Needs only Python and pip.

    python3 bootstrap.py run     install, then run experiments/comedy_full.yaml on this machine
    python3 bootstrap.py test    install, then lint, type-check and test
    python3 bootstrap.py setup   install only

Further arguments go to `orch run` or to pytest. Everything lands in .venv beside this file.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import time
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
BIN = VENV / ("Scripts" if os.name == "nt" else "bin")
PYTHON = BIN / "python"
STAMP = VENV / "orch-installed"
EXTRAS = "micro,eval,tune,dev"
TORCH = "2.13.0"
SLURM_PACKAGES = (
    "slurmctld",
    "slurmd",
    "slurm-client",
    "slurmdbd",
    "slurm-wlm-basic-plugins",
    "munge",
    "mariadb-server",
)
SLURM_PROGRAMS = ("sbatch", "slurmctld", "slurmd", "slurmdbd", "munged", "mariadbd")
SYSTEM_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
TEST_PROCESSES = max(2, min(8, 2 * (os.cpu_count() or 1)))
"""Half of the tests' time is waiting: for servers, for a cluster's clocks."""
CHROMIUM = ("chromium", "chromium-browser", "google-chrome")


def main() -> int:
    job, rest = (sys.argv[1] if len(sys.argv) > 1 else ""), sys.argv[2:]
    if job not in ("run", "test", "setup"):
        print(__doc__)
        return 2
    if sys.version_info < (3, 11):
        return restart_with_newer_python()
    os.chdir(ROOT)
    install()
    if job == "run":
        return call(BIN / "orch", "run", "experiments/comedy_full.yaml", *rest)
    return test(rest) if job == "test" else 0


def install() -> None:
    """Makes .venv hold what pyproject.toml and constraints.txt ask for; nothing if it does."""
    wanted = hashlib.sha256()
    for name in ("pyproject.toml", "constraints.txt", "bootstrap.py"):
        wanted.update((ROOT / name).read_bytes())
    if STAMP.exists() and STAMP.read_text() == wanted.hexdigest():
        return
    started = time.monotonic()
    say(f"installing into {VENV.name} (a few minutes the first time)")
    if not PYTHON.exists():
        venv.create(VENV, with_pip=True)
    install_torch()
    must(PYTHON, "-m", "pip", "install", "-qq", "-c", "constraints.txt", "-e", f".[{EXTRAS}]")
    STAMP.write_text(wanted.hexdigest())
    say(f"installed in {time.monotonic() - started:.0f} s")


def install_torch() -> None:
    """A CUDA build only where there is a GPU: elsewhere it is gigabytes for nothing."""
    have = subprocess.run(
        [PYTHON, "-c", "import importlib.metadata as m; print(m.version('torch'))"],
        capture_output=True,
        text=True,
        check=False,
    )
    if have.stdout.startswith(TORCH):
        return
    if sys.platform != "linux" or shutil.which("nvidia-smi"):
        must(PYTHON, "-m", "pip", "install", "-qq", f"torch=={TORCH}")
        return
    cpu_build = call(
        PYTHON, "-m", "pip", "install", "-qq", f"torch=={TORCH}+cpu", quiet=True
    )  # where the package index or a wheel folder offers it
    if cpu_build == 0:
        return
    must(PYTHON, "-m", "pip", "install", "-qq", "uv")  # uv knows where PyTorch's CPU builds are
    must(
        BIN / "uv",
        "pip",
        "install",
        "-q",
        "--python",
        PYTHON,
        "--torch-backend",
        "cpu",
        f"torch=={TORCH}",
    )


def test(arguments: list[str]) -> int:
    """Lint, types, then the tests; every failure is reported, the first sets the exit code."""
    install_chromium()
    install_slurm()
    install_data()
    checks = [
        call(BIN / "ruff", "check", "."),
        call(BIN / "ruff", "format", "--check", "."),
        call(BIN / "mypy"),
        call(
            BIN / "pytest",
            "-n",
            TEST_PROCESSES,
            "--dist",
            "loadfile",
            "--no-loadscope-reorder",
            "--durations",
            "40",
            *arguments,
        ),
    ]
    return next((code for code in checks if code), 0)


def install_chromium() -> None:
    """The browser tests want Debian's Chromium; without it they are skipped and say so."""
    if any(map(shutil.which, CHROMIUM)):
        return
    if shutil.which("apt-get") and hasattr(os, "geteuid") and os.geteuid() == 0:
        say("installing chromium for the browser tests")
        call("apt-get", "-q", "update", quiet=True)
        if (
            call(
                "apt-get", "-q", "install", "-y", "--no-install-recommends", "chromium", quiet=True
            )
            == 0
        ):
            return
    say("WARNING: no Chromium here; the browser tests will be skipped")


def install_slurm() -> None:
    """The cluster tests want Debian's SLURM; without it they are skipped and say so."""
    if all(shutil.which(name, path=SYSTEM_PATH) for name in SLURM_PROGRAMS):
        return
    if shutil.which("apt-get") and hasattr(os, "geteuid") and os.geteuid() == 0:
        say("installing SLURM for the cluster tests")
        policy = Path("/usr/sbin/policy-rc.d")
        ours = not policy.exists()
        if ours:  # the tests start the daemons they want; the packages are to start none
            policy.write_text("#!/bin/sh\nexit 101\n")
            policy.chmod(0o755)
        os.environ["DEBIAN_FRONTEND"] = "noninteractive"
        call("apt-get", "-q", "update", quiet=True)
        code = call(
            "apt-get", "-q", "install", "-y", "--no-install-recommends", *SLURM_PACKAGES, quiet=True
        )
        if ours:
            policy.unlink()
        if code == 0:
            return
    say("WARNING: no SLURM daemons here; the cluster tests will be skipped")


def install_data() -> None:
    """The Countdown tests want reasoning-gym, some of whose parts are compiled where it lands."""
    if call(PYTHON, "-c", "import reasoning_gym", quiet=True) == 0:
        return
    if call(
        PYTHON, "-m", "pip", "install", "-qq", "-c", "constraints.txt", "-e", ".[data]", quiet=True
    ):
        say("WARNING: reasoning-gym cannot be installed here; its two tests will be skipped")


def restart_with_newer_python() -> int:
    for name in ("python3.13", "python3.12", "python3.11"):
        if newer := shutil.which(name):
            return call(newer, *sys.argv)
    say(
        f"orch needs Python 3.11 or newer; this is {sys.version.split()[0]} and no newer is on PATH"
    )
    return 1


def must(*argv: object) -> None:
    if code := call(*argv):
        say(f"failed ({code}): {' '.join(map(str, argv))}")
        sys.exit(code)


def call(*argv: object, quiet: bool = False) -> int:
    sink = subprocess.DEVNULL if quiet else None
    return subprocess.run([str(a) for a in argv], check=False, stdout=sink, stderr=sink).returncode


def say(text: str) -> None:
    print(f"bootstrap: {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
