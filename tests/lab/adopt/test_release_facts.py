"""Facts of releases, written and read."""

import json
from pathlib import Path

from lab.adopt.keys import written_options
from orchestrator.library.key_tables import Option, load_tables, release_table
from orchestrator.library.launches import Given

RELEASES = {
    "1.0": {
        "seed": Option("int", 1),
        "kl": Option("str", "k1", ("k1", "k2")),
        "old": Option("bool"),
    },
    "1.1": {"seed": Option("int", 1), "kl": Option("str", "k1", ("k1", "k2", "k3"))},
    "1.2": {"seed": Option("float", 1.5), "kl": Option("str", "k1", ("k1", "k2", "k3"))},
}


def test_a_table_takes_the_keys_that_a_launch_adds() -> None:
    facts = release_table("1.1", RELEASES["1.1"], added=("orch.",))
    assert not facts.objection("orch.anything", 1)
    assert "takes k1, k2, k3" in facts.objection("kl", "k4")
    assert "has no key old" in facts.objection("old", True)


def test_driven_releases_stand_in_their_place_among_those_that_are_only_read(
    tmp_path: Path,
) -> None:
    names = {"old": [[0, 0]], "seed": [[0, 1]], "late": [[1, 1]]}
    (tmp_path / "keys.json").write_text(
        json.dumps({"versions": ["0.9", "1.1.post1"], "keys": names})
    )
    (tmp_path / "options.json").write_text(written_options(RELEASES))
    known = load_tables(tmp_path / "keys.json", driven=tmp_path / "options.json")
    assert known.versions == ("0.9", "1.0", "1.1", "1.1.post1", "1.2")
    assert known.facts_of("1.1.post1").keys() == {"seed", "late"}
    assert known.accepting({"late": [Given("1")], "seed": [Given("1")]}) == [3]
    assert known.accepting({"kl": [Given("k1", mark="+")]}) == [0, 3], "which do not have it"
    assert known.why({"old": [Given("1")]}, 1) == "the newest release that has old"
