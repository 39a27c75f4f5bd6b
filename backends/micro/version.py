"""The version of the embedded trainer. It names the dialect to train in: `1+kl_reward=to_go`.

A rehearsal's version names the library's mathematics, but only as far as they change the cell. So a
cell's id stands for what is trained. Two libraries that mean the same by a cell share one run. A
cell declared for the embedded trainer keeps its id.
"""

from functools import cache

from orchestrator.errors import EnvironmentFault, UnsupportedSetting
from orchestrator.kl.library_semantics import PLAIN, Dialect, parse, relevant
from orchestrator.settings import Settings

VERSION = "1"
"""Raised when the same cell would train to other numbers."""


@cache
def dialect(version: str | None) -> Dialect:
    """Return the dialect that a version names.

    Raise UnsupportedSetting for an unreadable version.
    """
    own, _, text = (version or VERSION).partition("+")
    if own != VERSION:
        raise _refusal(
            version,
            f"Set backend=micro@{VERSION}; after a + a version names what is not its own way.",
        )
    try:
        parsed = parse(text)
    except EnvironmentFault as error:
        raise _refusal(version, f"{error}.") from error
    if parsed.precision != PLAIN.precision:
        raise _refusal(version, "It computes in fp32 only: leave `precision` out.")
    return parsed


def _refusal(version: str | None, advice: str) -> UnsupportedSetting:
    offered = (VERSION, f"{VERSION}+kl_reward=to_go", "...")
    return UnsupportedSetting("micro", "backend.version", version, offered, advice)


def dialect_of(settings: Settings) -> Dialect:
    """Return the dialect that a cell of the embedded trainer is trained in.

    With a correction, ratios are to the trainer's policy at the start of the batch, not to the
    engine's, and the KL in the reward is that policy's.
    """
    named = dialect(settings.backend.version)
    if settings.loss.correction is None:
        return named
    return named.but(ratio_to="batch_start", kl_reward_policy="batch_start")


def version_for(dialect: Dialect, settings: Settings) -> str:
    """Return the version that trains these settings in a dialect."""
    text = relevant(dialect, settings).text
    return f"{VERSION}+{text}" if text else VERSION
