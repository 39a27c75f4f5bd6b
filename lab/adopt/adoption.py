"""What a library's `adoption.py` says to `python -m lab adopt`, and where its parser is asked.

`describe.py` prints all keys of a release, `PARSER` what the release's own parser makes of
launches: a list of configurations in, a list of {"values": key -> value} or {"error": sentence}
out. Both run in an environment of the release, without orch.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol, cast

from lab.libraries import part
from orchestrator import plugins
from orchestrator.environments.lock import Flavour
from orchestrator.errors import EnvironmentFault
from orchestrator.library.key_tables import Options
from orchestrator.records import LaunchPlan

DESCRIBE = "describe.py"


class Adoption(Protocol):
    """The members of `adoption.py`.

    One is optional, HISTORY: the name of a file in the library's folder that keeps the watched
    options of every release (`history`).
    """

    @property
    def PARSER_IN(self) -> Flavour:  # noqa: N802  (a constant of a module)
        """The environment in which the parser runs."""

    @property
    def PARSER(self) -> str:  # noqa: N802  (a constant of a module)
        """The script that asks the parser, in the library's folder."""

    def watched_options(self, package: Path, options: Options, /) -> Options:
        """Return the keys in which a difference between releases is a row for a person to look at.

        package: the folder of the release's source. options: all of its keys.
        """

    def configuration(self, plan: LaunchPlan, /) -> object:
        """Return what PARSER takes of a launch, as JSON has it."""

    def sent(self, plan: LaunchPlan, /) -> Mapping[str, object]:
        """Return the keys that a launch sets, with the values that the parser should have."""


def adoption_of(library: str) -> Adoption:
    """Return the adoption of a library. Raise EnvironmentFault for a library without one."""
    adoption = part(library, "adoption")
    if adoption is None:
        able = [each for each in plugins.names() if part(each, "adoption")]
        raise EnvironmentFault(f"orch cannot adopt {library} yet (it can: {', '.join(able)})")
    return cast("Adoption", adoption)


def history(adoption: Adoption) -> str:
    """Return the name of the file with the watched options of every release; empty for none."""
    return str(getattr(adoption, "HISTORY", ""))
