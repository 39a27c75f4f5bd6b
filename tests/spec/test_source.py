"""Our reading of YAML is OmegaConf's, or a fault."""

from io import StringIO
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from orchestrator.errors import Fault
from orchestrator.spec.yaml_file import YamlDocument, read

WORDS = """
yes no on off y n Yes true True null NULL ~ .inf -.inf .nan 1e-6 1E5 1e3 12e03 1.5e-3 0x1F 0o17 0b11
010 1:30 1_000 2001-01-01 1. .5 +1 -0 0 = << ''
"""
SCALARS = st.one_of(
    st.from_regex(r"[-+]?[0-9_.eE:xob]{1,8}", fullmatch=True),
    st.sampled_from(WORDS.split()),
    st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1, max_size=6),
)


def parse(tmp_path: Path, text: str) -> tuple[YamlDocument | None, list[Fault]]:
    faults: list[Fault] = []
    path = tmp_path / "x.yaml"
    path.write_text(text, encoding="utf-8")
    return read(path, faults), faults


@settings(max_examples=300, deadline=None)
@given(scalar=SCALARS)
def test_a_scalar_means_what_omegaconf_says(
    tmp_path_factory: pytest.TempPathFactory, scalar: str
) -> None:
    text = f"a: {scalar}\n"
    document, faults = parse(tmp_path_factory.mktemp("y"), text)
    if faults or document is None:
        return
    theirs = OmegaConf.to_container(OmegaConf.load(StringIO(text)))
    assert isinstance(theirs, dict)
    ours = document.data["a"]
    assert type(ours) is type(theirs["a"])
    assert repr(ours) == repr(theirs["a"])


@pytest.mark.parametrize("scalar", ["no", "Yes", "ON", "off", "010", "0o17", "1:30", "-1:30.5"])
def test_what_two_yamls_read_differently_is_refused(tmp_path: Path, scalar: str) -> None:
    _, faults = parse(tmp_path, f"a:\n  - 1\n  - {scalar}\n")
    assert [(f.path, f.line) for f in faults] == [("$.a[1]", 3)]
    _, faults = parse(tmp_path, f"a: ['{scalar}']\n")
    assert not faults


def test_lines_anchors_and_merge_keys(tmp_path: Path) -> None:
    document, faults = parse(tmp_path, "base: &b {x: 1, y: 2}\nuse:\n  <<: *b\n  y: 3\nagain: *b\n")
    assert not faults
    assert document is not None
    assert document.data["use"] == {"x": 1, "y": 3}
    assert document.data["again"] == {"x": 1, "y": 2}
    assert document.lines["use", "y"] == 4
    assert document.lines[("again",)] == 5


def test_duplicate_and_odd_keys(tmp_path: Path) -> None:
    _, faults = parse(tmp_path, "a: {b: 1,\n b: 2}\n3: x\n")
    assert [f.line for f in faults] == [2, 3]
    assert "'b' is written twice (first in line 1)" in faults[0].message
    assert "a key must be text, got 3" in faults[1].message


@given(junk=st.binary(max_size=200))
@settings(max_examples=200, deadline=None)
def test_no_bytes_crash_the_reader(tmp_path_factory: pytest.TempPathFactory, junk: bytes) -> None:
    path = tmp_path_factory.mktemp("z") / "x.yaml"
    path.write_bytes(junk)
    faults: list[Fault] = []
    assert read(path, faults) is not None or faults
