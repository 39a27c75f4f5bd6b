"""Every launch, resolved by the library to the end: what derived values became.

Contract tests compare each key that a launch gives. This one looks at keys that it does not give,
and that a library fills in from others: a model's tokenizer, its reference, evaluation's sampling,
a server's lengths. The cell's values are no library's defaults.
"""

import json
import subprocess
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from backends.openrlhf.flags import FLAT, FLAT_NAMES
from backends.openrlhf.flags import VERSIONS as OPENRLHF
from backends.skyrl.manifest import VERSIONS as SKYRL
from orchestrator import plugins
from orchestrator.identity import fingerprint
from orchestrator.records import Cell
from orchestrator.settings import Resources, Settings
from tests.backends.environments import cpu_python
from tests.backends.openrlhf.cells import PLACE, asked_of_library
from tests.backends.prime_rl.conftest import asking
from tests.backends.skyrl import library as skyrl
from tests.backends.verl import library as verl
from tests.backends.verl.cells import overrides

MODEL = "acme/odd-1b"
SEED, BETA, TEMPERATURE, PROMPT, RESPONSE, RATE = 7, 0.037, 0.7, 111, 222, 3.3e-6
KLS = {
    "reward": {"estimator": "k1", "placement": "reward", "beta": BETA},
    "loss": {"estimator": "k3", "placement": "loss", "beta": BETA},
    "none": {"estimator": "none"},
}
NAMES_MODELS = ("path", "name", "model", "tokenizer", "pretrain", "model_name_or_path")
FOREIGN = ("qwen", "llama", "mistral", "gemma", "gpt")


def cell(library: str, version: str, placement: str, **more: Any) -> Cell:
    settings = Settings.model_validate(
        {
            "model": {"name": "odd", "path": MODEL},
            "data": {"name": "d", "path": "d", "num_prompts": 64, "max_prompt_tokens": PROMPT},
            "advantage": {"estimator": "rloo"},
            "loss": {},
            "kl": KLS[placement],
            "rollout": {
                "group_size": 4,
                "max_response_tokens": RESPONSE,
                "temperature": TEMPERATURE,
            },
            "batch": {"num_prompts": 16},
            "optimizer": {"learning_rate": RATE},
            "num_train_steps": 8,
            "backend": {"name": library, "version": version},
            "seed": SEED,
            **more,
        }
    )
    resources = Resources(num_nodes=1, gpus_per_node=4)
    return Cell(
        id=fingerprint(settings),
        slug="odd",
        studies=("odd",),
        axes={},
        settings=settings,
        resources=resources,
    )


def leaves(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from leaves(inner, f"{prefix}{key}.")
    else:
        yield prefix.rstrip("."), value


def no_other_model(resolved: Mapping[str, Any]) -> None:
    """Nothing in a configuration names a model or a tokenizer but the cell's."""
    found = {
        key: value
        for key, value in leaves(resolved)
        if key.rpartition(".")[2] in NAMES_MODELS
        and not key.startswith("environment.skyrl_gym.")  # SkyRL's own environments, not used
        and isinstance(value, str)
        and any(word in value.lower() for word in FOREIGN)
    }
    assert found == {}


@pytest.mark.parametrize("placement", KLS)
@pytest.mark.parametrize("version", SKYRL)
def test_skyrl(version: str, placement: str) -> None:
    plan = plugins.load("skyrl").translate(cell("skyrl", version, placement), PLACE)
    [answer] = skyrl.ask(version, [plan.argv[2:]])
    made = dict(leaves(answer["config"]))
    no_other_model(answer["config"])
    assert made["trainer.policy.model.path"] == made["trainer.ref.model.path"] == MODEL
    assert made["trainer.seed"] == SEED
    assert made["trainer.max_prompt_length"] == made["generator.max_input_length"] == PROMPT
    for sampling in ("generator.sampling_params", "generator.eval_sampling_params"):
        assert made[f"{sampling}.max_generate_length"] == RESPONSE
        assert made[f"{sampling}.temperature"] == TEMPERATURE
        assert made[f"{sampling}.top_p"] == 1.0
    assert made["trainer.algorithm.temperature"] == TEMPERATURE
    assert made["trainer.policy.optimizer_config.lr"] == RATE
    algorithm = "trainer.algorithm"
    used = (made[f"{algorithm}.use_kl_in_reward"], made[f"{algorithm}.use_kl_loss"])
    assert (
        used == {"reward": (True, False), "loss": (False, True), "none": (False, False)}[placement]
    )
    if placement != "none":
        assert made[f"{algorithm}.kl_loss_coef"] == BETA
        assert made[f"{algorithm}.kl_estimator_type"] == KLS[placement]["estimator"]
        assert made[f"{algorithm}.kl_ctrl.type"] == "fixed"


@pytest.mark.parametrize("placement", KLS)
@pytest.mark.parametrize("version", OPENRLHF)
def test_openrlhf(version: str, placement: str) -> None:
    plan = plugins.load("openrlhf").translate(cell("openrlhf", version, placement), PLACE)
    [answer] = asked_of_library(version, [plan.argv])
    args = dict(leaves(answer["args"]))
    no_other_model(answer["args"])

    def made(name: str) -> Any:
        own = FLAT_NAMES[name] if version == FLAT else name
        return args[str(own)]

    assert made("actor.model_name_or_path") == MODEL
    assert made("train.seed") == SEED
    assert made("rollout.temperature") == TEMPERATURE
    assert made("rollout.top_p") == 1.0
    assert made("rollout.max_new_tokens") == RESPONSE
    assert made("data.max_len") == PROMPT + RESPONSE
    assert made("actor.adam.lr") == RATE
    assert made("algo.kl.use_loss") is (placement == "loss")
    assert made("algo.kl.init_coef") == (0 if placement == "none" else BETA)
    if placement != "none":
        assert made("algo.kl.estimator") == KLS[placement]["estimator"]


@pytest.mark.parametrize("placement", KLS)
def test_prime_rl(placement: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    ask = asking("0.5.0", tmp_path_factory)
    rollout = {"group_size": 4, "max_response_tokens": RESPONSE}  # at temperature 1 alone
    asked = cell("prime_rl", "0.5.0", placement, rollout=rollout)
    plan = plugins.load("prime_rl").translate(asked, PLACE)
    [answer] = ask([("rl", plan.files["rl.toml"])])
    resolved = answer["resolved"]
    assert answer["ok"], answer["error"]
    no_other_model(resolved)
    made = dict(leaves(resolved))
    programs = ["trainer.model", "trainer.tokenizer", "orchestrator.model", "inference.model"]
    if placement != "none":
        programs += ["orchestrator.teacher_model.model", "teacher_inference.model"]
    assert {name: made[f"{name}.name"] for name in programs} == dict.fromkeys(programs, MODEL)
    assert made["inference.seed"] == made["orchestrator.buffer.seed"] == SEED
    assert made["orchestrator.sampling.temperature"] == 1.0
    assert made["orchestrator.sampling.max_tokens"] == RESPONSE
    assert made["trainer.model.seq_len"] == made["orchestrator.seq_len"] == PROMPT + RESPONSE
    assert made["inference.model.max_model_len"] == PROMPT + RESPONSE
    assert made["trainer.optim.lr"] == RATE
    assert made["trainer.loss.import_path"] == "orch_prime_rl_hooks.loss"
    for key in ("estimator", "placement", "beta"):
        assert made.get(f"trainer.loss.kwargs.{key}") == (
            KLS[placement].get(key) if placement != "none" else None
        )


def test_prime_rl_current(tmp_path_factory: pytest.TempPathFactory) -> None:
    """0.8.0 takes no reference policy, dr_grpo, and one step of lag."""
    ask = asking("0.8.0", tmp_path_factory)
    more = {"advantage": {"estimator": "dr_grpo"}, "max_staleness_steps": 1}
    plan = plugins.load("prime_rl").translate(cell("prime_rl", "0.8.0", "none", **more), PLACE)
    [answer] = ask([("rl", plan.files["rl.toml"])])
    resolved = answer["resolved"]
    assert answer["ok"], answer["error"]
    no_other_model(resolved)
    made = dict(leaves(resolved))
    assert made["trainer.model.name"] == made["trainer.tokenizer.name"] == MODEL
    assert made["trainer.model.seq_len"] == PROMPT + RESPONSE
    assert made["orchestrator.train.sampling.temperature"] == TEMPERATURE
    assert made["orchestrator.train.sampling.max_completion_tokens"] == RESPONSE
    assert made["trainer.optim.lr"] == RATE


@pytest.mark.slow
@pytest.mark.parametrize("placement", KLS)
@pytest.mark.parametrize("version", verl.VERSIONS)
def test_verl(version: str, placement: str) -> None:
    plan = plugins.load("verl").translate(cell("verl", version, placement), PLACE)
    actor, rollout = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
    in_loss, in_reward = f"{actor}.use_kl_loss", "algorithm.use_kl_in_reward"
    wanted = {
        "actor_rollout_ref.model.path": MODEL,
        "actor_rollout_ref.model.tokenizer_path": None,  # that of the model
        "data.tokenizer": None,
        "data.seed": SEED,
        f"{actor}.data_loader_seed": SEED,
        f"{actor}.fsdp_config.seed": SEED,
        f"{actor}.fsdp_config.dtype": "bfloat16",
        "actor_rollout_ref.ref.fsdp_config.dtype": "bfloat16",
        f"{rollout}.dtype": "bfloat16",
        f"{actor}.optim.lr": RATE,
        "data.max_prompt_length": PROMPT,
        "data.max_response_length": RESPONSE,
        f"{rollout}.prompt_length": PROMPT,
        f"{rollout}.response_length": RESPONSE,
        f"{rollout}.temperature": TEMPERATURE,
        f"{rollout}.top_p": 1.0,
        f"{rollout}.n": 4,
        in_loss: placement == "loss",
        in_reward: placement == "reward",
        **{
            "reward": {"algorithm.kl_ctrl.kl_coef": BETA, "algorithm.kl_penalty": "kl"},
            "loss": {f"{actor}.kl_loss_coef": BETA, f"{actor}.kl_loss_type": "k3"},
            "none": {},
        }[placement],
    }
    [answer] = verl.compose(version, [overrides(plan)], sorted(wanted))
    assert answer["values"] == wanted


_PARSE_TRL = """
import dataclasses, importlib, json, sys
script, file = sys.argv[1:]
parser = importlib.import_module(f"trl.scripts.{script}").make_parser()
parts = parser.parse_args_and_config(args=["--config", file])
print("ANSWER " + json.dumps({k: v for each in parts for k, v in dataclasses.asdict(each).items()},
                             default=str))
"""


@pytest.mark.slow
@pytest.mark.real
@pytest.mark.parametrize("placement", ["reward", "loss"])
def test_trl(placement: str, tmp_path: Path) -> None:
    """The configuration class that its script builds, with what it computes of other keys."""
    formats = {"training": "fp32"} if placement == "loss" else {}
    loss = {"aggregation": "constant", "constant_tokens": 1}
    asked = cell("trl", "1.16.0", placement, loss=loss, precision=formats)
    one = asked.model_copy(update={"resources": Resources(num_nodes=1, gpus_per_node=1)})
    plan = plugins.load("trl").translate(one, PLACE)
    script = "rloo" if placement == "reward" else "grpo"
    file = tmp_path / f"{script}.yaml"
    cpu = plan.files[file.name].replace("use_cpu: false", "use_cpu: true")
    file.write_text(cpu.replace(f"{PLACE.checkpoints_dir}".replace("\n", "\\n"), "out"))
    (tmp_path / "orch_reward.py").write_text("def task_reward(**_): ...\n")
    argv = [cpu_python("trl", "1.16.0"), "-c", _PARSE_TRL, script, file]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    made = json.loads(done.stdout.rpartition("ANSWER ")[2])
    assert made["model_name_or_path"] == MODEL
    assert made["seed"] == SEED
    assert (made["temperature"], made["top_p"], made["num_generations"]) == (TEMPERATURE, 1.0, 4)
    assert made["max_completion_length"] == RESPONSE
    assert made["learning_rate"] == RATE
    assert made["beta"] == BETA
    in_bf16 = not formats  # the library's own default
    assert (made["dtype"], made["bf16"], made["fp16"]) == ("float32", in_bf16, False)
    assert made["generation_batch_size"] == 16 * 4, "prompts x rollouts"
    if placement == "loss":
        assert made["use_bias_correction_kl"] is False


FORMATS = {"rollout": "fp32"}


@pytest.mark.parametrize("version", SKYRL)
def test_skyrls_engine_has_the_cells_format(version: str) -> None:
    cells = [cell("skyrl", version, "loss", **more) for more in ({}, {"precision": FORMATS})]
    launches = [plugins.load("skyrl").translate(each, PLACE).argv[2:] for each in cells]
    resolved = [dict(leaves(answer["config"])) for answer in skyrl.ask(version, launches)]
    key = "generator.inference_engine.model_dtype"
    assert [each[key] for each in resolved] == ["bfloat16", "float32"]


@pytest.mark.parametrize("version", OPENRLHF)
def test_openrlhf_is_told_bf16_whether_the_cell_says_it_or_not(version: str) -> None:
    formats = {"training": "bf16", "rollout": "bf16", "checkpoint": "bf16"}
    cells = [cell("openrlhf", version, "loss", **more) for more in ({}, {"precision": formats})]
    launches = [plugins.load("openrlhf").translate(each, PLACE).argv for each in cells]
    key = "param_dtype" if version == FLAT else "ds.param_dtype"
    answers = asked_of_library(version, launches)
    assert [dict(leaves(answer["args"]))[key] for answer in answers] == ["bf16", "bf16"]


def test_prime_rls_server_has_the_cells_format(tmp_path_factory: pytest.TempPathFactory) -> None:
    rollout = {"group_size": 4, "max_response_tokens": RESPONSE}
    cells = [
        cell("prime_rl", "0.5.0", "loss", rollout=rollout, **more)
        for more in ({}, {"precision": FORMATS})
    ]
    texts = [plugins.load("prime_rl").translate(each, PLACE).files["rl.toml"] for each in cells]
    answers = asking("0.5.0", tmp_path_factory)([("rl", text) for text in texts])
    resolved = [dict(leaves(answer["resolved"])) for answer in answers]
    assert [each["inference.model.dtype"] for each in resolved] == ["auto", "float32"]
    teacher = [each["teacher_inference.model.dtype"] for each in resolved]
    assert teacher == ["auto", "float32"], "the library copies it"
    nodes = cells[1].model_copy(update={"resources": Resources(num_nodes=2, gpus_per_node=4)})
    files = plugins.load("prime_rl").translate(nodes, PLACE).files
    for name in ("inference.toml", "reference.toml"):
        assert tomllib.loads(files[name])["model"]["dtype"] == "float32"
    assert {each["trainer.model.optimization_dtype"] for each in resolved} == {"float32"}
