"""The result of somebody's program that builds a library's trainer itself, run at small scale."""

from typing import NamedTuple

from orchestrator.library.cpu_launch import Deviation
from orchestrator.settings import Settings


class ProgramResult(NamedTuple):
    """The settings that a program trained with, and its deviations from the program."""

    settings: Settings | None
    """As the library resolved its configuration, or None if no cell has it."""
    without_settings: str
    """Why `settings` is None; empty if it is not."""
    deviations: tuple[Deviation, ...]
    """Every difference from the program, in the order in which they were made."""
