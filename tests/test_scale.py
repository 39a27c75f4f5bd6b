"""Rehearsal: the same grid at the scale of this machine."""

from pathlib import Path

from orchestrator.identity import fingerprint
from orchestrator.spec import load
from orchestrator.spec.expand import expand
from orchestrator.spec.rehearse import rehearse

EXPERIMENTS = Path(__file__).parents[1] / "experiments"


def test_libraries_that_share_one_run_are_named_by_its_axis() -> None:
    small = rehearse(expand(load(EXPERIMENTS / "cross_library.yaml")))
    assert len({cell.id for cell in small}) == len(small)
    assert any(" | " in cell.axes["backend"] for cell in small)


def test_a_cell_of_the_embedded_trainer_keeps_its_id() -> None:
    """Ids that were given before there were dialects, with the policy that was shipped then."""
    backends = "studies.libraries.axes.backend=[verl@0.9.1,openrlhf@0.11.2,prime_rl@0.5.0,micro]"
    declared = expand(load(EXPERIMENTS / "cross_library.yaml", ["seeds=[0]", backends]))
    own = {}
    for cell in declared:
        if cell.settings.backend.name == "micro":
            settings = rehearse([cell])[0].settings
            model = settings.model.model_copy(update={"path": "micro:amber"})
            id_ = fingerprint(settings.model_copy(update={"model": model}))
            own[cell.axes["kl"], cell.axes["beta"]] = id_
    assert own["none", "0"] == "f14fb1a6f17f"
    assert own["k1.reward", "0.05"] == "5a28b8decfb5"
    assert own["k3.loss", "0.05"] == "3d3a06278007"


def test_a_seed_is_rehearsed_as_if_it_were_alone() -> None:
    declared = expand(load(EXPERIMENTS / "comedy_full.yaml", ["seeds=[0,3,7]"]))
    assert rehearse(declared) == [rehearse([cell])[0] for cell in declared]
