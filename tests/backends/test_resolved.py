"""Every launch, resolved by the library to the end: what derived values became.

Contract tests compare each key that a launch gives. This one looks at keys that it does not give,
and that a library fills in from others: a model's tokenizer, its reference, evaluation's sampling,
a server's lengths. The cell's values are no library's defaults.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from backends.openrlhf.flags import FLAT, FLAT_NAMES
from orchestrator import plugins
from orchestrator.identity import fingerprint
from orchestrator.records import Cell, LaunchPlan
from orchestrator.settings import Resources, Settings
from tests.backends import child
from tests.backends.environments import cpu_python
from tests.backends.openrlhf.cells import PLACE, asked_of_library
from tests.backends.skyrl import library as skyrl
from tests.backends.verl import library as verl
from tests.backends.verl.cells import overrides

pytestmark = [pytest.mark.slow, pytest.mark.thorough]  # in a library's environment

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


Wanted = Mapping[str, Mapping[str, Any] | str]
"""What of a cell -> the library's resolved keys and their values; or why it has no key."""
QUANTITIES = ("model", "tokenizer", "precision", "seeds", "sampling", "lengths", "kl")
OF_THE_MODEL = "it loads the tokenizer of the model's path"


def compare(resolved: Mapping[str, Any], wanted: Wanted) -> None:
    """Hold a whole resolved configuration to a cell. Nothing that a cell has may be left out."""
    assert tuple(wanted) == QUANTITIES
    no_other_model(resolved)
    flat = dict(leaves(resolved))
    for quantity, keys in wanted.items():
        if not isinstance(keys, str):
            assert keys, quantity
            assert {key: flat.get(key, "(no such key)") for key in keys} == keys, quantity


def skyrl_resolved(version: str, placement: str) -> tuple[Mapping[str, Any], Wanted]:
    plan = plugins.load("skyrl").translate(cell("skyrl", version, placement), PLACE)
    [answer] = skyrl.ask(version, [plan.argv[2:]])
    algorithm = "trainer.algorithm"
    samplings = ("generator.sampling_params", "generator.eval_sampling_params")
    kl = {
        f"{algorithm}.use_kl_in_reward": placement == "reward",
        f"{algorithm}.use_kl_loss": placement == "loss",
    }
    if placement != "none":
        kl |= {
            f"{algorithm}.kl_loss_coef": BETA,
            f"{algorithm}.kl_estimator_type": KLS[placement]["estimator"],
            f"{algorithm}.kl_ctrl.type": "fixed",
        }
    return answer["values"], {
        "model": {"trainer.policy.model.path": MODEL, "trainer.ref.model.path": MODEL},
        "tokenizer": OF_THE_MODEL,
        "precision": {
            "trainer.bf16": True,
            "generator.inference_engine.model_dtype": "bfloat16",
        },
        "seeds": {"trainer.seed": SEED},
        "sampling": {
            "generator.n_samples_per_prompt": 4,
            "trainer.algorithm.temperature": TEMPERATURE,
            **{f"{each}.temperature": TEMPERATURE for each in samplings},
            **{f"{each}.top_p": 1.0 for each in samplings},
            **{f"{each}.top_k": -1 for each in samplings},
        },
        "lengths": {
            "trainer.max_prompt_length": PROMPT,
            "generator.max_input_length": PROMPT,
            **{f"{each}.max_generate_length": RESPONSE for each in samplings},
        },
        "kl": {**kl, "trainer.policy.optimizer_config.lr": RATE},
    }


def openrlhf_resolved(version: str, placement: str) -> tuple[Mapping[str, Any], Wanted]:
    plan = plugins.load("openrlhf").translate(cell("openrlhf", version, placement), PLACE)
    [answer] = asked_of_library(version, [plan.argv])

    def spelled(keys: Mapping[str, Any]) -> dict[str, Any]:
        return {
            str(FLAT_NAMES.get(key, key)) if version == FLAT else key: value
            for key, value in keys.items()
        }

    kl = {"algo.kl.use_loss": placement == "loss"}
    kl |= {"algo.kl.init_coef": 0 if placement == "none" else BETA}  # type: ignore[dict-item]  # numbers too
    if placement != "none":
        kl |= {"algo.kl.estimator": KLS[placement]["estimator"]}
    lengths = {"rollout.max_new_tokens": RESPONSE, "data.max_len": PROMPT + RESPONSE}
    return answer["values"], {
        "model": spelled({"actor.model_name_or_path": MODEL}),
        "tokenizer": OF_THE_MODEL,
        "precision": spelled({"ds.param_dtype": "bf16"}),
        "seeds": spelled({"train.seed": SEED}),
        "sampling": spelled(
            {
                "rollout.temperature": TEMPERATURE,
                "rollout.top_p": 1.0,
                "rollout.n_samples_per_prompt": 4,
            }
        ),
        "lengths": spelled(lengths),
        "kl": spelled({**kl, "actor.adam.lr": RATE}),
    }


def verl_resolved(version: str, placement: str) -> tuple[Mapping[str, Any], Wanted]:
    plan = plugins.load("verl").translate(cell("verl", version, placement), PLACE)
    actor, rollout = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
    reference = "actor_rollout_ref.ref"
    wanted: Wanted = {
        "model": {"actor_rollout_ref.model.path": MODEL},
        "tokenizer": {"actor_rollout_ref.model.tokenizer_path": None, "data.tokenizer": None},
        "precision": {
            f"{actor}.fsdp_config.dtype": "bfloat16",
            f"{reference}.fsdp_config.dtype": "bfloat16",
            f"{rollout}.dtype": "bfloat16",
        },
        "seeds": {
            "data.seed": SEED,
            f"{actor}.data_loader_seed": SEED,
            f"{actor}.fsdp_config.seed": SEED,
        },
        "sampling": {
            f"{rollout}.temperature": TEMPERATURE,
            f"{rollout}.top_p": 1.0,
            f"{rollout}.n": 4,
        },
        "lengths": {
            "data.max_prompt_length": PROMPT,
            "data.max_response_length": RESPONSE,
            f"{rollout}.prompt_length": PROMPT,
            f"{rollout}.response_length": RESPONSE,
        },
        "kl": {
            f"{actor}.use_kl_loss": placement == "loss",
            "algorithm.use_kl_in_reward": placement == "reward",
            f"{actor}.optim.lr": RATE,
            **{
                "reward": {
                    "algorithm.kl_ctrl.type": "fixed",
                    "algorithm.kl_ctrl.kl_coef": BETA,
                    "algorithm.kl_penalty": "kl",
                },
                "loss": {f"{actor}.kl_loss_coef": BETA, f"{actor}.kl_loss_type": "k3"},
                "none": {},
            }[placement],
        },
    }
    asked = [key for keys in wanted.values() if not isinstance(keys, str) for key in keys]
    [answer] = verl.compose(version, [overrides(plan)], sorted(asked))
    return answer["values"], wanted


PARSE_TRL = """
import dataclasses, importlib, json, os, sys
for line in sys.stdin:
    script, folder = json.loads(line)
    os.chdir(folder)
    parser = importlib.import_module(f"trl.scripts.{script}").make_parser()
    parts = parser.parse_args_and_config(args=["--config", f"{script}.yaml"])
    found = {k: v for each in parts for k, v in dataclasses.asdict(each).items()}
    print("ANSWER " + json.dumps(found, default=str), flush=True)
"""


def parsed_by_trl(version: str, plan: LaunchPlan, script: str, folder: Path) -> dict[str, Any]:
    """What a script's own parser makes of a launch, on a CPU."""
    file = folder / f"{script}.yaml"
    cpu = plan.files[file.name].replace("use_cpu: false", "use_cpu: true")
    file.write_text(cpu.replace(f"{PLACE.checkpoints_dir}".replace("\n", "\\n"), "out"))
    (folder / "orch_reward.py").write_text("def task_reward(**_): ...\n")
    resolved: dict[str, Any] = child.ask(
        (cpu_python("trl", version), "-c", PARSE_TRL), [script, str(folder)]
    )
    return resolved


def trl_resolved(
    version: str, placement: str, folder: Path, **formats: str
) -> tuple[Mapping[str, Any], Wanted]:
    """The configuration class that its script builds, with what it computes of other keys."""
    constant = 1 if placement == "reward" or version == "1.16.0" else RESPONSE
    loss = {"aggregation": "constant", "constant_tokens": constant}
    asked = cell("trl", version, placement, loss=loss, precision=formats)
    one = asked.model_copy(update={"resources": Resources(num_nodes=1, gpus_per_node=1)})
    plan = plugins.load("trl").translate(one, PLACE)
    script = "rloo" if placement == "reward" else "grpo"
    resolved = parsed_by_trl(version, plan, script, folder)
    kl = {"beta": 0.0 if placement == "none" else BETA, "learning_rate": RATE}
    if placement == "loss" and version == "1.16.0":
        kl["use_bias_correction_kl"] = False
    in_bf16 = not formats  # the library's own default
    return resolved, {
        "model": {"model_name_or_path": MODEL},
        "tokenizer": OF_THE_MODEL,
        "precision": {"dtype": "float32", "bf16": in_bf16, "fp16": False},
        "seeds": {"seed": SEED},
        "sampling": {
            "temperature": TEMPERATURE,
            "top_p": 1.0,
            "num_generations": 4,
            "generation_batch_size": 16 * 4,
        },
        "lengths": {"max_completion_length": RESPONSE},
        "kl": kl,
    }


RESOLVED = [
    (library, version, placement)
    for library in plugins.names()
    if library not in ("micro", "prime_rl")
    for version in plugins.load(library).versions
    for placement in KLS
]
"""Every release that orch drives and a registry has."""


@pytest.mark.parametrize(("library", "version", "placement"), RESOLVED)
def test_what_the_library_resolved_is_the_cell(
    library: str,
    version: str,
    placement: str,
    tmp_path: Path,
) -> None:
    match library:
        case "skyrl":
            resolved, wanted = skyrl_resolved(version, placement)
        case "openrlhf":
            resolved, wanted = openrlhf_resolved(version, placement)
        case "verl":
            resolved, wanted = verl_resolved(version, placement)
        case "trl":
            resolved, wanted = trl_resolved(version, placement, tmp_path)
        case _:
            raise AssertionError(f"nothing here asks {library} what it resolves")
    compare(resolved, wanted)
