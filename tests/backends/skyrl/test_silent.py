"""What SkyRL's validator takes and its trainer does otherwise: each is a fault of the launch."""

import pytest

from backends.skyrl import BACKEND
from backends.skyrl.parse import parse
from orchestrator.errors import SpecError
from orchestrator.records import LaunchPlan
from tests.backends.skyrl.cells import PLACE, asynchronous, onpolicy
from tests.backends.skyrl.library import ask

A, ASYNC = "trainer.algorithm", "trainer.fully_async"
OFF = f"{A}.off_policy_correction"
MASKED = f"{OFF}.token_mask_is_threshold_low=0.5 {OFF}.token_mask_is_threshold_high=2.0"
MAIN = "-m skyrl.train.entrypoints.main_base"

ODD = " ".join(
    [
        "generator.n_samples_per_prompt=3",
        "trainer.train_batch_size=12",
        "trainer.policy_mini_batch_size=12",
        "trainer.micro_train_batch_size_per_gpu=1",
        "trainer.micro_forward_batch_size_per_gpu=1",
    ]
)
"""36 rollouts for 8 GPUs."""
SILENT = (
    (f"{A}.use_tis=true", "set it to false"),
    (f"{OFF}.outlier_token_is_threshold_high=9.0", "set it to null"),
    (
        f"{OFF}.sequence_mask_metric=geometric {OFF}.tis_ratio_type=token",
        "orch has no loss.correction.kind",
    ),
    (f"{MASKED} generator.sampling_params.logprobs=null", "as if no mask were set"),
    (f"{A}.zero_variance_filter=true", "set it to false"),
    ("trainer.update_epochs_per_batch=2", "set it to 1"),
    ("generator.apply_overlong_filtering=true", "set it to false"),
    (f"{ASYNC}.max_staleness_steps=3", "the launch is synchronous"),
    ("trainer.epochs=2", "ends after 58 of 250 rollout batches"),
    (ODD, "do not divide among 8 GPUs"),
)


def faults(plan: LaunchPlan, more: str, start: str | None = None) -> list[str]:
    first = list(plan.argv[:2]) if start is None else start.split()
    with pytest.raises(SpecError) as caught:
        parse([*first, *plan.argv[2:], *more.split()], plan.files)
    return [str(fault) for fault in caught.value.faults]


@pytest.mark.parametrize(("more", "sentence"), SILENT)
def test_a_launch_that_says_one_thing_and_does_another(more: str, sentence: str) -> None:
    plan = BACKEND.translate(onpolicy("0.4.0"), PLACE)
    (fault,) = faults(plan, more)
    assert sentence in fault
    assert more.split()[-1].partition("=")[0] in fault or "policy_mini_batch_size" in fault


def test_skyrl_takes_them_all() -> None:
    """A row that SkyRL refuses by now needs no fault of ours."""
    plan = BACKEND.translate(onpolicy("0.4.0"), PLACE)
    answers = ask("0.4.0", [[*plan.argv[2:], *more.split()] for more, _ in SILENT])
    assert [answer.get("error") for answer in answers] == [None] * len(SILENT)


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ("trainer.policy_mini_batch_size=16", "one update a rollout batch"),
        ("trainer.placement.colocate_all=true", "samples on GPUs of its own"),
    ],
)
def test_what_its_asynchronous_trainer_refuses_once_it_is_built(more: str, sentence: str) -> None:
    plan = BACKEND.translate(asynchronous("0.4.0"), PLACE)
    assert any(sentence in fault for fault in faults(plan, more))


def test_its_own_entry_point_ignores_that_training_is_asynchronous() -> None:
    plan = BACKEND.translate(asynchronous("0.4.0"), PLACE)
    (fault,) = faults(plan, "", f"python {MAIN}")
    assert "always builds the synchronous trainer" in fault
