"""Proofs as text: rows of tables, plain data, and a file of each release."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import click

from lab.cpu import Deviation
from lab.prove.checks import Check
from lab.prove.proof import Proof, Quantity
from lab.prove.real import RealRehearsal
from orchestrator import plugins
from orchestrator.cli.common import print_table, say
from orchestrator.files import write_text
from orchestrator.records import Cell

COLUMNS = ("quantity", "worst difference", "tolerance", "at step", "predicted", "library")
PLAIN_NAMES = {
    "advantages": "advantages",
    "kl_reward": "KL in the reward",
    "kl_reward_per_token": "KL in the reward, of a token",
    "kl_loss": "KL in the loss",
    "policy_loss": "policy loss",
    "loss": "loss",
    "grad_norm": "gradient norm",
    "learning_rate": "learning rate",
    "weights": "weights",
}


def rows(proof: Proof) -> list[tuple[str, ...]]:
    """Return a row for each quantity, under COLUMNS."""
    return [
        (
            PLAIN_NAMES[each.name],
            f"{each.worst:.1e}",
            f"{each.tolerance:.0e}" + ("" if each.holds else "  FAILS"),
            str(each.step),
            *_values(each),
        )
        for each in proof.quantities
    ]


def _values(quantity: Quantity) -> tuple[str, str]:
    if quantity.name in ("advantages", "weights"):
        return "", ""
    return f"{quantity.predicted:.6g}", f"{quantity.observed:.6g}"


def heading(proof: Proof) -> str:
    """Return one line: release, train steps, passes and dialect of the compared run."""
    dialect = f", dialect {proof.dialect}" if proof.dialect else ""
    return (
        f"{proof.library} {proof.version}: {proof.num_steps} train steps in {proof.num_batches} "
        f"rollout batches, passes in {proof.precision}{dialect}"
    )


def verdict(proof: Proof) -> str:
    """Return the last line of a proof."""
    if proof.holds:
        return "the library does what its dialect predicts"
    failed = [PLAIN_NAMES[each.name] for each in proof.quantities if not each.holds]
    if not failed:
        return "nothing could be compared"
    return f"the library does something else than its dialect predicts: {', '.join(failed)}"


def print_proof(proof: Proof) -> None:
    """Print the table of a proof and its last line."""
    print_table(COLUMNS, rows(proof))
    for sentence in proof.left_out:
        say(sentence)
    click.echo(verdict(proof))


def proof_data(name: str, cell: Cell, proof: Proof) -> dict[str, object]:
    """Return the proof of a cell as plain data."""
    quantities = [each._asdict() | {"holds": each.holds} for each in proof.quantities]
    entries = proof._asdict() | {"quantities": quantities, "holds": proof.holds}
    return {"name": name, "cell": cell.id, **entries}


def rehearsal_data(outcome: RealRehearsal) -> dict[str, object]:
    """Return the rehearsal of a cell with its real library as plain data."""
    cell, proof = outcome.declared, outcome.proof
    return {
        "slug": cell.slug,
        "deviations": [each._asdict() for each in outcome.deviations],
        "checks": [each._asdict() for each in outcome.checks],
        "proof": None if proof is None else proof_data(cell.slug, cell, proof),
        "fault": outcome.fault,
        "holds": outcome.holds,
    }


def check_rows(checks: Iterable[Check]) -> list[tuple[str, str, str]]:
    """Return a row for each check."""
    words = {True: "holds", False: "FAILS", None: "not checked"}
    return [(each.name, words[each.holds], each.found) for each in checks]


def deviation_rows(deviations: Sequence[Deviation]) -> list[tuple[str, str, str, str]]:
    """Return a row for each deviation: its name, the value in the launch, the value here, why."""
    return [
        (each.name, "", "", each.here or "")
        if each.kind == "part"
        else (each.name, _shown(each.launch), _shown(each.here), each.why)
        for each in deviations
        if each.kind != "file"
    ]


def _shown(value: str | None) -> str:
    if value is None:
        return "-"
    return value if len(value) <= 60 else f"{value[:57]}..."


# The stored proofs.


FOLDER = "proofs"


def store(library: str, version: str, proofs: Iterable[tuple[str, Proof]]) -> Path:
    """Write the proofs of a release beside its backend. Return the file."""
    path = plugins.folder(library) / FOLDER / f"{version}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [{"cell": name, **_plain(proof)} for name, proof in proofs]
    content = {"library": library, "version": version, "proofs": rows}
    write_text(path, json.dumps(content, indent=1) + "\n")
    return path


def _plain(proof: Proof) -> dict[str, object]:
    return {
        "dialect": proof.dialect,
        "precision": proof.precision,
        "steps": proof.num_steps,
        "batches": proof.num_batches,
        "quantities": {
            each.name: {
                "worst": float(f"{each.worst:.2e}"),
                "step": each.step,
                "predicted": float(f"{each.predicted:.6g}"),
                "observed": float(f"{each.observed:.6g}"),
                "tolerance": each.tolerance,
            }
            for each in proof.quantities
        },
    }
