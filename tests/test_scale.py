"""Rehearsal: the same grid at the scale of this machine."""

from pathlib import Path

from orchestrator.expand import expand
from orchestrator.fingerprint import fingerprint
from orchestrator.scale import rehearse
from orchestrator.spec import load

EXPERIMENTS = Path(__file__).parents[1] / "experiments"


def test_a_rehearsed_cell_has_its_own_identity_and_keeps_what_was_asked() -> None:
    declared = expand(load(EXPERIMENTS / "comedy_full.yaml"))
    small = rehearse(declared)
    assert len(small) == len(declared)
    assert {c.id for c in small}.isdisjoint(c.id for c in declared)
    for cell, asked in zip(small, declared, strict=True):
        assert cell.scale == "micro"
        assert asked.scale == "full"
        assert cell.declared == asked.settings
        assert cell.id == fingerprint(cell.settings)
        assert (cell.slug, cell.studies, cell.axes) == (asked.slug, asked.studies, asked.axes)
        kept = ("kl", "advantage", "seed", "max_staleness_steps")
        for name in kept:
            if name != "kl" or asked.settings.kl.reset_reference_every_steps is None:
                assert getattr(cell.settings, name) == getattr(asked.settings, name)


def test_one_cell_asked_of_four_libraries_is_trained_once_and_says_so() -> None:
    declared = expand(load(EXPERIMENTS / "cross_library.yaml"))
    small = rehearse(declared)
    assert len(small) < len(declared)
    assert len({cell.id for cell in small}) == len(small)
    merged = [cell for cell in small if " | " in cell.axes["backend"]]
    assert merged
    for cell in merged:
        assert len(set(cell.axes["backend"].split(" | "))) > 1
