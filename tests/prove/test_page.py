"""docs/proofs.md shows the proofs that are kept, and nothing else."""

from pathlib import Path

from docs.tools.proofs import page, stored
from orchestrator.lab.prove.proof import QUANTITIES

ROOT = Path(__file__).parents[2]


def test_the_page_is_what_the_proofs_say() -> None:
    assert (ROOT / "docs/proofs.md").read_text(encoding="utf-8") == page(), (
        "python -m docs.tools.proofs > docs/proofs.md"
    )


def test_every_kept_proof_holds() -> None:
    kept = list(stored())
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
