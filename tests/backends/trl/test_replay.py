"""What TRL's dialect predicts, and what TRL does: rollouts of real runs, replayed.

TRL itself trains a few steps and writes its rollouts. The embedded trainer's advantages and
objective, in the dialect of the release, then go over the same tokens from the same policy.
"""

import json
import shutil
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from backends.trl import BACKEND
from lab.cpu import CpuLaunch, recording
from lab.cpu.orch_rollout_dump import RolloutBatch, read, weights_path
from lab.prove.proof import Run
from orchestrator import plugins
from orchestrator.kl.library_semantics import Dialect
from orchestrator.metrics.names import VALIDATION
from orchestrator.records import AttemptPaths, Cell, MetricPoint
from orchestrator.settings import Clip, Kl, Loss, Model, ReferencePolicy
from tests.backends import child
from tests.backends.environments import cpu_python
from tests.backends.shipped import write
from tests.backends.trl.cells import BY_SEQUENCES, cell
from tests.lab import proven

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.long(80)]

K1 = Kl(estimator="k1", placement="reward", beta=0.2)
K3 = Kl(estimator="k3", placement="loss", beta=0.2)
RHO = Kl(estimator="rho_k3", placement="loss", beta=0.2)
RB = Kl(estimator="rb", placement="reward_and_loss", beta=0.2)
LENGTHS = Loss(aggregation="constant", constant_tokens=6)
OF_RESPONSES = BY_SEQUENCES.model_copy(update={"ratio_level": "sequence"})
"""RLOOTrainer's ratio is of the response: of several minibatches a cell says so."""
CELLS = {
    "k1.reward, two minibatches": ("1.16.0", K1, {"minibatches": 2, "loss": OF_RESPONSES}),
    "rho_k3, two minibatches": ("1.16.0", RHO, {"minibatches": 2}),
    "1.9.2, k3, token mean, two minibatches": ("1.9.2", K3, {"loss": Loss(), "minibatches": 2}),
    "GSPO's ratio, also on k3, two minibatches": (
        "1.16.0",
        RHO.model_copy(update={"ratio_level": "sequence_mean"}),
        {
            "minibatches": 2,
            "loss": Loss(ratio_level="sequence_mean", clip=Clip(low=3e-4, high=4e-4)),
        },
    ),
    "k3, grpo, token mean": ("1.16.0", K3, {"advantage": "grpo", "loss": Loss()}),
    "1.9.2, k1.reward, two minibatches": ("1.9.2", K1, {"minibatches": 2, "loss": OF_RESPONSES}),
    "1.9.2, k3, sequence mean": ("1.9.2", K3, {"loss": Loss(aggregation="sequence_mean")}),
    "1.9.2, rho_k3, dr_grpo": ("1.9.2", RHO, {"advantage": "dr_grpo", "loss": LENGTHS}),
}
IMPORTED = (
    *("datasets", "torch", "transformers.models.llama.modeling_llama"),
    *("trl.trainer.grpo_trainer", "trl.trainer.rloo_trainer"),
)
"""What takes most of a short training's processor time."""
LAUNCH = """
import datasets, json, os, pathlib, sys
os.environ.update(json.load(sys.stdin))
# the one variable of a launch that a library reads while it is imported
datasets.config.HF_DATASETS_CACHE = pathlib.Path(os.environ["HF_DATASETS_CACHE"])
"""
"""Before the plan's program: a launch is a fork of a process that has imported the library."""
HOOKED = """
sys.path.insert(0, os.environ["PYTHONPATH"])
__import__("orch_rollout_hook").install(pathlib.Path(os.environ["ORCH_ROLLOUT_DUMP"]))
"""
"""What `sitecustomize` does where a launch is a process of its own."""
FP32 = 2e-4
"""Relative: sums of fp32 in another order, over a few updates."""


def launched(made: Cell, folder: Path, attempt: int = 1) -> Path:
    """Train a cell with the library, in its own environment. Return the attempt's folder."""
    place = AttemptPaths(
        folder / "plan", folder / "attempts" / str(attempt), folder / "checkpoints"
    )
    plan = recording(CpuLaunch(BACKEND.translate(made, place), ()), place).plan
    for each in (place.plan_dir / "data", place.attempt_dir):
        each.mkdir(parents=True, exist_ok=True)
    write(plan, place.plan_dir)
    shipped = plugins.shipped_prompts("micro:sort", 64)
    assert shipped is not None
    for name, part in (("train", shipped.train), ("validation", shipped.validation)):
        rows = [json.dumps({"prompt": q, "label": a}) for q, a in part]
        (place.plan_dir / "data" / f"{name}.jsonl").write_text("\n".join(rows) + "\n")
    policy = plugins.shipped_policy(made.settings.model.path)
    if policy is not None and attempt == 1:
        (place.plan_dir / "model").symlink_to(policy)
    python = cpu_python("trl", str(made.settings.backend.version))
    parent = child.Imported(python, IMPORTED)
    variables = json.dumps(dict(plan.env))
    program = LAUNCH + HOOKED + child.RUN_AS_SCRIPT
    done = child.forked(parent, program, plan.argv[1:], place.plan_dir, variables)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    return place.attempt_dir


def read_points(attempt_dir: Path) -> "tuple[list[MetricPoint], dict[int, float]]":
    """Return the train steps of an attempt, and its validation at each step."""
    points = list(BACKEND.read_metrics(attempt_dir))
    held_out = {p.step: p.values[VALIDATION] for p in points if VALIDATION in p.values}
    return [p for p in points if VALIDATION not in p.values], held_out


@cache
def trained(name: str, folder: Path) -> Run:
    """Train a cell with the library for two rollout batches, and keep its rollouts."""
    version, kl, changes = CELLS[name]
    made = cell(kl, version=version, steps=2 * changes.get("minibatches", 1), **changes)  # type: ignore[arg-type]  # one dictionary holds changes of several types
    dump = launched(made, folder) / "rollouts"
    batches = tuple(read([dump]))
    policy = plugins.shipped_policy(made.settings.model.path)
    assert policy is not None
    weights = {each.step: weights_path(dump, each.step) for each in batches}
    return Run(made, BACKEND.semantics(version).dialect, batches, policy, weights, {})


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("replayed ü")


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    """Several threads wait for one another longer than they compute, at this size."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        for name in ("OMP_NUM_THREADS", "HF_HUB_OFFLINE"):
            patch.setenv(name, "1")
        yield
    torch.set_num_threads(threads)


def padded(rows: Sequence[Sequence[float]]) -> torch.Tensor:
    """[N, T], zeros at the end."""
    width = max(map(len, rows))
    return torch.tensor([[*row, *[0] * (width - len(row))] for row in rows])


def log_probabilities(model: Any, batch: RolloutBatch, which: Sequence[int]) -> torch.Tensor:
    """[n, T] of the responses' tokens; 0 where there is none."""
    longest = max(map(len, batch.responses))
    found = []
    for index in which:
        prompt, response = batch.prompts[index], batch.responses[index]
        logits = model(torch.tensor([[*prompt, *response]])).logits[0] / batch.temperature
        picked = logits[len(prompt) - 1 : -1].log_softmax(-1)
        own = picked.gather(1, torch.tensor(response)[:, None])[:, 0]
        found.append(torch.cat([own, own.new_zeros(longest - len(response))]))
    return torch.stack(found)


def replay(run: Run, dialect: Dialect | None = None) -> dict[str, float]:
    """The worst relative difference of each quantity between the library and the dialect."""
    return {each.name: each.worst for each in run.proof(dialect).quantities}


def test_a_renewed_reference_policy_survives_a_resume(home: Path) -> None:
    """TRL saves no reference policy. Prompts are messages here, through the chat template."""
    folder, policy = home / "renewed", home / "policy"
    shipped = plugins.shipped_policy("micro:elder")
    assert shipped is not None
    shutil.copytree(shipped, policy)
    file = policy / "tokenizer_config.json"
    template = "{{ bos_token }}{% for m in messages %}{{ m['content'] }}{% endfor %}"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"chat_template": template}))
    renewed = K3.model_copy(update={"reset_reference_every_steps": 2})
    made = cell(renewed, every=2, model=Model(name="elder", path=str(policy)))
    first, held_out = read_points(launched(made, folder))
    assert list(held_out) == [0, 4], "before the first train step and after the last"
    assert all(0 <= value <= 1 for value in held_out.values())
    terms = [point.values["train/kl_term"] for point in first]
    assert terms[0] == terms[2] == 0, "the policy has just become its reference"
    assert min(terms[1], terms[3]) > 0
    shutil.rmtree(folder / "checkpoints" / "checkpoint-4")
    second, held_out = read_points(launched(made, folder, attempt=2))
    assert list(held_out) == [2, 4]
    assert [point.step for point in second] == [3, 4]
    for before, after in zip(first[2:], second, strict=True):
        same = ("train/kl_term", "train/grad_norm", "train/reward_mean", "train/entropy")
        assert [before.values[x] for x in same] == [after.values[x] for x in same]


def test_an_averaged_reference_is_the_declared_average_and_survives_a_resume(home: Path) -> None:
    """The reference log-probabilities of TRL's rollouts are those of the average of weights."""
    from transformers import AutoModelForCausalLM

    averaged = ReferencePolicy(kind="ema", share=0.25, every_steps=1)
    made = cell(K1.but(reference=averaged), steps=3, every=2)
    folder = home / "averaged"
    dump = launched(made, folder) / "rollouts"
    reference = AutoModelForCausalLM.from_pretrained(plugins.shipped_policy("micro:elder"))
    for batch in read([dump]):
        count = len(batch.responses)
        assert batch.logp_reference is not None
        with torch.no_grad():
            ours = log_probabilities(reference, batch, range(count))
        torch.testing.assert_close(ours, padded(batch.logp_reference), rtol=0, atol=1e-4)
        policy = torch.load(dump / f"weights-{batch.step}.pt")
        with torch.no_grad():
            for name, weights in reference.named_parameters():
                weights.lerp_(policy[name], 0.25)
    first, _ = read_points(folder / "attempts" / "1")
    shutil.rmtree(folder / "checkpoints" / "checkpoint-3")
    second, _ = read_points(launched(made, folder, attempt=2))
    assert [point.step for point in second] == [3]
    for name in ("train/kl_term", "train/grad_norm"):
        assert first[2].values[name] == second[0].values[name] != 0


@pytest.mark.parametrize("name", CELLS)
def test_the_dialect_predicts_what_the_library_does(name: str, home: Path) -> None:
    run = trained(name, home / str(list(CELLS).index(name)))
    assert len(run.batches) == 2
    worst = replay(run)
    assert {"advantages", "grad_norm", "weights"} <= worst.keys()
    print(name, worst)
    assert max(worst.values()) <= FP32, worst


def test_what_orch_ships_trains_in_the_library(home: Path) -> None:
    """Its gradients are held in test_quiet.py, in the release's own loss."""
    made = cell(RB, steps=2, minibatches=2, loss=LENGTHS)
    points, _ = read_points(launched(made, home / "shipped"))
    first, second = (point.values["train/kl_term"] for point in points)
    assert first == 0, "the policy is its own reference"
    assert second > 0


def test_a_token_mean_is_over_the_batch_of_several_minibatches(home: Path) -> None:
    """Responses of this cell have several lengths. Divided by each minibatch's own, it is wrong."""
    proof_cell = proven.proof_cell("trl", "1.16.0", "k3.loss.x4", home / "proof")
    proof_cell.train()
    run = proof_cell.run()
    assert run.dialect.mean_over == "batch"
    assert run.proof().holds, run.proof()
    wrong = run.proof(run.dialect.model_copy(update={"mean_over": "minibatch"}))
    assert not wrong.holds, wrong
    print(run.proof(), wrong)
