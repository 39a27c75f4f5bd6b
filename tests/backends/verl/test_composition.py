"""Everything we emit, given to verl's own configuration at each release, and read back from it."""

from functools import cache

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from backends.verl import BACKEND
from backends.verl.manifest import MANIFEST, TABLES
from backends.verl.overrides import read
from orchestrator.identity import fingerprint
from orchestrator.records import Cell
from tests.backends.specs import which_cover
from tests.backends.verl import library
from tests.backends.verl.cells import NASTY, cell, drawn, overrides, shipped, translated

READ = {
    "actor_rollout_ref.actor.clip_ratio",
    "actor_rollout_ref.actor.grad_clip",
    "actor_rollout_ref.actor.optim.lr_warmup_steps_ratio",
    "algorithm.rollout_correction.rollout_is",
    "algorithm.rollout_correction.rollout_rs",
    "trainer.project_name",
}
"""Keys that a launch is read from although no row sends them."""
FULLEST = {
    "loss": {"aggregation": "constant", "constant_tokens": 4096, "clip": None},
    "model.chat_template": "none",
    "seed": 7,
    "precision.training": "fp32",
    "precision.rollout": "fp16",
    "precision.checkpoint": "bf16",
}


@cache
def drawn_cells() -> list[Cell]:
    """A few cells that no spec has, the same on every run."""
    found: list[Cell] = []

    @settings(
        max_examples=24,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(drawn())
    def draw(each: Cell) -> None:
        found.append(each)

    draw()
    return found


def covering(version: str) -> list[tuple[Cell, list[str]]]:
    """Cells whose launches hold, together, every argument that any cell of that release has.

    Drawn cells are among them, and one in a nasty place.
    """
    declared = [
        *shipped(),
        cell({"backend.version": "0.8.0"}),
        cell({**FULLEST}),
        *(
            cell(
                {
                    **FULLEST,
                    "kl": {"estimator": name, "placement": place, "beta": 0.1},
                    "backend.version": version,
                }
            )
            for name in ("k2", "abs", "k1+", "k3+", "rho_k3")
            for place in ("loss", "reward_and_loss")
        ),
        cell(
            {"max_staleness_steps": 8, "batch.num_minibatches": 4, "num_train_steps": 40}, nodes=1
        ),
    ]
    launches: list[tuple[Cell, list[str]]] = []
    for each in (*declared, *drawn_cells()):
        plan = translated(each)
        if plan is not None and plan.version == version:
            launches.append((each, overrides(plan)))
    nasty = translated(cell({**FULLEST, "backend.version": version}), NASTY)
    assert nasty is not None
    chosen = [(cell({**FULLEST, "backend.version": version}), overrides(nasty))]
    chosen += which_cover(launches, lambda pair: {x for x in pair[1] if "experiment_name" not in x})
    return chosen


@pytest.mark.slow
@pytest.mark.parametrize("version", library.VERSIONS)
def test_verl_composes_what_we_emit_and_reads_it_as_we_do(version: str) -> None:
    chosen = covering(version)
    keys = sorted({read(text)[0] for _, launch in chosen for text in launch} | READ)
    keys = [key for key in keys if not key.startswith("hydra.")]
    plain = {k: v for k, v in TABLES[version].defaults.items() if "${" not in str(v)}
    defaults = {key: plain[key] for key in keys if key in plain}
    answers = library.compose(version, [launch for _, launch in chosen], keys)
    assert len(answers) == len(chosen) > 5
    for (each, launch), answer in zip(chosen, answers, strict=True):
        assert "values" in answer, (each.slug, answer)
        ours = {**defaults, **dict(map(read, launch))}
        assert {key: answer["values"][key] for key in ours if key in keys} == {
            key: value for key, value in ours.items() if key in keys
        }, each.slug


@pytest.mark.parametrize("version", library.VERSIONS)
def test_no_key_that_a_launch_is_read_from_has_the_value_of_another(version: str) -> None:
    """A default that is an interpolation could not be read from the table alone."""
    for key in (*MANIFEST.keys(version), *READ):
        assert "${" not in str(TABLES[version].defaults.get(key)), key


@pytest.mark.slow
def test_the_older_release_refuses_the_newer_ones_arguments() -> None:
    """Which is why translation asks for the release."""
    newest = translated(cell())
    assert newest is not None
    (answer,) = library.compose("0.8.0", [overrides(newest)], [])
    assert "error" in answer


@pytest.mark.slow
def test_a_foreign_key_is_an_error_of_verl_but_a_foreign_value_is_not() -> None:
    answers = library.compose(
        "0.9.1", [["algorithm.kl_coef=0.1"], ["algorithm.kl_penalty=nonsense"]], []
    )
    assert ["error" in answer for answer in answers] == [True, False]


def test_drawn_cells_read_back_or_are_refused() -> None:
    kept = [each for each in drawn_cells() if translated(each)]
    assert len(kept) >= 10
    for each in kept:
        plan = translated(each, NASTY)
        assert plan is not None
        assert fingerprint(BACKEND.parse(plan.argv, plan.files)) == each.id
