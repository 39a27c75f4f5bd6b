"""What we emit, as Prime-RL 0.5.0's own classes and our table of its keys read it."""

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from backends.prime_rl import BACKEND, parse
from orchestrator.errors import UnsupportedSetting
from orchestrator.identity import fingerprint
from orchestrator.records import AttemptPaths, Cell
from orchestrator.settings import Cadence, Resources

PLACE = AttemptPaths(
    Path("/runs/it's/plan"), Path('/runs/a "b"/attempts/1'), Path("/runs/ü/checkpoints")
)


def emitted(cell: Cell) -> dict[str, str]:
    """The TOML files of a cell's launch, or none where it is refused."""
    try:
        files = BACKEND.translate(cell, PLACE).files
    except UnsupportedSetting:
        return {}
    return {name: text for name, text in files.items() if name.endswith(".toml")}


def kind(name: str) -> str:
    return "rl" if name == "rl.toml" else "inference"


def test_the_table_of_keys_is_that_of_the_checkout(prime_rl: Any) -> None:
    path = Path(parse.__file__).parent / "keys" / "0.5.0.json"
    ours = json.loads(path.read_text())
    theirs = prime_rl()
    for each in ("rl", "inference"):
        assert ours[each] == theirs[each]


def test_everything_shipped_is_valid_by_the_stored_keys(shipped: list[Cell]) -> None:
    """Of both releases, whether or not there is a checkout of Prime-RL."""
    texts = {(kind(n), text) for cell in shipped for n, text in emitted(cell).items()}
    assert len(texts) > 50
    for each, text in texts:
        assert parse.faults(tomllib.loads(text), each) == [], text


def test_everything_shipped_is_valid_for_prime_rl(prime_rl: Any, shipped: list[Cell]) -> None:
    texts = sorted({(kind(n), text) for cell in shipped for n, text in emitted(cell).items()})
    assert len(texts) > 50
    for (_, text), answer in zip(texts, prime_rl(texts), strict=True):
        assert answer["ok"], f"{answer['error']}\n{text}"


def test_nothing_emitted_is_lost_in_prime_rl(prime_rl: Any, base: Cell) -> None:
    """Each key of rl.toml is in the resolved configuration, with our value."""
    text = emitted(base)["rl.toml"]
    last = base.model_copy(update={"cadence": Cadence()})
    answer, unsaved = prime_rl([("rl", text), ("rl", emitted(last)["rl.toml"])])
    resolved = answer["resolved"]
    assert unsaved["resolved"]["trainer"]["ckpt"].get("interval") is None
    assert unsaved["resolved"]["trainer"]["ckpt"]["weights"]["save_format"] == "safetensors"

    def lost(ours: Any, theirs: Any, path: str) -> list[str]:
        if isinstance(ours, dict):
            return [
                where
                for key, value in ours.items()
                for where in (
                    lost(value, theirs[key], f"{path}.{key}")
                    if key in theirs
                    else [f"{path}.{key} is gone"]
                )
            ]
        if isinstance(ours, list):
            return [w for a, b in zip(ours, theirs, strict=True) for w in lost(a, b, path)]
        return [] if ours == theirs else [f"{path}: {ours} became {theirs}"]

    assert lost(tomllib.loads(text), resolved, "$") == []
    trainer, orchestrator = resolved["trainer"], resolved["orchestrator"]
    assert trainer["max_async_level"] == orchestrator["max_async_level"] == 10
    assert trainer["max_steps"] == orchestrator["max_steps"] == 350
    assert orchestrator["teacher_model"]["model"]["name"] == base.settings.model.path
    assert resolved["teacher_inference"]["parallel"]["dp"] == 1
    assert trainer["tokenizer"]["name"] == trainer["model"]["name"] == base.settings.model.path


def test_the_trainer_saves_the_tokenizer_of_its_model(base: Cell) -> None:
    written = tomllib.loads(emitted(base)["rl.toml"])
    assert written["trainer"]["tokenizer"]["name"] == written["model"]["name"]
    [entry] = [e for e in BACKEND.translate(base, PLACE).ledger if e.field == "model.path"]
    assert "trainer.tokenizer.name" in entry.note


CLIP = st.none() | st.fixed_dictionaries(
    {
        "low": st.floats(0.01, 0.9),
        "high": st.floats(0.01, 5),
        "dual": st.none() | st.floats(1.1, 9),
    }
)
KL = st.just({"estimator": "none"}) | st.fixed_dictionaries(
    {
        "estimator": st.sampled_from(["k1", "k2", "k3", "abs", "rho_k3", "sg_rho_k2", "k3+"]),
        "placement": st.sampled_from(["reward", "loss", "reward_and_loss"]),
        "beta": st.floats(0, 100),
    }
)
DRAWN = st.fixed_dictionaries(
    {
        "advantage.estimator": st.sampled_from(["rloo", "grpo", "dr_grpo", "reinforce"]),
        "loss.clip": CLIP,
        "kl": KL,
        "data.instruction": st.text(st.characters(exclude_categories=["Cs"]), max_size=30),
        "data.path": st.sampled_from(["a/b", 'x "y" \\ é\n.jsonl', "data/countdown/train.jsonl"]),
        "data.num_prompts": st.none() | st.integers(1, 10**6),
        "data.reward": st.sampled_from(["math_boxed", "countdown", "exact"]),
        "model.path": st.sampled_from(["Qwen/Qwen2.5-7B", '/models/it\'s "here"', "a"]),
        "rollout.group_size": st.integers(2, 64),
        "rollout.temperature": st.sampled_from([1.0, 1.0, 0.6]),
        "batch.num_prompts": st.integers(1, 2048),
        "optimizer.learning_rate": st.floats(1e-12, 10),
        "optimizer.max_grad_norm": st.none() | st.floats(1e-6, 1e6),
        "optimizer.schedule": st.sampled_from(["constant", "linear", "cosine"]),
        "optimizer.num_warmup_steps": st.integers(0, 30),
        "num_train_steps": st.integers(1, 500),
        "max_staleness_steps": st.integers(0, 64),
        "seed": st.integers(0, 2**31),
        "backend.version": st.sampled_from([None, "0.5.0"]),
    }
)
NODES = st.builds(Resources, num_nodes=st.integers(1, 2), gpus_per_node=st.integers(3, 16))


@given(drawn=DRAWN, resources=NODES)
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_a_drawn_cell_reads_back_and_passes_our_check(
    changed: Any, drawn: dict[str, Any], resources: Resources
) -> None:
    cell = changed(drawn, resources=resources)
    files = emitted(cell)
    for name, text in files.items():
        assert parse.faults(tomllib.loads(text), kind(name)) == []
    if files:
        plan = BACKEND.translate(cell, PLACE)
        assert fingerprint(BACKEND.parse(plan.argv, plan.files)) == cell.id


def test_drawn_cells_are_valid_for_prime_rl(prime_rl: Any, changed: Any) -> None:
    texts: list[tuple[str, str]] = []

    @given(drawn=DRAWN, resources=NODES)
    @settings(max_examples=80, deadline=None, database=None, derandomize=True)
    def draw(drawn: dict[str, Any], resources: Resources) -> None:
        files = emitted(changed(drawn, resources=resources))
        texts.extend((kind(name), text) for name, text in files.items())

    draw()
    assert len(texts) > 40
    for (_, text), answer in zip(texts, prime_rl(texts), strict=True):
        assert answer["ok"], f"{answer['error']}\n{text}"


@pytest.mark.parametrize(
    ("old", "new", "accepted", "says"),
    [
        (
            'type = "custom"\nimport_path = "orch_prime_rl_hooks.loss"',
            'type = "default"\nkl_taau = 0.0',
            True,
            "kl_taau",
        ),
        ('type = "filesystem"', 'type = "nccl"', None, "max_async_level"),
        ("rollouts_per_example", "rollout_per_example", False, "did you mean"),
        ("[orchestrator.buffer]\nseed = 0", "[orchestrator.buffer]\nseed = 0\n", True, ""),
        ("strict_async_level = false", "strict_async_level = false\nseed = 7", True, "not read it"),
        ("temperature = 1.0", "temperature = 1.0\nseed = 7", True, "same random numbers"),
        ("num_teacher_gpus = 1", "", True, "reference policy"),
        ("max_off_policy_steps = 10\n", "", True, "cancels rollouts"),
        ("temperature = 1.0", "temperature = 0.6", True, "no KL"),
        ('placement = "reward"', 'placement = "reward"\nclip_hihg = 0.2', True, "did you mean"),
        ("beta = 0.005", 'beta = 0.005\nestimater = "k3"', True, "did you mean"),
        ("betas1 = 0.9", "betas1 = 0.9\neps = 1e-5", True, "'eps' is no key"),
        ("[trainer.tokenizer]\nname", "[trainer.tokenizer]\nchat_template", True, "Qwen3-0.6B"),
        ("max_steps = 350", 'max_steps = "many"', False, "must be int"),
    ],
)
def test_what_prime_rl_accepts_silently_we_refuse(
    base: Cell, request: pytest.FixtureRequest, old: str, new: str, accepted: bool | None, says: str
) -> None:
    """`accepted`: what the library's classes say, checked where there is a checkout. None: they
    accept it as a whole, and the trainer's own process does not."""
    text = emitted(base)["rl.toml"]
    assert old in text
    broken = text.replace(old, new)
    found = parse.faults(tomllib.loads(broken))
    assert bool(found) == bool(says)
    assert says in " ".join(map(str, found))
    try:
        ask = request.getfixturevalue("prime_rl")
    except pytest.skip.Exception:
        return
    [answer] = ask([("rl", broken)])
    assert answer["ok"] == bool(accepted), answer["error"]
    if accepted is None:
        assert "async level 1" in answer["error"] or "must be 1" in answer["error"]
