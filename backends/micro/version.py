"""The embedded trainer's version, and the dialect it is told to train in: `1+kl_reward=to_go`.

A rehearsal's version names the mathematics of the library it stands for, as far as it matters to
the cell, so that a cell's id is what is trained and nothing else: two libraries that mean the same
by a cell are one run, and a cell declared for the embedded trainer keeps its id.
"""

from functools import cache

from orchestrator.errors import EnvironmentFault, UnsupportedSetting
from orchestrator.kl.library_semantics import Dialect, parse, relevant
from orchestrator.settings import Settings

VERSION = "1"
"""Raised when the same cell would train to other numbers."""


@cache
def dialect(version: str | None) -> Dialect:
    """What a version stands for. Raises UnsupportedSetting for one that cannot be read."""
    own, _, told = (version or VERSION).partition("+")
    if own != VERSION:
        raise UnsupportedSetting(
            "micro",
            "backend.version",
            version,
            (VERSION, f"{VERSION}+kl_reward=to_go", "..."),
            f"Set backend=micro@{VERSION}; after a + a version names what is not its own way.",
        )
    try:
        return parse(told)
    except EnvironmentFault as error:
        raise UnsupportedSetting(
            "micro", "backend.version", version, (VERSION,), f"{error}."
        ) from error


def dialect_of(settings: Settings) -> Dialect:
    """The dialect a cell of the embedded trainer is trained in."""
    return dialect(settings.backend.version)


def version_for(told: Dialect, settings: Settings) -> str:
    """The version that trains these settings in a dialect."""
    text = relevant(told, settings).text
    return f"{VERSION}+{text}" if text else VERSION
