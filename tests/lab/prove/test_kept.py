"""The proofs that are kept beside the backends."""

from lab.prove.proof import QUANTITIES
from tests.lab.trained import proofs


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
