"""Read a launch of Prime-RL back as settings: the keys of its TOML files, and needs.json."""

import json
import tomllib
from collections.abc import Mapping, Sequence

from backends.prime_rl.config import INFERENCE, RL
from backends.prime_rl.manifest import MANIFEST
from backends.prime_rl.translate import sent
from orchestrator.library.needs import NEEDS, read_back
from orchestrator.settings import Settings


def parse(argv: Sequence[str], files: Mapping[str, str]) -> Settings:
    """Return the settings of a launch. Raise SpecError for one that makes no cell."""
    del argv
    tables = {name: tomllib.loads(files.get(name, "")) for name in (RL, INFERENCE)}
    needed = json.loads(files[NEEDS])
    launch = {**sent(tables), NEEDS: needed}
    return read_back(MANIFEST, launch, needed["asked"].get("backend.version"), files)
