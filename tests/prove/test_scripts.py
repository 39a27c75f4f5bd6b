"""Scripts that others wrote, as `orch prove --rehearse` reads them: what is kept, what is listed.

That the real libraries then train is tested beside the libraries (tests/backends/*/test_real.py).
"""

from pathlib import Path

import pytest

from orchestrator.errors import EnvironmentFault, SpecError
from orchestrator.lab.prove import real
from orchestrator.lab.prove.scaled_down import NOWHERE, on_cpu
from orchestrator.settings import Kl
from tests.prove.scripts import OPENRLHF, SKYRL, VERL


def chosen(tmp_path: Path, text: str) -> real.Chosen:
    path = tmp_path / "it's mine.sh"
    path.write_text(text)
    (only,) = real.chosen_of_script(path, tmp_path / "runs")
    return only


@pytest.mark.parametrize(
    ("text", "kl", "group", "updates"),
    [
        (OPENRLHF, Kl(estimator="k2", placement="loss", beta=0.001), 8, 2),
        (SKYRL, Kl(estimator="k3", placement="reward", beta=0.001), 5, 4),
        (VERL, Kl(estimator="k3", placement="loss", beta=0.001), 5, 4),
    ],
    ids=["openrlhf", "skyrl", "verl"],
)
def test_a_script_that_counts_epochs_is_rehearsed(
    text: str, kl: Kl, group: int, updates: int, tmp_path: Path
) -> None:
    rehearsal = chosen(tmp_path, text)
    settings = rehearsal.small.cell.settings
    assert (settings.kl, settings.rollout.group_size) == (kl, group)
    assert settings.batch.num_minibatches == updates
    assert settings.num_train_steps == real.BATCHES * updates
    assert not [each for each in rehearsal.small.changes if each.name == "num_train_steps"]
    launch = on_cpu(rehearsal.small.cell, NOWHERE, rehearsal.argv)
    assert launch.plan.argv
    listed = [*rehearsal.trimmed, *rehearsal.small.changes, *launch.deviations]
    assert all(each.why for each in rehearsal.trimmed)
    assert any("model" in each.name for each in listed)


def test_every_word_of_a_skyrl_script_is_kept_or_listed(tmp_path: Path) -> None:
    rehearsal = chosen(tmp_path, SKYRL)
    launch = on_cpu(rehearsal.small.cell, NOWHERE, rehearsal.argv)
    listed = {each.name for each in (*rehearsal.trimmed, *launch.deviations)}
    kept = dict(word.split("=", 1) for word in launch.plan.argv if "=" in word)
    given = dict(word.split("=", 1) for word in SKYRL.split() if word.startswith(("tr", "gen")))
    silent = {key for key, value in given.items() if key not in listed and key not in kept}
    assert not silent
    assert kept["trainer.algorithm.advantage_estimator"] == "rloo"
    assert "trainer.strategy" in listed


@pytest.mark.parametrize(
    ("text", "old", "new", "says"),
    [
        (OPENRLHF, "group_norm", "gae", "no advantage.estimator for 'gae'"),
        (OPENRLHF, "--eval.steps -1", "--algo.kl.target 6", "no cell has --algo.kl.target"),
        (SKYRL, "=rloo", "=gae", "no advantage.estimator for 'gae'"),
        (SKYRL, "generator.batched=true", "generator.max_turns=3", "no cell has 3"),
        (VERL, "=grpo", "=gae", "algorithm.adv_estimator=gae is none of"),
    ],
)
def test_what_no_cell_has_is_refused(
    text: str, old: str, new: str, says: str, tmp_path: Path
) -> None:
    assert old in text
    with pytest.raises(SpecError, match=says):
        chosen(tmp_path, text.replace(old, new))


def test_gspo_of_openrlhf_is_read_whatever_its_unread_aggregation_says(tmp_path: Path) -> None:
    script = OPENRLHF.replace("--eval.steps -1", "--actor.policy_loss_type gspo")
    loss = chosen(tmp_path, script).small.cell.settings.loss
    assert (loss.policy, loss.aggregation) == ("gspo", "sequence_mean")


def test_a_library_without_a_way_for_scripts_says_so(tmp_path: Path) -> None:
    script = "trl grpo --model_name_or_path a/b --dataset_name c/d --beta 0.04 --max_steps 9\n"
    with pytest.raises(EnvironmentFault, match=r"of TRL \(it can for OpenRLHF, SkyRL, v"):
        chosen(tmp_path, script)
