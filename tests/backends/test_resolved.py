"""Each release's own parser takes every golden launch, and reads each key as it was sent.

Its defaults are those of orch's table. Keys that a launch leaves out are the cell's too, where the
library derives them from others: a model's tokenizer, its reference, a server's lengths.
"""

import math
import tomllib
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any

import pytest
import yaml

from backends import openrlhf, prime_rl, skyrl, trl, verl
from backends.openrlhf import flags
from backends.skyrl import overrides as of_skyrl
from backends.skyrl.manifest import MANIFEST, tables
from backends.verl import overrides as of_verl
from backends.verl.manifest import TABLES
from lab.adopt.adoption import adoption_of
from orchestrator import plugins
from orchestrator.errors import UnsupportedSetting
from orchestrator.identity import flatten
from orchestrator.records import LaunchPlan
from tests import golden
from tests.backends.asked import ask
from tests.backends.prime_rl.conftest import asking
from tests.backends.specs import which_cover

pytestmark = [pytest.mark.slow, pytest.mark.thorough]


def plans(library: str, version: str) -> list[LaunchPlan]:
    made = []
    for changes in golden.rows(library).values():
        if "backend.version" not in changes:
            try:
                cell = golden.cell_of(library, version, changes)
                made.append(plugins.load(library).translate(cell, golden.PLACE))
            except UnsupportedSetting:
                continue
    return made


def same(sent: object, read: object) -> bool:
    if isinstance(sent, float) and isinstance(read, float):
        return math.isclose(sent, read, rel_tol=0, abs_tol=0)
    if isinstance(sent, tuple):
        sent = list(sent)
    return bool(sent == read) and isinstance(sent, bool) == isinstance(read, bool)


def differing(sent: Mapping[str, Any], read: Mapping[str, Any]) -> dict[str, Any]:
    """The keys that were read as another value: sent and read."""
    gone = "(no such key)"
    return {
        key: (value, read.get(key, gone))
        for key, value in sent.items()
        if not same(value, read.get(key, gone))
    }


def at(values: Any, key: str) -> Any:
    return reduce(lambda part, name: part[name], key.split("."), values)


@pytest.mark.parametrize("version", verl.BACKEND.versions)
def test_verl(version: str) -> None:
    launches: Sequence[Sequence[str]] = [plan.argv[3:] for plan in plans("verl", version)]
    launches = which_cover(launches, set)
    sent = [dict(map(of_verl.read, launch)) for launch in launches]
    keys = sorted({key for each in sent for key in each if not key.startswith("hydra.")})
    plain = {key: TABLES[version].defaults.get(key) for key in keys}
    defaults = {key: value for key, value in plain.items() if "${" not in str(value)}
    answers = ask("verl", version, launches, keys)
    assert len(answers) > 5
    for each, answer in zip(sent, answers, strict=True):
        assert "values" in answer, answer
        known = {key: value for key, value in defaults.items() if value is not None} | each
        assert not differing({k: v for k, v in known.items() if k in keys}, answer["values"])


@pytest.mark.parametrize("version", skyrl.BACKEND.versions)
def test_skyrl(version: str) -> None:
    launches = [plan.argv[2:] for plan in plans("skyrl", version)]
    bare, *answers = ask("skyrl", version, [["trainer.logger=tensorboard"], *launches])
    keys = {row.key for row in MANIFEST.rows if not row.until} & tables()[version].defaults.keys()
    for key in keys - {"data.train_data"}:
        assert same(tables()[version].defaults[key], at(bare["values"], key)), key
    for launch, answer in zip(launches, answers, strict=True):
        assert "error" not in answer, (answer["error"], launch)
        sent = {k: v for k, v in of_skyrl.read(launch).items() if not k.startswith("orch.")}
        assert not differing(sent, {key: at(answer["values"], key) for key in sent})


@pytest.mark.parametrize("version", openrlhf.BACKEND.versions)
def test_openrlhf(version: str) -> None:
    made = plans("openrlhf", version)
    answers = ask("openrlhf", version, list(map(adoption_of("openrlhf").configuration, made)))
    for plan, answer in zip(made, answers, strict=True):
        assert "error" not in answer, answer["error"]
        sent = flags.read(plan.argv, []).given
        values = answer["values"]
        old = version == flags.FLAT
        read = {key: values[flags.FLAT_NAMES[key]] if old else at(values, key) for key in sent}
        read["reward.remote_url"] = ",".join(read["reward.remote_url"])
        assert sent
        assert not differing(sent, read)


@pytest.mark.parametrize("version", prime_rl.BACKEND.versions)
def test_prime_rl(version: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Where a checkout is pointed to: its source is on no package index."""
    ask = asking(version, tmp_path_factory)
    texts = sorted(
        {
            ("rl" if name == "rl.toml" else "inference", text)
            for plan in plans("prime_rl", version)
            for name, text in plan.files.items()
            if name.endswith(".toml")
        }
    )
    for (_, text), answer in zip(texts, ask(texts), strict=True):
        assert answer["ok"], f"{answer['error']}\n{text}"
        sent = dict(flatten(tomllib.loads(text)))
        lists = [key for key, value in sent.items() if isinstance(value, list)]
        plain = {key: value for key, value in sent.items() if key not in lists}
        assert not differing(plain, dict(flatten(answer["resolved"])))


CHANGES: Mapping[str, Any] = {
    "model.path": "acme/odd-1b",
    "data.max_prompt_tokens": 111,
    "rollout.max_response_tokens": 222,
    "rollout.temperature": 0.7,
    "kl": {"estimator": "k3", "placement": "loss", "beta": 0.037},
}
DERIVED: Mapping[str, Mapping[str, object]] = {
    "verl": {
        "actor_rollout_ref.model.tokenizer_path": None,
        "data.tokenizer": None,
        "actor_rollout_ref.ref.fsdp_config.dtype": "bfloat16",
        "actor_rollout_ref.rollout.prompt_length": 111,
        "actor_rollout_ref.rollout.response_length": 222,
    },
    "skyrl": {
        "trainer.ref.model.path": "acme/odd-1b",
        "trainer.algorithm.temperature": 0.7,
        "trainer.bf16": True,
        "generator.inference_engine.model_dtype": "bfloat16",
    },
    "openrlhf": {},
    "trl": {"generation_batch_size": 1280, "fp16": False},
}
"""Library -> its resolved keys that the launch does not give, and their values."""
NAMES_MODELS = ("path", "name", "model", "tokenizer", "pretrain", "model_name_or_path")
FOREIGN = ("qwen", "llama", "mistral", "gemma", "gpt")


def other_models(resolved: Mapping[str, Any]) -> dict[str, str]:
    """The names in a configuration of models or tokenizers that are not the cell's."""
    return {
        key: value
        for key, value in resolved.items()
        if key.rpartition(".")[2] in NAMES_MODELS
        and not key.startswith("environment.skyrl_gym.")  # SkyRL's own environments, not used
        and isinstance(value, str)
        and any(word in value.lower() for word in FOREIGN)
    }


@pytest.mark.parametrize("version", trl.BACKEND.versions)
def test_trl(version: str) -> None:
    made = list(map(adoption_of("trl").configuration, plans("trl", version)))
    for (_, text), answer in zip(made, ask("trl", version, made), strict=True):
        assert "error" not in answer, answer["error"]
        # PEFT's word for every layer is a list of one on the command line, and a text after it.
        sent = {k: v[0] if v == ["all-linear"] else v for k, v in yaml.safe_load(text).items()}
        # none is an empty list; a GPU is not asked for where there is none
        assert differing(sent, answer["values"]).keys() <= {"report_to", "use_cpu"}


@pytest.mark.parametrize(
    ("library", "version"),
    [(name, version) for name in DERIVED for version in plugins.load(name).versions],
)
def test_what_the_library_fills_in_is_the_cells(library: str, version: str) -> None:
    machine = {"resources": {"num_nodes": 1, "gpus_per_node": 1 if library == "trl" else 8}}
    cell = golden.cell_of(library, version, {**CHANGES, **machine})
    plan = plugins.load(library).translate(cell, golden.PLACE)
    wanted = DERIVED[library]
    keys = sorted(wanted) if library == "verl" else None
    [answer] = ask(library, version, [adoption_of(library).configuration(plan)], keys)
    flat = dict(flatten(answer["values"]))
    assert other_models(flat) == {}
    assert {key: flat.get(key, "(no such key)") for key in wanted} == wanted
