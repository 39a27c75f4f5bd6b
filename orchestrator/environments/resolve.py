"""Writes a lock: resolves what its head asks for, without installing anything. Needs uv."""

import re
import shutil
import tempfile
from pathlib import Path

from orchestrator.environments.lock import Lock
from orchestrator.environments.make import interpreter, run
from orchestrator.errors import EnvironmentFault

SOURCE_ONLY = {"flash-attn": ("torch", "einops"), "causal-conv1d": ("torch", "ninja", "packaging")}
"""Packages that must be built before they say what they need: what they need."""


def resolve(lock: Lock) -> str:
    """The text of the lock with the newest versions that its head allows.

    Raises EnvironmentFault where nothing does, or without uv.
    """
    uv = shutil.which("uv")
    asked = lock.words("asked")
    if not uv or not asked:
        why = "uv is not on PATH; install it" if not uv else "it says nothing under `asked`"
        raise EnvironmentFault(
            f"the lock of {lock.library} {lock.version} ({lock.flavour}) cannot be resolved: {why}"
        )
    release = lock.words("python")[0]
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        _write(folder / "asked.txt", asked)
        _write(folder / "override.txt", _overrides(lock))
        _write(folder / "uv.toml", _metadata())
        argv = [uv, "pip", "compile", "-q", "--config-file", folder / "uv.toml",
                "--python", interpreter([release]), "--python-version", release,
                "--python-platform", lock.words("platform")[0], "--override",
                folder / "override.txt", "--no-header", "--no-annotate",
                folder / "asked.txt"]  # fmt: skip
        resolved = run(argv, f"{lock.library} {lock.version} ({lock.flavour}) has no solution")
    head = [line for line in lock.text.splitlines() if line.startswith("#")]
    pins = [line for line in resolved.splitlines() if line and not line.startswith("#")]
    return "\n".join([*head, *sorted([*lock.words("alone"), *pins])]) + "\n"


def _overrides(lock: Lock) -> list[str]:
    plain = [re.sub(r"\s*\(.*\)$", "", line) for line in lock.head.get("override", ())]
    left_out = [re.sub(r"\s*\(.*\)$", "", line) for line in lock.head.get("without", ())]
    return [*plain, *(f'{name} ; sys_platform == "never"' for name in left_out)]


def _metadata() -> list[str]:
    lines = []
    for name, needs in SOURCE_ONLY.items():
        listed = ", ".join(f'"{each}"' for each in needs)
        lines += ["[[dependency-metadata]]", f'name = "{name}"', f"requires-dist = [{listed}]"]
    return lines


def _write(path: Path, lines: list[str] | tuple[str, ...]) -> None:
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
