"""Facts of releases, written and read."""

from pathlib import Path

from orchestrator.library.key_tables import (
    Option,
    Releases,
    load_options,
    release_table,
    with_release,
    written_options,
)

RELEASES = {
    "1.0": {
        "seed": Option("int", 1),
        "kl": Option("str", "k1", ("k1", "k2")),
        "old": Option("bool"),
    },
    "1.1": {"seed": Option("int", 1), "kl": Option("str", "k1", ("k1", "k2", "k3"))},
    "1.2": {"seed": Option("float", 1.5), "kl": Option("str", "k1", ("k1", "k2", "k3"))},
}


def test_what_was_written_is_read(tmp_path: Path) -> None:
    (tmp_path / "options.json").write_text(written_options(RELEASES))
    assert load_options(tmp_path / "options.json") == RELEASES
    assert '"kl": [[0, 0, "str", "k1", ["k1", "k2"]], [1, 2, ' in written_options(RELEASES)


def test_a_table_takes_the_keys_that_a_launch_adds() -> None:
    facts = release_table("1.1", RELEASES["1.1"], added=("orch.",))
    assert not facts.objection("orch.anything", 1)
    assert "takes k1, k2, k3" in facts.objection("kl", "k4")
    assert "has no key old" in facts.objection("old", True)


def test_a_release_is_added_in_its_place_among_the_names_of_keys() -> None:
    known = Releases(["1.0", "1.1", "1.2"], {"old": (0, 0), "late": (2, 2), "all": (0, 2)})
    more = with_release(known, "1.1.post1", {"all", "late", "own"})
    assert list(more.versions) == ["1.0", "1.1", "1.1.post1", "1.2"]
    assert more.keys == {"old": (0, 0), "late": (2, 3), "all": (0, 3), "own": (2, 2)}
    assert with_release(more, "1.2", {"another"}) is more
