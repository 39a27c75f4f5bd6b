"""A plan as it lies on disk, run up to the trainer with SkyRL's own code around it."""

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from backends.skyrl import BACKEND
from backends.skyrl.launch.orch_skyrl import number_last_export
from orchestrator.records import AttemptPaths, Cell
from tests.backends.skyrl.cells import VERSIONS, asynchronous, changed, onpolicy
from tests.backends.skyrl.library import launch

pytestmark = [pytest.mark.slow, pytest.mark.thorough]  # in a library's environment


def launched(cell: Cell, root: Path) -> dict[str, Any]:
    """The plan is written as the launcher does; the reward is one that needs no other package."""
    place = AttemptPaths(root / "a 'plan'", root / "attempts" / "1", root / "checkpoints")
    plan = BACKEND.translate(cell, place)
    place.plan_dir.mkdir()
    for name, text in plan.files.items():
        (place.plan_dir / name).parent.mkdir(exist_ok=True)
        (place.plan_dir / name).write_text(text, encoding="utf-8")
    (place.plan_dir / "reward.py").write_text(
        "def score(response, answer):\n    return 0.25 * ((response, answer) == ('four', '4'))"
    )
    return launch(plan.version, plan.argv[1:], plan.env)


@pytest.mark.parametrize("version", VERSIONS)
def test_on_policy_it_is_skyrls_own_trainer(version: str, tmp_path: Path) -> None:
    seen = launched(onpolicy(version), tmp_path)
    assert seen["trainer"] == "SimpleNamespace", "whatever BasePPOExp makes"
    assert seen["algorithm"] == [True, False]
    assert (seen["reward"], seen["done"]) == (0.25, True)
    assert seen["template"] == "its own"
    assert seen["tensorboard"] == str(tmp_path / "attempts" / "1" / "tensorboard-x1")
    assert seen["data"] == (["rows", 250 * 256, 0] if version == "0.2.0" else "rows")


@pytest.mark.parametrize("version", VERSIONS)
def test_asynchronously_it_is_the_asynchronous_one(version: str, tmp_path: Path) -> None:
    seen = launched(asynchronous(version), tmp_path)
    assert seen["trainer"] == "FullyAsyncRayPPOTrainer"
    assert seen["data"] == (["rows", 350 * 32, 0] if version == "0.2.0" else "rows")


@pytest.mark.parametrize("version", VERSIONS)
def test_the_kl_in_both_places_reaches_the_trainer(version: str, tmp_path: Path) -> None:
    """Though SkyRL's validator, which runs before, would refuse it."""
    cell = onpolicy(version)
    both = cell.settings.kl.model_copy(update={"placement": "reward_and_loss"})
    plain = cell.settings.model.model_copy(update={"chat_template": "none"})
    seen = launched(changed(cell, kl=both, model=plain), tmp_path)
    assert seen["algorithm"] == [True, True]
    assert "message['content']" in seen["template"]


def test_the_last_export_of_an_asynchronous_run_has_the_number_of_its_last_step(
    tmp_path: Path,
) -> None:
    """The trainer's own end: it has counted one step more, and saves once again."""

    class Trainer:
        cfg = SimpleNamespace(trainer=SimpleNamespace(export_path=str(tmp_path)))
        total_training_steps = 5
        global_step = 0

        def save_models(self) -> None:
            export = tmp_path / f"global_step_{self.global_step}" / "policy"
            export.mkdir(parents=True)
            (export / "tokenizer_config.json").write_text("{}")

    def end(trainer: Trainer, *steps: int) -> list[str]:
        for trainer.global_step in steps:
            trainer.save_models()
        return sorted(path.name for path in tmp_path.iterdir())

    trainer = Trainer()
    number_last_export(trainer)
    assert end(trainer, 2, 6) == ["global_step_2", "global_step_5"]
    assert trainer.global_step == 6, "what resumes counts on"
    shutil.rmtree(tmp_path / "global_step_2")
    assert end(trainer, 6) == ["global_step_5"], "it is there already"
