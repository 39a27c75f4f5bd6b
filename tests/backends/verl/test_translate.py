import time
from typing import Any

import pytest

from backends.verl import BACKEND
from backends.verl.overrides import read
from orchestrator.errors import UnsupportedSetting
from orchestrator.identity import fingerprint, flatten
from orchestrator.records import LaunchPlan, LedgerEntry
from orchestrator.settings import Kl
from tests.backends.verl.cells import NASTY, PLACE, cell, overrides, shipped, translated

ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"


def launch(changes: dict[str, Any] | None = None, **more: int) -> LaunchPlan:
    return BACKEND.translate(cell(changes, **more), PLACE)


def values(plan: LaunchPlan) -> dict[str, object]:
    return dict(map(read, overrides(plan)))


def account(plan: LaunchPlan, field: str) -> LedgerEntry:
    return next(entry for entry in plan.ledger if entry.field == field)


def kl(estimator: str, placement: str, beta: float = 0.1) -> dict[str, Any]:
    return {"kl": {"estimator": estimator, "placement": placement, "beta": beta}}


def test_table_2_of_the_paper() -> None:
    argv = launch(kl("k1", "reward")).argv
    assert "algorithm.use_kl_in_reward=True" in argv
    assert "algorithm.kl_penalty=kl" in argv
    # The table gives no coefficient, and verl's default is none of the paper's.
    assert "algorithm.kl_ctrl.kl_coef=0.1" in argv
    assert f"{ACTOR}.use_kl_loss=False" in argv


@pytest.mark.parametrize(
    ("placement", "reward", "loss"),
    [("reward", True, False), ("loss", False, True), ("reward_and_loss", True, True)],
)
def test_kl_enters_where_it_is_placed(placement: str, reward: bool, loss: bool) -> None:
    found = values(launch(kl("k3", placement, 0.3)))
    assert found["algorithm.use_kl_in_reward"] is reward
    assert found.get("algorithm.kl_penalty") == ("k3" if reward else None)
    assert found.get("algorithm.kl_ctrl.kl_coef") == (0.3 if reward else None)
    assert found[f"{ACTOR}.use_kl_loss"] is loss
    assert found.get(f"{ACTOR}.kl_loss_type") == ("k3" if loss else None)
    assert found.get(f"{ACTOR}.kl_loss_coef") == (0.3 if loss else None)


def test_minibatches_count_train_steps_and_verl_counts_batches() -> None:
    plan = launch(
        {"batch": {"num_prompts": 1024, "num_minibatches": 4}, "num_train_steps": 1000},
        checkpoint_every_steps=200,
        evaluate_every_steps=40,
    )
    found = values(plan)
    assert found["data.train_batch_size"] == 1024
    assert found[f"{ACTOR}.ppo_mini_batch_size"] == 256
    assert found["trainer.total_training_steps"] == 250
    assert found["trainer.save_freq"] == 50
    assert found["trainer.test_freq"] == 10
    assert str(found["trainer.default_local_dir"]).endswith("/x4")
    assert plan.env["VERL_FILE_LOGGER_PATH"].endswith("verl.x4.jsonl")


def test_epochs_never_end_training_early() -> None:
    """verl stops at the earlier of steps and epochs: 30 epochs of MATH at 1024 are 210 steps."""
    for each in shipped()[:20]:
        plan = translated(each)
        assert plan is not None
        found = values(plan)
        assert found["trainer.total_epochs"] == found["trainer.total_training_steps"]


def test_without_a_cadence_the_last_step_is_kept_and_evaluated() -> None:
    found = values(launch())
    assert found["trainer.save_freq"] == found["trainer.test_freq"] == 250
    assert found["trainer.val_before_train"] is True


def test_dr_grpo_is_grpo_with_a_mean_and_a_constant() -> None:
    found = values(
        launch(
            {
                "advantage.estimator": "dr_grpo",
                "loss": {"aggregation": "constant", "constant_tokens": 4096},
            }
        )
    )
    assert found["algorithm.adv_estimator"] == "grpo"
    assert found["algorithm.norm_adv_by_std_in_grpo"] is False
    assert found[f"{ACTOR}.loss_agg_mode"] == "seq-mean-token-sum-norm"
    assert found[f"{ACTOR}.loss_scale_factor"] == 4096


def test_no_clip_is_bounds_that_no_ratio_reaches() -> None:
    found = values(launch({"loss.clip": None}))
    bounds = [found[f"{ACTOR}.clip_ratio_{bound}"] for bound in ("low", "high", "c")]
    assert bounds == [1.0, 1e9, 1e9]
    found = values(launch({"loss.clip": {"low": 0.2, "high": 0.28, "dual": 3.0}}))
    bounds = [found[f"{ACTOR}.clip_ratio_{bound}"] for bound in ("low", "high", "c")]
    assert bounds == [0.2, 0.28, 3.0]


def test_staleness_is_a_bound_held_by_waiting() -> None:
    plan = launch({"max_staleness_steps": 10})
    found = values(plan)
    assert found["trainer.v1.trainer_mode"] == "separate_async"
    assert found["trainer.v1.separate_async.num_warmup_batches"] == 10
    assert found["trainer.v1.sampler.max_off_policy_threshold"] == 11
    assert found["trainer.v1.sampler.max_off_policy_strategy"] == "wait"
    assert found["algorithm.rollout_correction.bypass_mode"] is True
    assert (found["trainer.nnodes"], found["trainer.n_gpus_per_node"]) == (1, 4)
    assert (found[f"{ROLLOUT}.nnodes"], found[f"{ROLLOUT}.n_gpus_per_node"]) == (1, 4)
    assert found[f"{ROLLOUT}.checkpoint_engine.backend"] != "naive"
    assert account(plan, "max_staleness_steps").status == "approximated"


def test_staleness_on_one_node_halves_its_gpus_and_counts_batches() -> None:
    changes = {"max_staleness_steps": 8, "batch.num_minibatches": 4, "num_train_steps": 40}
    found = values(launch(changes, nodes=1))
    assert (found["trainer.n_gpus_per_node"], found[f"{ROLLOUT}.n_gpus_per_node"]) == (2, 2)
    parts = found["trainer.v1.separate_async.parameter_sync_step"]
    assert isinstance(parts, int)
    assert found["data.train_batch_size"] == parts * 64 == 256
    assert found["trainer.v1.separate_async.num_warmup_batches"] == 2


def test_weighted_estimators_bring_their_module_along() -> None:
    plan = launch(kl("sg_rho_k2", "reward_and_loss"))
    found = values(plan)
    assert found[f"{ACTOR}.kl_loss_type"] == "sg_rho_k2"
    assert found["algorithm.kl_penalty"] == "k2"
    assert plan.env["VERL_USE_EXTERNAL_MODULES"] == "orch_verl"
    assert plan.env["PYTHONPATH"] == "/runs/e/cells/c/plan/extension"
    for name, value in plan.env.items():
        assert found[f"ray_kwargs.ray_init.runtime_env.env_vars.{name}"] == value
    assert "def install" in plan.files["extension/orch_verl.py"]
    assert account(plan, "kl.estimator").status == "extension"
    assert account(launch({"advantage.estimator": "reinforce"}), "advantage.estimator").status == (
        "extension"
    )
    assert "extension/orch_verl.py" not in launch(kl("k2", "loss")).files


def test_the_ledger_owns_up_to_the_clamp() -> None:
    for placement in ("loss", "reward"):
        entry = account(launch(kl("k3", placement)), "kl.estimator")
        assert entry.status == "approximated"
        assert "±10" in entry.note
    assert account(launch(kl("k1", "reward")), "kl.estimator").status == "exact"


def test_the_ledger_has_one_entry_for_each_leaf_and_keys_that_are_sent() -> None:
    for each in shipped()[::7]:
        plan = translated(each)
        assert plan is not None
        leaves = [name for name, _ in flatten(each.settings.model_dump())]
        fields = [*leaves, "cadence.evaluate_every_steps"]
        assert [entry.field for entry in plan.ledger] == fields
        sent = values(plan)
        assert not {entry.key for entry in plan.ledger if entry.key} - sent.keys()


def test_the_older_release_has_its_own_arguments() -> None:
    found = values(launch({"backend.version": "0.8.0"}))
    assert not [key for key in found if "v1" in key]
    assert f"{ROLLOUT}.seed" not in found
    entry = account(launch({"backend.version": "0.8.0"}), "seed")
    assert "before 0.9" in entry.note


@pytest.mark.parametrize(
    ("changes", "field", "advice"),
    [
        ({"backend.version": "0.7.1"}, "backend.version", "0.9.1"),
        ({**kl("rho_k3", "reward")}, "kl.estimator", "Set kl.estimator=k1_to_go"),
        ({"optimizer.schedule": "linear"}, "optimizer.schedule", "cosine"),
        ({"optimizer.max_grad_norm": 1e9}, "optimizer.max_grad_norm", "null"),
        ({"loss.clip": {"low": 0.2, "high": 1e9}}, "loss.clip.high", "null"),
        ({"seed": 2**32}, "seed", "smaller"),
        ({"batch.num_prompts": 8000}, "batch.num_prompts", "smaller"),
        ({"batch.num_prompts": 12, "rollout.group_size": 3}, "batch.num_prompts", "GPUs"),
        ({"backend.version": "0.8.0", "max_staleness_steps": 1}, "max_staleness_steps", "0.9.1"),
        (
            {"max_staleness_steps": 3, "batch.num_minibatches": 2},
            "max_staleness_steps",
            "num_minibatches",
        ),
        (
            {"optimizer.num_warmup_steps": 3, "batch.num_minibatches": 2},
            "optimizer.num_warmup_steps",
            "num_minibatches",
        ),
        (
            {
                "kl": {
                    **kl("k1", "reward_and_loss")["kl"],
                    "controller": {"target": 0.01, "horizon": 20_000},
                }
            },
            "kl.controller",
            "moves the beta of the reward",
        ),
        (kl("rb", "reward_and_loss"), "kl.estimator", "needs. TRL trains full"),
        (kl("js", "loss"), "kl.estimator", "ppo_loss, line 133"),
        (
            {**kl("k1", "reward"), "kl.reset_reference_every_steps": 50},
            "kl.reset_reference_every_steps",
            "once",
        ),
    ],
)
def test_what_verl_cannot_do_is_refused_with_field_and_advice(
    changes: dict[str, Any], field: str, advice: str
) -> None:
    with pytest.raises(UnsupportedSetting) as refusal:
        launch(changes)
    assert refusal.value.field == field
    assert refusal.value.offered
    assert advice in str(refusal.value)


@pytest.mark.parametrize(("staleness", "nodes", "gpus"), [(0, 1, 0), (1, 1, 1)])
def test_too_few_gpus_are_refused(staleness: int, nodes: int, gpus: int) -> None:
    with pytest.raises(UnsupportedSetting) as refusal:
        launch({"max_staleness_steps": staleness}, nodes=nodes, gpus=gpus)
    assert refusal.value.field == "resources.gpus_per_node"


def test_what_does_not_change_the_result_does_not_change_what_is_read_back() -> None:
    each = cell(kl("k1", "reward"), checkpoint_every_steps=7)
    plan = BACKEND.translate(each, NASTY)
    assert fingerprint(BACKEND.parse(plan.argv, plan.files)) == each.id
    assert BACKEND.parse(plan.argv, plan.files).data.name == each.settings.data.name


def test_a_version_not_asked_for_stays_so() -> None:
    for version in (None, "0.9.1", "0.8.0"):
        plan = launch({"backend.version": version})
        assert BACKEND.parse(plan.argv, plan.files).backend.version == version
        assert plan.version == (version or "0.9.1")


@pytest.mark.parametrize("version", ["0.9.1", "0.8.0"])
def test_a_beta_that_follows_the_kl_is_verls_own_controller(version: str) -> None:
    controlled = kl("k1", "reward")
    controlled["kl"]["controller"] = {"target": 0.01, "horizon": 20_000}
    plan = launch({**controlled, "backend.version": version})
    assert {
        "algorithm.kl_ctrl.type=adaptive",
        "algorithm.kl_ctrl.target_kl=0.01",
        "algorithm.kl_ctrl.horizon=20000",
        "algorithm.kl_ctrl.kl_coef=0.1",
    } <= set(plan.argv)
    back = BACKEND.parse(plan.argv, plan.files).kl.controller
    assert back is not None
    assert (back.target, back.horizon) == (0.01, 20_000)


def test_an_estimator_that_verl_does_not_know_is_refused() -> None:
    """One that is added to the core alone: no row names it."""
    known = cell(kl("k3", "loss"))
    for placement in ("loss", "reward", "reward_and_loss"):
        term = Kl.model_construct(
            estimator="k4",  # type: ignore[arg-type]  # unknown to the core, on purpose
            placement=placement,  # type: ignore[arg-type]  # one of the literals, from a parameter
            beta=0.1,
            reset_reference_every_steps=None,
        )
        settings = known.settings.model_copy(update={"kl": term})
        with pytest.raises(UnsupportedSetting, match=r"kl\.estimator=k4") as refusal:
            BACKEND.translate(known.model_copy(update={"settings": settings}), PLACE)
        assert refusal.value.field == "kl.estimator"
        assert refusal.value.value == "k4"
        assert {"k1", "k2", "k3", "abs"} <= set(refusal.value.offered)
        assert "k4" not in refusal.value.offered


def test_a_thousand_cells_take_half_a_second() -> None:
    cells = shipped()
    started = time.process_time()
    for i in range(1000):
        translated(cells[i % len(cells)])
    assert time.process_time() - started < 2.0  # 0.2 s here; a slip of ten times is caught


IS = "algorithm.rollout_correction.rollout_is"


@pytest.mark.parametrize(
    ("correction", "level", "threshold"),
    [
        ({"kind": "tis_token", "most": 2.0}, "token", 2.0),
        ({"kind": "tis_sequence", "most": 4.5}, "sequence", 4.5),
        ({"kind": "mis_token", "least": 0.5, "most": 5.0}, "token", "0.5_5.0"),
        ({"kind": "mis_sequence", "least": 0.1, "most": 2.0}, "sequence", None),
    ],
)
def test_a_correction_is_sent_and_read_back(
    correction: dict[str, Any], level: str, threshold: object
) -> None:
    asked = cell({"loss": {"correction": correction}})
    plan = BACKEND.translate(asked, PLACE)
    assert values(plan)[IS] == level
    sent = values(plan)[f"{IS}_threshold"]
    assert threshold is None or sent == threshold
    assert "algorithm.rollout_correction.bypass_mode" not in values(plan)
    back = BACKEND.parse(plan.argv, plan.files)
    assert back.loss.correction == asked.settings.loss.correction
    assert account(plan, "loss.correction.kind").status == "exact"


REJECTIONS = [
    ("reject_token", "token_k1"),
    ("reject_sequence", "seq_sum_k1"),
    ("geometric", "seq_mean_k1"),
]


@pytest.mark.parametrize(("kind", "rejection"), REJECTIONS)
@pytest.mark.parametrize("bounds", [(0.5, 2.5), (0.98, 49.0), (0.9999, 1.0001)])
def test_a_rejection_is_sent_with_inverse_bounds_and_read_back(
    kind: str, rejection: str, bounds: tuple[float, float]
) -> None:
    least, most = bounds
    own = {"kind": kind, "least": least, "most": most}
    for term, part in ((kl("k3", "loss"), "both"), (kl("k1", "reward"), "policy_loss")):
        asked = cell({**term, "loss": {"correction": {**own, "applies_to": part}}})
        plan = BACKEND.translate(asked, PLACE)
        assert values(plan)["algorithm.rollout_correction.rollout_rs"] == rejection
        sent = str(values(plan)["algorithm.rollout_correction.rollout_rs_threshold"])
        assert [float(each) for each in sent.split("_")] == [1 / most, 1 / least]
        back = BACKEND.parse(plan.argv, plan.files)
        assert back.loss.correction == asked.settings.loss.correction
        assert account(plan, "loss.correction.kind").status == "exact"


@pytest.mark.parametrize(
    ("loss", "field"),
    [
        ({"aggregation": "sequence_mean"}, "loss.aggregation"),
        ({"policy": "gspo", "aggregation": "sequence_mean"}, "loss.aggregation"),
        ({"entropy_bonus": 0.01}, "loss.entropy_bonus"),
    ],
)
def test_what_a_rejected_token_changes_beside_the_loss_is_refused(
    loss: dict[str, Any], field: str
) -> None:
    correction = {"kind": "reject_token", "least": 0.5, "most": 2.0}
    with pytest.raises(UnsupportedSetting) as refused:
        launch({"kl": {"estimator": "none"}, "loss": {**loss, "correction": correction}})
    assert refused.value.field == field


def test_no_correction_sends_what_was_sent_before() -> None:
    plan = launch()
    assert not any("rollout_is" in key for key in values(plan))
    assert BACKEND.parse(plan.argv, plan.files).loss.correction is None


@pytest.mark.parametrize(
    ("correction", "field"),
    [
        ({"kind": "geometric", "most": 1.1, "applies_to": "both"}, "loss.correction.least"),
        ({"kind": "reject_token", "least": 0.5, "most": 2.0}, "loss.correction.applies_to"),
        ({"kind": "tis_token", "least": 0.5, "most": 2.0}, "loss.correction.least"),
        ({"kind": "mis_token", "most": 2.0}, "loss.correction.least"),
        ({"kind": "tis_token"}, "loss.correction.most"),
        ({"kind": "tis_token", "most": 2.0, "applies_to": "both"}, "loss.correction.applies_to"),
    ],
)
def test_what_verl_does_not_correct_so_is_refused(correction: dict[str, Any], field: str) -> None:
    changes = {**kl("k3", "loss"), "loss": {"correction": correction}}
    with pytest.raises(UnsupportedSetting) as refused:
        launch(changes)
    assert refused.value.field == field


def test_a_stale_cell_and_the_older_release_have_no_correction() -> None:
    loss = {"correction": {"kind": "tis_token", "most": 2.0}}
    for changes in ({"max_staleness_steps": 1}, {"backend": {"name": "verl", "version": "0.8.0"}}):
        with pytest.raises(UnsupportedSetting) as refused:
            launch({"loss": loss, **changes})
        assert refused.value.field == "loss.correction"
