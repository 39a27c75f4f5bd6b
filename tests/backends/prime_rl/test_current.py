"""Prime-RL 0.8.0: what it can still express, as its own classes read it."""

import json
import sys
import tomllib
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from backends.prime_rl import BACKEND, hooks, parse
from orchestrator.errors import UnsupportedSetting
from orchestrator.identity import fingerprint, flatten
from orchestrator.records import AttemptPaths, Cell
from orchestrator.settings import Lora, Resources
from tests.backends.prime_rl.test_configuration import DRAWN, PLACE, kind
from tests.backends.prime_rl.test_hooks import Anything, inputs

CURRENT: dict[str, Any] = {
    "backend.version": "0.8.0",
    "kl": {"estimator": "none"},
    "max_staleness_steps": 1,
}
KEYS = json.loads((Path(parse.__file__).parent / "keys" / "0.8.0.json").read_text())


@pytest.fixture(scope="session")
def current(changed: Any) -> Cell:
    """A baseline of the paper's asynchronous study, at 0.8.0's one overlap."""
    cell: Cell = changed(CURRENT)
    return cell


def test_a_baseline_is_written_in_its_keys(current: Cell, place: AttemptPaths) -> None:
    plan = BACKEND.translate(current, place)
    assert plan.version == "0.8.0"
    written = tomllib.loads(plan.files["rl.toml"])
    assert dict(flatten(written["orchestrator"])) == {
        "batch_size": 512,
        "group_size": 16,
        "max_off_policy_steps": 1,
        "algo.type": "grpo",
        "renderer.name": "default",
        "pre_batch_filters": [],
        "post_batch_filters": [],
        "file_monitor.filename": "../logs/orchestrator.jsonl",
        "train.sampling.temperature": 1.0,
        "train.sampling.max_completion_tokens": 4096,
        "train.source": [
            {
                "name": "train",
                "legacy": {
                    "id": "orch-prime-rl-environment",
                    "args": written["orchestrator"]["train"]["source"][0]["legacy"]["args"],
                },
            }
        ],
        "eval.interval": current.cadence.evaluate_every_steps,
        "eval.sampling.temperature": 1.0,
        "eval.sampling.top_p": 1.0,
        "eval.sampling.max_completion_tokens": 4096,
        "eval.source": [
            {
                "name": "validation",
                "legacy": {
                    "id": "orch-prime-rl-environment",
                    "args": written["orchestrator"]["eval"]["source"][0]["legacy"]["args"],
                },
            }
        ],
    }
    assert "max_async_level" not in written
    assert written["trainer"]["loss"]["kwargs"] == {"clip_low": 0.2, "clip_high": 0.2}
    assert written["deployment"] == {
        "type": "single_node",
        "gpus_per_node": 4,
        "num_train_gpus": 2,
        "num_infer_gpus": 2,
    }


@pytest.mark.parametrize(
    ("replace", "field", "advice"),
    [
        ({"max_staleness_steps": 10}, "max_staleness_steps", "max_staleness_steps=1"),
        ({"max_staleness_steps": 0}, "max_staleness_steps", "max_staleness_steps=1"),
        ({"kl": {"estimator": "k1", "placement": "reward", "beta": 0.1}}, "kl.estimator", "0.5.0"),
        ({"advantage.estimator": "grpo"}, "advantage.estimator", "dr_grpo"),
        ({"advantage.estimator": "reinforce"}, "advantage.estimator", "dr_grpo"),
    ],
)
def test_what_it_lost_is_refused_with_the_nearest_it_has(
    changed: Any, place: AttemptPaths, replace: dict[str, Any], field: str, advice: str
) -> None:
    with pytest.raises(UnsupportedSetting, match=r"prime_rl 0\.8\.0") as caught:
        BACKEND.translate(changed(CURRENT | replace), place)
    assert caught.value.field == field
    assert advice in caught.value.advice


def test_the_ledger_is_of_its_release(current: Cell, changed: Any, place: AttemptPaths) -> None:
    by_field = {entry.field: entry for entry in BACKEND.translate(current, place).ledger}
    assert by_field.pop("cadence.evaluate_every_steps").status == "approximated"
    assert by_field.keys() == dict(flatten(current.settings.model_dump())).keys()
    written = dict(flatten(tomllib.loads(BACKEND.translate(current, place).files["rl.toml"])))
    for entry in by_field.values():
        optional = entry.field in ("loss.clip.dual", "optimizer.num_warmup_steps")
        if entry.key and ".source." not in entry.key and not optional:
            assert any(key == entry.key or key.startswith(f"{entry.key}.") for key in written)
    assert by_field["kl.estimator"].key == ""
    assert written[by_field["rollout.group_size"].key] == 16
    assert "order of prompts is the same" in by_field["seed"].note
    whole = changed(CURRENT | {"loss": {"aggregation": "token_mean"}})
    [entry] = [e for e in BACKEND.translate(whole, place).ledger if e.field == "loss.aggregation"]
    assert entry.status == "exact", "0.8.0 divides by the tokens of the whole batch"


def narrowed(drawn: dict[str, Any]) -> dict[str, Any]:
    """A drawn cell, pulled to what 0.8.0 has."""
    estimator = {"grpo": "dr_grpo", "reinforce": "rloo"}.get(
        drawn["advantage.estimator"], drawn["advantage.estimator"]
    )
    return drawn | CURRENT | {"advantage.estimator": estimator}


NODES = st.builds(Resources, num_nodes=st.integers(1, 2), gpus_per_node=st.integers(2, 16))


@given(drawn=DRAWN, resources=NODES)
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_a_drawn_cell_reads_back_and_passes_our_check(
    changed: Any, drawn: dict[str, Any], resources: Resources
) -> None:
    cell = changed(narrowed(drawn), resources=resources)
    try:
        plan = BACKEND.translate(cell, PLACE)
    except UnsupportedSetting:
        return
    for name, text in plan.files.items():
        if name.endswith(".toml"):
            assert parse.faults(tomllib.loads(text), kind(name), "0.8.0") == []
    assert fingerprint(BACKEND.parse(plan.argv, plan.files)) == cell.id


def test_it_reads_everything_drawn(prime_rl_current: Any, changed: Any) -> None:
    """Its own classes, and none of our keys lost in them."""
    texts: list[tuple[str, str]] = []

    @given(drawn=DRAWN, resources=NODES)
    @settings(max_examples=60, deadline=None, database=None, derandomize=True)
    def draw(drawn: dict[str, Any], resources: Resources) -> None:
        try:
            plan = BACKEND.translate(changed(narrowed(drawn), resources=resources), PLACE)
        except UnsupportedSetting:
            return
        texts.extend((kind(n), t) for n, t in plan.files.items() if n.endswith(".toml"))

    draw()
    assert len(texts) > 30
    for (_, text), answer in zip(texts, prime_rl_current(texts), strict=True):
        assert answer["ok"], f"{answer['error']}\n{text}"
        tree = tomllib.loads(text)
        if "orchestrator" not in tree:
            continue
        theirs = answer["resolved"]["orchestrator"]
        for key in ("batch_size", "group_size", "max_off_policy_steps", "post_batch_filters"):
            assert theirs[key] == tree["orchestrator"][key]
        assert (
            theirs["train"]["source"][0]["legacy"]["args"]
            == (tree["orchestrator"]["train"]["source"][0]["legacy"]["args"])
        )
        assert (
            theirs["train"]["source"][0]["sampling"]["temperature"]
            == (tree["orchestrator"]["train"]["sampling"]["temperature"])
        )
        trainer = answer["resolved"]["trainer"]
        assert trainer["tokenizer"]["name"] == trainer["model"]["name"] == tree["model"]["name"]
        loss = trainer["loss"]
        assert loss["kwargs"] == tree["trainer"]["loss"]["kwargs"]


def test_its_keys_are_those_of_the_checkout(prime_rl_current: Any) -> None:
    """Save those of verifiers' and renderers' own classes, which are other packages'."""
    theirs = prime_rl_current()
    for each in ("rl", "inference"):
        own = {
            key: told
            for key, told in theirs[each].items()
            if ".source.env." not in key and ("renderer." not in key or key.endswith(".name"))
        }
        assert KEYS[each] == own


BROKEN = [
    ("post_batch_filters = []\n", "", True, "post_batch_filters"),
    (
        'type = "custom"\nimport_path = "orch_prime_rl_hooks.loss"',
        'type = "default"',
        False,
        "kwargs",
    ),
    ("clip_low = 0.2", 'clip_low = 0.2\nestimator = "k1"', True, "no reference"),
    ("clip_low = 0.2", "clip_low = 0.2\nclip_hihg = 0.2", True, "did you mean"),
    ("max_off_policy_steps", "max_async_level = 10\nmax_off_policy_steps", False, "no key"),
    ('[orchestrator.renderer]\nname = "default"', "", False, "renderer"),
    ("group_size = 16", 'group_size = "16"', True, "must be int"),
    ("betas1 = 0.9", "betas1 = 0.9\neps = 1e-5", False, "'eps' is no key"),
]
"""What is replaced by what, whether its classes accept that (`type = "default"` not, because the
arguments of our loss are left below it), what we say."""


def broken(current: Cell, old: str, new: str) -> str:
    text = BACKEND.translate(current, PLACE).files["rl.toml"]
    assert old in text
    return text.replace(old, new, 1)


@pytest.mark.parametrize(("old", "new", "_accepted", "says"), BROKEN)
def test_what_is_wrong_is_told(
    current: Cell, old: str, new: str, _accepted: bool, says: str
) -> None:
    found = parse.faults(tomllib.loads(broken(current, old, new)))
    assert says in " ".join(map(str, found))


def test_what_it_accepts_silently(current: Cell, prime_rl_current: Any) -> None:
    texts = [("rl", broken(current, old, new)) for old, new, _, _ in BROKEN]
    for (_, new, accepted, _), answer in zip(BROKEN, prime_rl_current(texts), strict=True):
        assert answer["ok"] == accepted, f"{new}: {answer['error']}"


def test_its_own_code_runs_our_loss(current_source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its compute_loss, with the loss it sets up from our configuration; types are not checked."""

    class Custom(SimpleNamespace):
        pass

    anything = Anything()
    stand_ins = {
        "beartype": {"beartype": anything},
        "jaxtyping": {"Bool": anything, "Float": anything, "Int": anything, "jaxtyped": anything},
        "prime_rl": {},
        "prime_rl.configs": {},
        "prime_rl.utils": {},
        "prime_rl.configs.trainer": {
            "CustomLossConfig": Custom,
            "DefaultLossConfig": int,
            "LossConfig": int,
            "IPOLossConfig": float,
        },
        "prime_rl.utils.utils": {
            "import_object": lambda path: getattr(hooks, path.rpartition(".")[2])
        },
    }
    for name, members in stand_ins.items():
        monkeypatch.setitem(sys.modules, name, SimpleNamespace(**members))
    path = current_source / "prime_rl" / "trainer" / "rl" / "loss.py"
    theirs = ModuleType("theirs")
    monkeypatch.setitem(sys.modules, "theirs", theirs)
    exec(compile(path.read_text(), path, "exec"), theirs.__dict__)  # noqa: S102  (the library's own file)
    kwargs = {"clip_low": 0.2, "clip_high": 0.2, "advantage_scale": 16 / 15}
    function = theirs.setup_rl_loss_fn(Custom(import_path="hooks.loss", kwargs=kwargs))
    both = [inputs(7), inputs(8)]
    fields = ("trainer_logprobs", "inference_logprobs", "advantages", "loss_mask")
    weights = [torch.tensor([1.0, 1, 1, 0, 2, 1], dtype=torch.float64)] * 2
    value, _ = theirs.compute_loss(
        **{name: [getattr(given, name) for given in both] for name in fields},
        ref_logprobs=None,
        rl_weights=weights,
        ce_weights=None,
        ref_kl_weights=None,
        rl_loss_fn=function,
        rl_scale=8,
        ce_scale=1,
        ref_kl_scale=1,
    )
    ours = torch.zeros((), dtype=torch.float64)
    for one, weight in zip(both, weights, strict=True):
        kept = one.loss_mask & (weight != 0)
        ratio = (one.trainer_logprobs - one.inference_logprobs)[kept].exp()
        advantage = one.advantages[kept] * 16 / 15
        gain = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
        ours = ours - (gain * weight[kept]).sum() / 8
    torch.testing.assert_close(value, ours)


ADAPTER = {"rank": 12, "alpha": 24, "targets": ["q_proj", "v_proj"]}


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("version", ["0.8.0", "0.5.0"])
def test_an_adapter_is_what_its_processes_read(
    request: Any, version: str, nodes: int, place: AttemptPaths
) -> None:
    """The trainer, the orchestrator, which names the adapter, and the engine, also of a node of its
    own."""
    ask = request.getfixturevalue("prime_rl" if version == "0.5.0" else "prime_rl_current")
    cell = request.getfixturevalue("base" if version == "0.5.0" else "current")
    settings = cell.settings.model_copy(update={"lora": Lora.model_validate(ADAPTER)})
    resources = cell.resources.model_copy(update={"num_nodes": nodes})
    plan = BACKEND.translate(cell.but(settings=settings, resources=resources), place)
    tables = [("rl", "rl.toml"), *[("inference", "inference.toml")] * (nodes == 2)]
    main, *apart = ask([(kind_, plan.files[name]) for kind_, name in tables])
    assert main["ok"], main["error"]
    resolved = main["resolved"]
    trainer, orchestrator = resolved["trainer"], resolved["orchestrator"]
    wanted = {"rank": 12, "alpha": 24.0, "dropout": 0.0, "target_modules": ["q_proj", "v_proj"]}
    assert trainer["model"]["lora"] == {**wanted, "modules_to_save": []}
    assert trainer["ckpt"]["weights"]["save_adapter_separately"] is True
    assert trainer["weight_broadcast"]["type"] == "filesystem"
    assert (orchestrator["model"]["lora"]["rank"], orchestrator["model"]["lora"]["alpha"]) == (
        12,
        24,
    )
    engine = apart[0]["resolved"] if apart else resolved["inference"]
    assert engine["enable_lora"] is True
    assert engine["max_lora_rank"] == 16, "vLLM's next"
