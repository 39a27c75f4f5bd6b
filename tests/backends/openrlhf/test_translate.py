"""Translation: golden flags, the ledger, what is refused and with which advice."""

import json
import time
from typing import Any

import pytest

from backends.openrlhf import BACKEND
from backends.openrlhf.flags import FLAT, NEWEST, VERSIONS
from orchestrator.errors import SpecError, UnsupportedSetting
from orchestrator.identity import fingerprint
from orchestrator.records import LaunchPlan, LedgerEntry
from orchestrator.settings import Cadence, EngineCorrection, Loss, Resources
from tests.backends.openrlhf.cells import PLACE, base, cell_of, shipped

GPUS = Resources(num_nodes=1, gpus_per_node=8)


def plan_of(
    version: str | None = NEWEST, cell: dict[str, Any] | None = None, **changes: Any
) -> LaunchPlan:
    settings = base(backend={"version": version}, **changes)
    return BACKEND.translate(cell_of(settings, **(cell or {})), PLACE)


def flags(plan: LaunchPlan) -> dict[str, tuple[str, ...]]:
    """--name -> the words after it."""
    given: dict[str, tuple[str, ...]] = {}
    name = ""
    for word in plan.argv[3:]:
        if word.startswith("--"):
            name = word
            given[name] = ()
        else:
            given[name] += (word,)
    return given


def entry(plan: LaunchPlan, field: str) -> LedgerEntry:
    return next(e for e in plan.ledger if e.field == field)


class TestGolden:
    def test_the_paper_s_on_policy_cell(self) -> None:
        plan = plan_of(num_train_steps=250, cell={"cadence": Cadence(checkpoint_every_steps=50)})
        prompts = ",".join([str(PLACE.plan_dir / "data/train.jsonl")] * 9)
        checkpoints = PLACE.checkpoints_dir
        assert plan.argv[:3] == ("python3", "-m", "openrlhf.cli.train_ppo_ray")
        assert flags(plan) == {
            "--actor.model_name_or_path": ("Qwen/Qwen2.5-7B",),
            "--data.prompt_dataset": (prompts,),
            "--data.max_samples": ("64000",),
            "--data.input_key": ("prompt",),
            "--data.label_key": ("label",),
            "--data.apply_chat_template": (),
            "--data.max_len": ("2048",),
            "--reward.remote_url": (str(PLACE.plan_dir / "reward.py"),),
            "--reward.clip_range": ("-1000.0", "1000.0"),
            "--rollout.batch_size": ("256",),
            "--rollout.n_samples_per_prompt": ("5",),
            "--rollout.max_new_tokens": ("1024",),
            "--rollout.temperature": ("1.0",),
            "--rollout.top_p": ("1.0",),
            "--rollout.micro_batch_size": ("8",),
            "--algo.advantage.estimator": ("rloo",),
            "--algo.kl.init_coef": ("0.05",),
            "--algo.kl.estimator": ("k1",),
            "--actor.loss_agg_mode": ("token-mean",),
            "--actor.eps_clip_low_high": ("0.2", "0.2"),
            "--actor.entropy_coef": ("0.0",),
            "--actor.adam.lr": ("1e-06",),
            "--actor.adam.betas": ("0.9", "0.999"),
            "--actor.adam.eps": ("1e-08",),
            "--actor.adam.weight_decay": ("0.0",),
            "--actor.max_norm": ("1.0",),
            "--actor.lr_scheduler": ("constant_with_warmup",),
            "--actor.lr_warmup_ratio": ("0.0",),
            "--train.batch_size": ("1280",),
            "--train.micro_batch_size": ("8",),
            "--train.num_episodes": ("1",),
            "--train.max_epochs": ("1",),
            "--train.seed": ("0",),
            "--actor.num_nodes": ("2",),
            "--actor.num_gpus_per_node": ("4",),
            "--ref.num_nodes": ("2",),
            "--ref.num_gpus_per_node": ("4",),
            "--vllm.num_engines": ("8",),
            "--vllm.tensor_parallel_size": ("1",),
            "--ds.zero_stage": ("3",),
            "--ds.param_dtype": ("bf16",),
            "--ds.packing_samples": (),
            "--actor.gradient_checkpointing_enable": (),
            "--train.colocate_all": (),
            "--vllm.enable_sleep": (),
            "--ds.enable_sleep": (),
            "--vllm.gpu_memory_utilization": ("0.6",),
            "--eval.dataset": (str(PLACE.plan_dir / "data" / "validation.jsonl"),),
            "--eval.steps": ("250",),
            "--eval.temperature": ("1.0",),
            "--eval.n_samples_per_prompt": ("1",),
            "--ckpt.best_metric_key": ("none",),
            "--ckpt.path": (str(checkpoints / "global_step-x1"),),
            "--ckpt.output_dir": (str(checkpoints / "step-250"),),
            "--ckpt.save_steps": ("50",),
            "--ckpt.save_hf": (),
            "--ckpt.max_num": ("2",),
            "--ckpt.load_enable": (),
            "--logger.tensorboard_dir": (
                str(PLACE.attempt_dir / "tensorboard" / "global_step-x1"),
            ),
            "--logger.wandb.run_name": (cell_of(base()).slug,),
        }
        assert plan.env == {"RAY_ADDRESS": "auto"}

    def test_four_minibatches(self) -> None:
        plan = plan_of(
            batch={"num_prompts": 1024, "num_minibatches": 4},
            num_train_steps=1000,
            cell={"cadence": Cadence(checkpoint_every_steps=200)},
        )
        told = flags(plan)
        assert told["--rollout.batch_size"] == ("1024",)
        assert told["--train.batch_size"] == ("1280",)
        assert told["--data.max_samples"] == ("256000",)
        assert told["--ckpt.save_steps"] == ("50",), "the library counts rollout batches"
        assert told["--logger.tensorboard_dir"][0].endswith("/global_step-x4")

    def test_asynchronous(self) -> None:
        plan = plan_of(
            max_staleness_steps=10,
            kl={"placement": "loss", "estimator": "k3"},
            advantage={"estimator": "dr_grpo"},
        )
        told = flags(plan)
        assert told["--train.async_enable"] == ()
        assert told["--train.async_queue_size"] == ("10",)
        assert told["--algo.kl.use_loss"] == ()
        assert told["--algo.advantage.estimator"] == ("dr_grpo",)
        assert told["--actor.num_nodes"] == ("1",), "half of the nodes sample"
        assert not {"--vllm.enable_sleep", "--ds.enable_sleep", "--train.colocate_all"} & set(told)
        assert "lag" in entry(plan, "max_staleness_steps").note

    def test_the_flat_flags(self) -> None:
        told = flags(plan_of(FLAT, kl={"placement": "loss", "estimator": "k3"}, seed=3))
        assert told["--pretrain"] == ("Qwen/Qwen2.5-7B",)
        assert told["--kl_estimator"] == ("k3",)
        assert told["--init_kl_coef"] == ("0.05",)
        assert told["--use_kl_loss"] == ()
        assert told["--l2"] == ("0.0",)
        assert told["--seed"] == ("3",)
        assert not [name for name in told if "." in name]

    def test_table_2_of_the_paper(self) -> None:
        """`DO NOT set --use_kl_loss, --kl_estimator="k1"`: verbatim up to 0.10.1, renamed since."""
        old, new = plan_of(FLAT), plan_of(NEWEST)
        assert flags(old)["--kl_estimator"] == ("k1",)
        assert "--use_kl_loss" not in old.argv
        assert flags(new)["--algo.kl.estimator"] == ("k1",)
        assert "--algo.kl.use_loss" not in new.argv
        assert "--kl_estimator" not in new.argv


@pytest.mark.parametrize(
    ("version", "changes", "field", "advice"),
    [
        ("0.10.4", {}, "backend.version", "did you mean '0.10.1.post2'|renamed at 0.10.2"),
        (NEWEST, {"kl": {"placement": "reward_and_loss"}}, "kl.placement", "silently"),
        (NEWEST, {"kl": {"estimator": "abs"}}, "kl.estimator", "k1"),
        (NEWEST, {"kl": {"estimator": "abs", "placement": "loss"}}, "kl.estimator", r"=k1\+"),
        (NEWEST, {"kl": {"estimator": "rho_k2", "placement": "loss"}}, "kl.estimator", r"=k1\+"),
        (NEWEST, {"kl": {"estimator": "rho_k3"}}, "kl.estimator", "rho_k3 is k3 there"),
        (
            NEWEST,
            {"kl": {"estimator": "rho_k3", "placement": "loss"}, "max_staleness_steps": 10},
            "kl.estimator",
            "max_staleness_steps=0",
        ),
        (
            NEWEST,
            {"kl": {"estimator": "k3+", "placement": "loss"}, "batch": {"num_minibatches": 4}},
            "kl.estimator",
            "ask for sg_rho_k2",
        ),
        (
            NEWEST,
            {
                "kl": {"estimator": "k3+", "placement": "loss"},
                "batch": {"num_minibatches": 4},
                "max_staleness_steps": 4,
            },
            "kl.estimator",
            "ask for k2",
        ),
        (
            NEWEST,
            {"kl": {"estimator": "rho_k1", "placement": "loss"}, "max_staleness_steps": 4},
            "kl.estimator",
            "Set kl.estimator=k2",
        ),
        (FLAT, {"kl": {"estimator": "k3+", "placement": "loss"}}, "kl.estimator", NEWEST),
        (
            NEWEST,
            {"kl": {"reset_reference_every_steps": 50}},
            "kl.reset_reference_every_steps",
            "leave the field out",
        ),
        (
            NEWEST,
            {"loss": Loss(aggregation="constant", constant_tokens=9)},
            "loss.aggregation",
            "token_mean",
        ),
        (NEWEST, {"advantage": {"estimator": "reinforce"}}, "advantage.estimator", "rloo"),
        (NEWEST, {"data": {"num_prompts": None}}, "data.num_prompts", "no number of steps"),
        (NEWEST, {"data": {"num_prompts": 100}}, "data.num_prompts", "615 passes"),
        (NEWEST, {"model": {"path": "--help"}}, "model.path", "./"),
        (
            NEWEST,
            {"max_staleness_steps": 3, "batch": {"num_minibatches": 2}},
            "max_staleness_steps",
            "whole rollout batches",
        ),
        (NEWEST, {"batch": {"num_prompts": 252}}, "batch.num_prompts", "1260 rollouts and 8 GPUs"),
        (FLAT, {"optimizer": {"schedule": "cosine"}}, "optimizer.schedule", NEWEST),
        (FLAT, {"optimizer": {"epsilon": 1e-6}}, "optimizer.epsilon", NEWEST),
        (
            FLAT,
            {"batch": {"num_prompts": 8}, "rollout": {"group_size": 7}, "num_train_steps": 5},
            None,
            "",
        ),
        (
            FLAT,
            {
                "batch": {"num_prompts": 8, "num_minibatches": 8},
                "rollout": {"group_size": 8},
                "num_train_steps": 8,
            },
            "loss.aggregation",
            "sequence_mean",
        ),
    ],
)
def test_what_cannot_be_run_is_refused_with_the_nearest_that_can(
    version: str, changes: dict[str, Any], field: str | None, advice: str
) -> None:
    if isinstance(changes.get("loss"), Loss):
        changes = {**changes, "loss": changes["loss"].model_dump()}
    if field is None:
        plan_of(version, **changes)
        return
    with pytest.raises(UnsupportedSetting, match=advice) as caught:
        plan_of(version, **changes)
    assert caught.value.field == field
    assert caught.value.offered


@pytest.mark.parametrize(
    ("resources", "stale"),
    [
        (Resources(), 0),
        (Resources(num_nodes=1, gpus_per_node=1), 10),
        (Resources(num_nodes=2, gpus_per_node=0), 10),
    ],
)
def test_gpus_that_cannot_hold_a_cell(resources: Resources, stale: int) -> None:
    with pytest.raises(UnsupportedSetting, match="gpus_per_node"):
        plan_of(max_staleness_steps=stale, cell={"resources": resources})


class TestLedger:
    def test_kl_in_the_reward_is_outside_the_baseline(self) -> None:
        placement = entry(plan_of(), "kl.placement")
        assert placement.status == "approximated"
        assert "after the group baseline" in placement.note
        assert entry(plan_of(), "kl.estimator").status == "approximated"

    def test_without_kl_nothing_is_approximated_about_it(self) -> None:
        plan = plan_of(kl={"estimator": "none", "placement": None, "beta": 0.0})
        assert {
            entry(plan, f"kl.{leaf}").status for leaf in ("estimator", "placement", "beta")
        } == {"exact"}
        assert "no reference policy" in entry(plan, "kl.beta").note
        assert flags(plan)["--algo.kl.init_coef"] == ("0.0",)

    def test_the_flat_release_does_not_divide_by_the_minibatch(self) -> None:
        assert entry(plan_of(FLAT), "loss.aggregation").status == "approximated"
        assert entry(plan_of(NEWEST), "loss.aggregation").status == "exact"
        by_sequence = plan_of(FLAT, loss={"aggregation": "sequence_mean"})
        assert flags(by_sequence)["--micro_train_batch_size"] == ("1",)
        assert entry(by_sequence, "loss.aggregation").status == "exact"
        kl = {"placement": "loss", "estimator": "k2"}
        newest = plan_of(NEWEST, loss={"aggregation": "sequence_mean"}, kl=kl)
        assert "mean over tokens" in entry(newest, "loss.aggregation").note

    def test_weighted_estimators_say_what_is_computed(self) -> None:
        kl = {"estimator": "rho_k3", "placement": "loss"}
        plan = plan_of(kl=kl, batch={"num_minibatches": 4})
        assert flags(plan)["--algo.kl.unbiased_gradient"] == ()
        assert "ratio at most 10" in entry(plan, "kl.estimator").note

    def test_optimizer_defaults_are_never_left_to_the_library(self) -> None:
        told = flags(plan_of(optimizer={"num_warmup_steps": 7, "weight_decay": 0.01}))
        assert told["--actor.lr_scheduler"] == ("constant_with_warmup",)
        assert told["--actor.adam.betas"] == ("0.9", "0.999")
        assert told["--actor.adam.weight_decay"] == ("0.01",)

    @pytest.mark.parametrize("warmup", range(0, 240, 7))
    def test_warm_up_steps_come_back_whole(self, warmup: int) -> None:
        plan = plan_of(optimizer={"num_warmup_steps": warmup})
        assert BACKEND.parse(plan.argv, plan.files).optimizer.num_warmup_steps == warmup


IS = "algo.advantage.is_correction"
CORRECTED = [
    (
        NEWEST,
        {"kind": "tis_token", "most": 2.0},
        {"level": ("token",), "mode": ("clip",), "gating": ("ratio",), "threshold": ("0.0", "2.0")},
    ),
    (
        NEWEST,
        {"kind": "mis_token", "least": 0.5, "most": 5.0},
        {"level": ("token",), "mode": ("mask",), "gating": ("ratio",), "threshold": ("0.5", "5.0")},
    ),
    (FLAT, {"kind": "tis_token", "least": 0.5, "most": 2.0}, ("tis", "0.5", "2.0")),
    (FLAT, {"kind": "mis_token", "most": 2.0}, ("icepop", "0.0", "2.0")),
]


@pytest.mark.parametrize("stale", [0, 2])
@pytest.mark.parametrize(("version", "correction", "sent"), CORRECTED)
def test_a_correction_is_sent_and_read_back(
    version: str, correction: dict[str, Any], sent: Any, stale: int
) -> None:
    """With old samples too: the ratio is to the trainer's policy, and the engine's is corrected."""
    settings = base(
        backend={"version": version}, loss={"correction": correction}, max_staleness_steps=stale
    )
    plan = BACKEND.translate(cell_of(settings), PLACE)
    given = flags(plan)
    if version == NEWEST:
        assert {f"--{IS}_{name}": words for name, words in sent.items()}.items() <= given.items()
    else:
        assert given["--enable_vllm_is_correction"] == ()
        assert given["--vllm_is_correction_type"] == sent[:1]
        assert given["--vllm_is_truncated_threshold"] == sent[1:]
    assert BACKEND.parse(plan.argv, plan.files).loss.correction == settings.loss.correction
    assert entry(plan, "loss.correction.kind").status == "exact"


@pytest.mark.parametrize("version", VERSIONS)
def test_no_correction_sends_what_was_sent_before(version: str) -> None:
    plan = plan_of(version)
    assert not any("is_correction" in name or "truncated" in name for name in flags(plan))


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("correction", "field", "nearest"),
    [
        ({"kind": "tis_sequence", "most": 2.0}, "kind", "kind=tis_token"),
        ({"kind": "geometric", "most": 1.1}, "kind", "backend=skyrl"),
        ({"kind": "reject_token", "most": 2.0}, "kind", "kind=mis_token"),
        ({"kind": "tis_token"}, "most", "set loss.correction.most"),
        ({"kind": "tis_token", "most": 2.0, "applies_to": "both"}, "applies_to", "policy_loss"),
    ],
)
def test_a_correction_that_it_has_not_is_refused(
    version: str, correction: dict[str, Any], field: str, nearest: str
) -> None:
    with pytest.raises(UnsupportedSetting) as refused:
        plan_of(
            version, kl={"placement": "loss", "estimator": "k2"}, loss={"correction": correction}
        )
    assert refused.value.field == f"loss.correction.{field}"
    assert nearest in refused.value.advice


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (["_level", "seq"], "seq"),
        (["_level", "token", f"--{IS}_gating", "tv"], "tv"),
        (["_threshold", "2.0"], f"ignored without --{IS}_level"),
        (["_level", "off", f"--{IS}_mode", "clip"], f"ignored without --{IS}_level"),
    ],
)
def test_a_strangers_correction_that_no_cell_has_is_a_fault(more: list[str], sentence: str) -> None:
    plan = plan_of()
    with pytest.raises(SpecError, match=sentence):
        BACKEND.parse([*plan.argv, f"--{IS}{more[0]}", *more[1:]], plan.files)


def test_a_single_threshold_is_the_upper_bound() -> None:
    plan = plan_of()
    more = [f"--{IS}_level", "token", f"--{IS}_mode", "clip", f"--{IS}_threshold", "2.0"]
    correction = BACKEND.parse([*plan.argv, *more], plan.files).loss.correction
    assert correction == EngineCorrection(kind="tis_token", most=2.0)


def test_cells_that_share_their_flags_stay_apart() -> None:
    """On policy with one minibatch, five names have one gradient and two launches."""
    names = ("k2+", "sg_rho_k2", "k3+", "rho_k3")
    plans = {n: plan_of(kl={"estimator": n, "placement": "loss"}) for n in names}
    assert plans["k2+"].argv == plans["sg_rho_k2"].argv
    assert {BACKEND.parse(p.argv, p.files).kl.estimator for p in plans.values()} == set(names)


def test_a_version_left_open_is_the_newest_and_another_cell() -> None:
    open_, named = plan_of(None), plan_of(NEWEST)
    assert open_.version == NEWEST
    assert open_.argv == named.argv
    assert open_.cell_id != named.cell_id
    assert fingerprint(BACKEND.parse(open_.argv, open_.files)) == open_.cell_id


def test_needs_say_what_prompts_to_prepare() -> None:
    plan = plan_of(data={"instruction": 'box it\n"now"'})
    needs = json.loads(plan.files["needs.json"])
    assert needs["library"] == "openrlhf==0.11.2"
    assert needs["prompts"]["path"] == "org/math"
    assert needs["prompts"]["instruction"] == 'box it\n"now"'
    assert str(PLACE.plan_dir / needs["prompts"]["file"]) in flags(plan)["--data.prompt_dataset"][0]


class TestParse:
    def test_every_fault_at_once(self) -> None:
        plan = plan_of()
        argv = (*plan.argv, "--algo.kl.estimater", "k1", "--rollout.batch_size", "many")
        with pytest.raises(SpecError) as caught:
            BACKEND.parse(argv, {"needs.json": "{}"})
        told = str(caught.value)
        assert "did you mean '--algo.kl.estimator'" in told
        assert "--rollout.batch_size takes" in told
        assert "needs.json" in told

    def test_what_orch_has_no_word_for(self) -> None:
        plan = plan_of()
        argv = tuple("gae" if word == "rloo" else word for word in plan.argv)
        with pytest.raises(
            SpecError, match=r"no advantage\.estimator for 'gae' \(it knows: rloo, group_norm"
        ):
            BACKEND.parse(argv, plan.files)

    def test_another_program(self) -> None:
        with pytest.raises(SpecError, match="does not run openrlhf"):
            BACKEND.parse(("python3", "-m", "openrlhf.cli.train_sft"), plan_of().files)

    def test_a_file_that_contradicts_the_flags(self) -> None:
        plan = plan_of(kl={"estimator": "rho_k3", "placement": "loss"})
        files = {**plan.files, "needs.json": plan.files["needs.json"].replace("rho_k3", "k2+")}
        with pytest.raises(SpecError, match=r"asks for k2\+"):
            BACKEND.parse(plan.argv, files)


def test_a_thousand_cells_are_cheap() -> None:
    """The bar is 0.5 CPU-s a thousand; six times that is a slip of ours, not of the machine."""
    cells = [cell for version in (None, *VERSIONS) for cell in shipped(version)]
    started = time.process_time()
    done = 0
    for cell in cells:
        try:
            BACKEND.translate(cell, PLACE)
        except UnsupportedSetting:
            continue
        done += 1
    assert (time.process_time() - started) / done < 0.003


@pytest.mark.parametrize(
    ("num_prompts", "status", "said"),
    [
        (1280, "exact", "one shuffle"),
        (2000, "approximated", "only the first 1280 prompts"),
        (1000, "approximated", "2 copies"),
    ],
)
def test_prompts_drawn_from_shuffled_copies_are_not_the_data_set(
    num_prompts: int, status: str, said: str
) -> None:
    plan = plan_of(data={"num_prompts": num_prompts}, batch={"num_prompts": 256}, num_train_steps=5)
    told = entry(plan, "data.path")
    assert told.status == status
    assert said in told.note
