"""The keys of each release that a backend drives, asked of the library itself.

python -m tests.backends.release_facts openrlhf     writes backends/openrlhf/options.json anew
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from orchestrator import plugins
from orchestrator.lab.adopt import keys
from orchestrator.library.key_tables import Options, written_options
from tests.backends.environments import contract_python, cpu_python

HERE = Path(__file__).parent
SCRIPTS = {
    "openrlhf": HERE / "openrlhf" / "describe.py",
    "skyrl": HERE / "skyrl" / "ask" / "describe.py",
    "trl": plugins.folder("trl") / "lab" / "describe.py",
}


def options_of(library: str, version: str) -> Options:
    """Return the keys that a release says it has, in its contract environment. TRL's inherit those
    of transformers, so they are asked where it trains; `orch adopt` writes them."""
    python = cpu_python if library == "trl" else contract_python
    return keys.options_of(python(library, version), SCRIPTS[library])


def written(library: str) -> Path:
    """Return the file of a backend that holds these facts."""
    return HERE.parents[1] / "backends" / library / "options.json"


def main(libraries: Sequence[str]) -> None:
    for library in libraries:
        oldest_first = reversed(plugins.load(library).versions)
        releases = {version: options_of(library, version) for version in oldest_first}
        written(library).write_text(written_options(releases), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
