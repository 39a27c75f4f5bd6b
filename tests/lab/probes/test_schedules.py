"""Learning rates and weight decay of the dialects, beside the libraries' own functions.

A release's scheduler is made by its own function, from the launch that `translate` makes of a cell,
and stepped under a real AdamW. Where a library calls transformers' get_scheduler, that is
transformers' own, of the version installed here.
"""

import itertools
import math
import tomllib
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers  # its classes are imported when they are named: not by every process
import yaml

from backends.micro.optimizer import rate_of
from lab.probes.runner import Sources
from orchestrator import plugins
from orchestrator.errors import UnsupportedSetting
from orchestrator.evidence.cells import releases
from orchestrator.kl.library_semantics import relevant
from orchestrator.records import Cell, LaunchPlan
from tests import golden
from tests.lab.probes.source import source_of

STEPS, WARMUP = 12, 4
RATE = 1e-3
SCHEDULES = {
    "verl": "cosine",
    "openrlhf": "constant",
    "skyrl": "linear",
    "prime_rl": "linear",
    "trl": "cosine",
}
"""One schedule that every release of a library has."""


def skyrl(source: Sources, given: dict[str, str]) -> Any:
    made = source.load(
        "backends/skyrl_train/distributed/fsdp_strategy.py",
        ["FSDPStrategy._fsdp_init_train_model"],
        get_scheduler=transformers.get_scheduler,
        optim=torch.optim,
        HFModelWrapper=type(None),
    )
    key = "trainer.policy.optimizer_config."
    own = SimpleNamespace(
        lr=float(given[f"{key}lr"]),
        adam_betas=(0.9, 0.999),
        weight_decay=0.0,
        scheduler=given[f"{key}scheduler"],
        num_warmup_steps=int(given[f"{key}num_warmup_steps"]),
    )
    strategy = SimpleNamespace(
        optimizer_config=own,
        total_training_steps=STEPS,
        fsdp_strategy="fsdp2",
        _fsdp_init_model=lambda model, **_: model,
    )
    _, optimizer, scheduler = made._fsdp_init_train_model(
        strategy, torch.nn.Linear(1, 1), None, None
    )
    return optimizer, scheduler


def verl(source: Sources, given: dict[str, str]) -> Any:
    made = source.load(
        "utils/torch_functional.py",
        ["get_constant_schedule_with_warmup", "get_cosine_schedule_with_warmup"],
        LambdaLR=torch.optim.lr_scheduler.LambdaLR,
        math=math,
    )
    optimizer = adamw()
    key = "actor_rollout_ref.actor.optim."
    warmup = int(given[f"{key}lr_warmup_steps"])
    if given[f"{key}lr_scheduler_type"] == "constant":
        return optimizer, made.get_constant_schedule_with_warmup(optimizer, warmup)
    return optimizer, made.get_cosine_schedule_with_warmup(optimizer, warmup, STEPS)


def openrlhf(_: Sources, given: dict[str, str]) -> Any:
    """utils/deepspeed/deepspeed.py, or trainer/ray/ppo_actor.py, hand these to get_scheduler."""
    dotted = "--actor.lr_scheduler" in given
    name = given["--actor.lr_scheduler" if dotted else "--lr_scheduler"]
    share = float(given["--actor.lr_warmup_ratio" if dotted else "--lr_warmup_ratio"])
    optimizer = adamw()
    return optimizer, transformers.get_scheduler(
        name, optimizer, num_warmup_steps=math.ceil(STEPS * share), num_training_steps=STEPS
    )


def prime_rl(source: Sources, given: dict[str, str]) -> Any:
    made = source.load("trainer/scheduler.py")
    told = tomllib.loads(given["rl.toml"])["trainer"]["scheduler"]
    optimizer = adamw()
    return optimizer, made.setup_scheduler(optimizer, SimpleNamespace(**told), STEPS, RATE)


def trl(_: Sources, given: dict[str, str]) -> Any:
    """TRL's trainers are transformers' Trainer, whose create_scheduler hands these on."""
    config = yaml.safe_load(given["grpo.yaml"])
    optimizer = adamw()
    return optimizer, transformers.get_scheduler(
        config["lr_scheduler_type"],
        optimizer,
        num_warmup_steps=config["warmup_steps"],
        num_training_steps=config["max_steps"],
    )


def adamw() -> torch.optim.AdamW:
    return torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=RATE)


MAKERS: dict[str, Callable[[Sources, dict[str, str]], Any]] = {
    "verl": verl,
    "openrlhf": openrlhf,
    "skyrl": skyrl,
    "prime_rl": prime_rl,
    "trl": trl,
}


def given_of(plan: LaunchPlan) -> dict[str, str]:
    """`key=value` and `--key value` of a launch, and its files."""
    told = dict(plan.files)
    for word, following in zip(plan.argv, (*plan.argv[1:], ""), strict=True):
        name, equals, value = word.partition("=")
        told[name] = value if equals else following
    return told


@pytest.fixture(scope="module", params=releases(), ids="@".join)
def release(request: pytest.FixtureRequest) -> Iterator[tuple[str, str, Sources]]:
    """A release and its source, for as long as the tests of it run."""
    library, version = request.param
    with source_of(library, version) as found:
        yield library, version, Sources(found.folder)


def asked(library: str, version: str, **optimizer: Any) -> tuple[Cell, LaunchPlan]:
    """A cell without KL and with one minibatch, and its launch. Some releases always lag."""
    changes = {
        "kl": {"estimator": "none"},
        "advantage.estimator": "dr_grpo",
        "optimizer": {"learning_rate": RATE, **optimizer},
        "num_train_steps": STEPS,
        "max_staleness_steps": int((library, version) == ("prime_rl", "0.8.0")),
    }
    cell = golden.cell_of(library, version, changes)
    return cell, plugins.load(library).translate(cell, golden.PLACE)


@pytest.mark.thorough  # in a library's environment
def test_the_learning_rate_of_every_train_step(release: tuple[str, str, Sources]) -> None:
    library, version, source = release
    compared = 0
    for schedule, warmup in itertools.product(("constant", "linear", "cosine"), (0, WARMUP)):
        try:
            cell, plan = asked(library, version, schedule=schedule, num_warmup_steps=warmup)
        except UnsupportedSetting:
            assert schedule not in ("constant", SCHEDULES[library]), f"{library} has {schedule}"
            continue
        optimizer, scheduler = MAKERS[library](source, given_of(plan))
        theirs = []
        for _ in range(STEPS):
            theirs.append(optimizer.param_groups[0]["lr"] / RATE)
            optimizer.step()
            scheduler.step()
        dialect = relevant(plugins.load(library).semantics(version).dialect, cell.settings)
        mine = [rate_of(cell.settings, step, dialect) / RATE for step in range(1, STEPS + 1)]
        ledger = {entry.field: entry for entry in plan.ledger}
        if warmup:
            assert theirs[0] <= 1e-7, "a warm-up counted from 0"
            assert "counted from 0" in ledger["optimizer.num_warmup_steps"].note
        sooner = library == "prime_rl" and schedule == "linear"
        if sooner:
            last = STEPS - warmup - 1
            mine[warmup:] = [1 - i / last for i in range(last + 1)]
        assert theirs == pytest.approx(mine, abs=1e-7), (schedule, warmup)
        told = {
            name: ledger[f"optimizer.{name}"].status for name in ("schedule", "num_warmup_steps")
        }
        assert told == {
            "schedule": "approximated" if sooner else "exact",
            "num_warmup_steps": "approximated" if warmup else "exact",
        }
        compared += 1
    assert compared >= 2


@pytest.mark.thorough  # in a library's environment
def test_what_weight_decay_shrinks(release: tuple[str, str, Sources]) -> None:
    library, version, source = release
    dialect = plugins.load(library).semantics(version).dialect
    if library not in ("openrlhf", "trl"):
        assert dialect.decay_of == "all", "all parameters go to AdamW in one group"
        return
    model = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=8,
            hidden_size=8,
            intermediate_size=8,
            num_hidden_layers=1,
            num_attention_heads=1,
            attention_bias=True,
        )
    )
    if library == "trl":  # transformers' Trainer makes its optimizer
        names = transformers.Trainer.get_decay_parameter_names(None, model)  # type: ignore[arg-type]  # no self
        shrunk = {id(p) for name, p in model.named_parameters() if name in names}
    else:
        made = source.load(
            "utils/deepspeed/deepspeed_utils.py", ["get_optimizer_grouped_parameters"]
        )
        groups = made.get_optimizer_grouped_parameters(model, 0.1)
        shrunk = {id(p) for group in groups if group["weight_decay"] for p in group["params"]}
    matrices = {id(p) for p in model.parameters() if p.dim() > 1}
    assert dialect.decay_of == "matrices"
    assert shrunk == matrices
