"""The proofs that are kept beside the backends."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lab.prove.proof import QUANTITIES
from lab.prove.text import FOLDER
from orchestrator import plugins
from orchestrator.files import read_json

LIBRARIES = Path(__file__).parents[3] / "docs" / "libraries.md"


def proofs() -> Iterator[dict[str, Any]]:
    """Every kept proof."""
    for library in plugins.names():
        for path in sorted((plugins.folder(library) / FOLDER).glob("*.json")):
            content = read_json(path)
            assert content is not None
            yield content


def test_every_kept_proof_holds() -> None:
    kept = list(proofs())
    assert kept
    for held in kept:
        for proof in held["proofs"]:
            assert (
                {"advantages", "grad_norm", "weights"}
                <= proof["quantities"].keys()
                <= set(QUANTITIES)
            )
            for name, each in proof["quantities"].items():
                assert each["worst"] <= each["tolerance"], (held["library"], proof["cell"], name)


def test_the_table_of_libraries_says_what_was_proved() -> None:
    """Predicted = observed: the worst relative difference of the gradient norm."""
    text = LIBRARIES.read_text(encoding="utf-8")
    for held in proofs():
        worst = [each["quantities"]["grad_norm"]["worst"] for each in held["proofs"]]
        title = plugins.load(held["library"]).title
        row = next(x for x in text.splitlines() if x.startswith(f"| {title} | {held['version']} "))
        assert f"| {max(worst):.1e} in {len(worst)} cells |" in row
