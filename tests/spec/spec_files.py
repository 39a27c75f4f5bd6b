"""A folder with a spec and the shipped config groups, for tests to write to."""

import shutil
from pathlib import Path

ROOT = Path(__file__).parents[2]
GROUPS = ("recipe", "model", "data", "site", "evaluation", "sampling", "published")

HEAD = """\
defaults: [recipe: onpolicy_math, _self_]
name: x
model: qwen2.5-7b
backend: verl@0.9.1
studies:
  a:
"""
"""A spec up to the body of its only study."""


def folder(parent: Path) -> Path:
    """A folder with a nasty name that has the shipped groups."""
    made = parent / "a b='ü\n$(x)"
    made.mkdir()
    for group in GROUPS:
        shutil.copytree(ROOT / "experiments" / group, made / group)
    return made


def write(made: Path, text: str, name: str = "x.yaml") -> Path:
    path = made / name
    path.write_text(text, encoding="utf-8")
    return path


def study(body: str) -> str:
    """A spec whose only study has this body, given without indentation."""
    return HEAD + "".join(f"    {line}\n" for line in body.strip("\n").splitlines())
