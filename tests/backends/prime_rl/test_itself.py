"""Prime-RL itself, where a checkout is pointed to: its keys, and its loss around ours."""

import json
from pathlib import Path

import pytest

from backends.prime_rl import BACKEND, parse
from tests.backends.prime_rl.conftest import asking

KEYS = Path(parse.__file__).parent / "keys"


@pytest.mark.parametrize("version", BACKEND.versions)
def test_its_keys_are_those_of_the_checkout(
    version: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Save those of verifiers' and renderers' own classes, which are other packages'."""
    theirs, ours = (
        asking(version, tmp_path_factory)(),
        json.loads((KEYS / f"{version}.json").read_text()),
    )
    for each in ("rl", "inference"):
        own = {
            key: told
            for key, told in theirs[each].items()
            if ".source.env." not in key and ("renderer." not in key or key.endswith(".name"))
        }
        assert ours[each] == own
