"""The reader of scripts against bash itself: a value is read as bash has it, or it is unknown."""

import random
from collections import Counter
from pathlib import Path

import pytest

from orchestrator.audit.bash.script import launches
from orchestrator.library.launches import UNKNOWN, UNSET, UnreadableScript
from tests.audit import shell_scripts

pytestmark = pytest.mark.long(40)


def read(script: str) -> list[str]:
    """The values that launches of a script get for the key, as orch reads it."""
    try:
        found, _ = launches(script + shell_scripts.LAUNCH)
    except UnreadableScript:
        return [UNKNOWN]
    given = []
    for launch in found:
        words = [word.text for word in launch.words]
        own = [word for word in words if word.startswith(f"{shell_scripts.KEY}=")]
        whole = words[-1:] == ["trainer.last=1"] and len(own) == 1
        given.append(own[0].partition("=")[2] if whole else UNKNOWN)
    return given


def verdict(script: str, folder: Path) -> str:
    """`right`; `open` if a value is unknown, or one of several; `wrong` if a value is another."""
    by_bash, by_orch = shell_scripts.by_bash(script, folder), read(script)
    if any(UNKNOWN in value for value in by_orch):
        return "open"
    known = {"" if value == UNSET else value for value in by_orch}
    if not set(by_bash) <= known or (by_orch and not by_bash):
        return "wrong"
    return "right" if len(known) == len(set(by_bash)) else "open"


def test_each_way_to_set_a_variable(tmp_path: Path) -> None:
    scripts = [way.replace("§", "0.137").replace("¤", "3") for way in shell_scripts.setters()]
    verdicts = {script: verdict(script, tmp_path) for script in scripts}
    assert [script for script, each in verdicts.items() if each == "wrong"] == []
    assert Counter(verdicts.values())["right"] >= 0.5 * len(scripts)


@pytest.mark.parametrize("count", [300, pytest.param(1500, marks=pytest.mark.thorough)])
def test_no_value_of_a_drawn_script_is_another_than_bashs(count: int, tmp_path: Path) -> None:
    """10,000 were drawn with two other seeds, and none was wrong."""
    rng, ways = random.Random(20261126), shell_scripts.setters()  # noqa: S311  (no secret)
    scripts = [shell_scripts.script(rng, ways) for _ in range(count)]
    verdicts = {script: verdict(script, tmp_path) for script in scripts}
    assert [script for script, each in verdicts.items() if each == "wrong"] == []
    assert Counter(verdicts.values())["right"] >= 0.55 * len(verdicts)
