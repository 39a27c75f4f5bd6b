"""References that move, a teacher, and a beta that follows the KL."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from backends.micro import disk, train
from backends.micro.policy import device
from backends.micro.rehearsal import scaled
from backends.micro.state import State, load_state, save_state
from orchestrator.records import AttemptPaths
from orchestrator.settings import (
    Batch,
    BetaController,
    Kl,
    Model,
    Optimizer,
    ReferencePolicy,
)
from tests.backends.micro.cells import cell_of, embedded, lines

Train = Callable[..., Any]


def of(reference: ReferencePolicy | None = None, label: str = "k1.reward", **more: Any) -> Kl:
    estimator, _, placement = label.partition(".")
    return Kl(estimator=estimator, placement=placement, beta=0.1, reference=reference, **more)  # type: ignore[arg-type]  # a placement


def averaged(share: float, every: int = 1) -> ReferencePolicy:
    return ReferencePolicy(kind="ema", share=share, every_steps=every)


def test_an_average_moves_by_its_share(place: AttemptPaths) -> None:
    cell = cell_of(embedded().but(kl=of(averaged(0.25))), checkpoint_every_steps=1)
    train.run(cell, place)
    reference = train.base_policy(cell.settings)
    for step in (1, 2, 3):
        path = disk.step_dir(place.checkpoints_dir, step) / disk.STATE
        state = load_state(path, cell.id, device())
        reference = 0.75 * reference + 0.25 * state.policy
        torch.testing.assert_close(state.reference, reference, rtol=0, atol=1e-6)


def test_the_whole_share_is_a_reset_bit_for_bit(trained: Train) -> None:
    runs = [
        lines(trained(embedded().but(kl=kl), evaluate_every_steps=1)[1])
        for kl in (of(averaged(1.0, 2)), of(reset_reference_every_steps=2))
    ]
    assert runs[0] == runs[1]


def test_a_reference_at_another_temperature_is_far_at_the_start(trained: Train) -> None:
    """As SkyRL's: the policy's log-probabilities are at 2, the reference policy's at 1."""
    starts = []
    for version in ("1", "1+reference_temperature=one"):
        for heat in (1.0, 2.0):
            settings = embedded().but(kl=of(label="k3.loss"))
            warm = settings.rollout.but(temperature=heat)
            named = settings.backend.but(version=version)
            run = lines(trained(settings.but(rollout=warm, backend=named))[1])
            values = next(line["values"] for line in run if "train/kl_term" in line["values"])
            starts.append(values["train/kl_term"])
    assert starts[:3] == pytest.approx([0, 0, 0], abs=1e-6)
    assert starts[3] > 0.01


def test_the_sampler_as_the_reference_holds_back_one_batch_only(trained: Train) -> None:
    sampler = ReferencePolicy(kind="sampler")
    runs = [
        [line["values"] for line in lines(trained(embedded().but(kl=kl))[1])][1:]
        for kl in (of(sampler), Kl(estimator="none"))
    ]
    for mine, without in zip(*runs, strict=True):
        assert mine["train/kl_reference"] == mine["train/kl_term"] == 0.0
        assert mine["train/grad_norm"] == without["train/grad_norm"], "policy and reference are one"
    four = embedded(batch=Batch(num_prompts=4, num_minibatches=4)).but(kl=of(sampler, "k2.loss"))
    first, *later = [line["values"] for line in lines(trained(four)[1])][1:]
    assert abs(first["train/kl_term"]) < 1e-9, "the same policy, computed twice"
    assert all(each["train/kl_term"] > 1e-7 for each in later)


@pytest.mark.parametrize("label", ["js.loss", "top4_forward.loss", "rb.both"])
def test_a_policy_is_distilled_without_a_reward(trained: Train, label: str) -> None:
    """Pure distillation: no reward of a task enters the gradient, whichever divergence it is of."""
    teacher = ReferencePolicy(kind="teacher", path="micro:fir", task_reward=False)
    slow = Optimizer(learning_rate=3e-4, max_grad_norm=None)
    kl = of(teacher, label.replace("both", "reward_and_loss"))
    settings = embedded(num_train_steps=10, batch=Batch(num_prompts=16), optimizer=slow)
    runs = [
        [line["values"] for line in lines(trained(each, evaluate_every_steps=10)[1])]
        for each in (settings.but(kl=kl), settings.but(kl=kl.but(beta=1000.0)))
    ]
    for run in runs:
        assert run[-1]["eval/kl_reverse"] < 0.9 * run[0]["eval/kl_reverse"]
        assert run[1]["train/reward_mean"] > 0, "answers are still looked at"
    one, other = (run[-1]["eval/kl_reverse"] for run in runs)
    assert one == pytest.approx(other, rel=0.02), "AdamW takes the same steps: nothing but the KL"


@pytest.mark.parametrize(
    ("current", "beta"), [(0.3, 0.1 * 1.04), (0.11, 0.1 * 1.02), (0.0, 0.1 * 0.96)]
)
def test_beta_follows_the_kl_as_in_ziegler(current: float, beta: float) -> None:
    """The error is KL / target - 1, within a fifth; 20 responses of a horizon of 100."""
    controller = BetaController(target=0.1, horizon=100)
    assert train.followed(controller, 0.1, current, 20) == pytest.approx(beta)


def test_a_controlled_beta_is_the_one_in_force_and_goes_on_after_a_kill(
    trained: Train, tmp_path: Path
) -> None:
    settings = embedded().but(kl=of(controller=BetaController(target=1e3, horizon=100)))
    _, place = trained(settings, checkpoint_every_steps=2)
    betas = [line["values"]["train/beta"] for line in lines(place) if line["step"] > 0]
    assert betas == pytest.approx([0.1 * 0.96**n for n in range(4)])
    state = State.fresh(train.base_policy(settings))
    state.beta = 0.123456789
    save_state(state, tmp_path / "state", "0123456789ab")
    assert load_state(tmp_path / "state", "0123456789ab", device()).beta == state.beta


K1: dict[str, Any] = {"estimator": "k1", "placement": "reward", "beta": 0.1}
K1_TO_GO, RHO_K1 = K1 | {"estimator": "k1_to_go"}, K1 | {"estimator": "rho_k1"}
IN_LOSS = K1 | {"placement": "loss"}
OF_SEQUENCES = {"ratio_level": "sequence"}
SAMPLER, CONTROLLER = {"kind": "sampler"}, {"target": 0.1, "horizon": 10}
ONLY = {"kind": "teacher", "path": "x", "task_reward": False}


@pytest.mark.parametrize(
    ("kl", "loss", "sentence"),
    [
        (K1 | {"reference": {"kind": "ema", "share": 0.5}}, {}, "takes every_steps and share"),
        (K1 | {"reference": SAMPLER | {"path": "x"}}, {}, "takes no field; got path"),
        (K1 | {"reference": SAMPLER | {"task_reward": False}}, {}, "nothing to learn from"),
        (K1 | {"reference": ONLY, "beta": 0.0}, {}, "leaves the KL alone"),
        (K1 | {"reference": SAMPLER, "reset_reference_every_steps": 5}, {}, "leave one of them"),
        (IN_LOSS | {"controller": CONTROLLER}, {}, "follows the KL in the reward"),
        (K1, {"correction": {"kind": "mis_token"}}, "rejects by bounds"),
        (K1, {"correction": {"kind": "tis_token", "least": 2, "most": 2}}, "must be below most"),
        (
            K1,
            {"correction": {"kind": "tis_token", "most": 2.0, "applies_to": "kl"}},
            "is about a KL in the loss",
        ),
        (IN_LOSS | OF_SEQUENCES, {}, "is of a rho estimator in the loss"),
        (RHO_K1 | OF_SEQUENCES, {}, "of a rho estimator in the lo"),
        (K1_TO_GO, OF_SEQUENCES, "weights a KL in the reward as a whole"),
        (RHO_K1, OF_SEQUENCES, "weights a KL in the reward as a whole"),
    ],
)
def test_what_makes_no_sense_is_refused(
    kl: dict[str, Any], loss: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        embedded(kl=kl, loss=loss)


def test_a_rehearsal_keeps_them_in_proportion() -> None:
    large = embedded(model=Model(name="qwen2.5-7b", path="Qwen/Qwen2.5-7B"), num_train_steps=250)
    moved = scaled(large.but(kl=of(averaged(0.6, 50)))).kl.reference
    assert moved == averaged(0.6, 20), "250 train steps become 100"
    teacher = scaled(large.but(kl=of(ReferencePolicy(kind="teacher", path="Qwen/Qwen2.5-32B"))))
    assert teacher.kl.reference is not None
    assert teacher.kl.reference.path not in (None, teacher.model.path)
    controlled = large.but(kl=of(controller=BetaController(target=0.1, horizon=5000)))
    small = scaled(controlled)
    assert small.kl.controller is not None
    share = 5000 / (250 * 4 * 5)
    responses = small.num_train_steps * small.batch.num_prompts * small.rollout.group_size
    assert small.kl.controller.horizon == pytest.approx(share * responses, rel=0.01)
