"""Exactly num_train_steps: the trainer's own loop, of each release, run over counted prompts."""

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from backends.openrlhf import BACKEND
from backends.openrlhf.flags import FLAT, FLAT_NAMES, VERSIONS, read
from orchestrator.settings import Resources
from tests.backends.openrlhf.cells import PLACE, base, cell_of, environment

pytest.importorskip("torch")
pytestmark = [pytest.mark.slow, pytest.mark.thorough]  # in a library's environment
STAND_INS = (
    "ray",
    "vllm",
    "openrlhf",
    "openrlhf.datasets",
    "openrlhf.datasets.utils",
    "openrlhf.models",
    "openrlhf.models.utils",
    "openrlhf.trainer",
    "openrlhf.trainer.ppo_utils",
    "openrlhf.trainer.ppo_utils.experience",
    "openrlhf.trainer.ppo_utils.experience_maker",
    "openrlhf.trainer.ppo_utils.kl_controller",
    "openrlhf.trainer.ray",
    "openrlhf.trainer.ray.launcher",
    "openrlhf.trainer.ray.vllm_engine",
    "openrlhf.utils",
    "openrlhf.utils.deepspeed",
    "openrlhf.utils.logging_utils",
    "openrlhf.utils.utils",
)


def library(version: str, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any]:
    """PPOTrainer and SamplesGenerator of that release, with nothing of Ray or vLLM."""
    for name in STAND_INS:
        monkeypatch.setitem(sys.modules, name, MagicMock())
    ray: Any = sys.modules["ray"]
    ray.remote = lambda target: target
    (root,) = environment(version).parents[1].glob("lib/python*/site-packages/openrlhf/trainer")
    name = "openrlhf.trainer.ppo_utils.samples_generator"
    generator = _load(name, root / "ppo_utils" / "samples_generator.py")
    monkeypatch.setitem(sys.modules, name, generator)
    trainer = _load("openrlhf.trainer.ppo_trainer", root / "ppo_trainer.py")
    return trainer.PPOTrainer, generator.SamplesGenerator


def _load(name: str, path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Prompts:
    """A dataloader of that many rows, one a time."""

    def __init__(self, rows: int):
        self.rows = rows

    def __len__(self) -> int:
        return self.rows

    def __iter__(self) -> Iterator[tuple[list[str], list[str], list[str], list[None]]]:
        return ((["d"], [f"p{i}"], ["l"], [None]) for i in range(self.rows))

    def state_dict(self) -> dict[str, int]:
        return {}


def namespace(given: dict[str, Any], version: str) -> Any:
    """The library's args as its trainer reads them, of our flags."""
    if version == FLAT:
        flat = {FLAT_NAMES[name]: value for name, value in given.items()}
        extra = {"dynamic_filtering": False, "eval_steps": float("inf"), "vllm_enable_sleep": False}
        return SimpleNamespace(**{**flat, **extra})
    root = MagicMock()
    for name, value in given.items():
        section, _, leaf = name.rpartition(".")
        at = root
        for part in section.split("."):
            at = getattr(at, part)
        setattr(at, leaf, value)
    root.algo.dynamic_filtering_enable = root.vllm.enable_sleep = False
    root.rollout.vllm_generate_batch_size = None
    root.eval.steps = float("inf")
    return root


def global_steps(
    version: str, rows: int, given: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> list[int]:
    """Prompts of each step the trainer's fit() makes, over `rows` rows."""
    trainer_class, generator_class = library(version, monkeypatch)
    args = namespace(given, version)
    group = given["rollout.n_samples_per_prompt"]
    samples: Any = sys.modules[generator_class.__module__]
    collect = samples._collect_prompt_batch

    def generate(self: Any, dataloader_iter: Any, num_prompts: int, **_: object) -> Any:
        prompts, _labels, _images, exhausted = collect(dataloader_iter, num_prompts)
        return [p for p in prompts for _ in range(group)], len(prompts), exhausted

    generator_class._generate_vllm = generate
    loader = Prompts(rows)
    sizes: list[int] = []

    def train_step(samples: list[str], step: int) -> tuple[dict[str, float], int]:
        sizes.append(len(samples) // group)
        return {}, step + 1

    trainer = MagicMock()
    trainer.args = args
    trainer.init_checkpoint_states.return_value = {
        "episode": 0,
        "global_step": 0,
        "total_consumed_prompts": 0,
        "data_loader_state_dict": {},
    }
    trainer.prompts_dataloader = loader
    trainer.samples_generator = generator_class(
        SimpleNamespace(args=args), loader, None, None, vllm_engines=[]
    )
    trainer.generate_kwargs = {}
    trainer.train_step = train_step
    trainer_class.fit(trainer)
    return sizes


@pytest.mark.parametrize("version", VERSIONS)
def test_the_trainer_makes_exactly_the_steps_asked_for(
    version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = base(
        data={"num_prompts": 30},
        batch={"num_prompts": 8, "num_minibatches": 2},
        rollout={"group_size": 3},
        num_train_steps=26,
        backend={"version": version},
    )
    cell = cell_of(settings, resources=Resources(num_nodes=1, gpus_per_node=4))
    given = dict(read(BACKEND.translate(cell, PLACE).argv, []).given)
    rows = 30 * (str(given["data.prompt_dataset"]).count(",") + 1)
    used = min(rows, int(str(given["data.max_samples"])))
    sizes = global_steps(version, used, given, monkeypatch)
    assert sizes == [8] * 13
    assert len(sizes) * settings.batch.num_minibatches == settings.num_train_steps


@pytest.mark.parametrize(("version", "last"), [(VERSIONS[0], [4]), (FLAT, [])])
def test_a_row_count_that_is_no_multiple_ends_differently_by_release(
    version: str, last: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Why rows are cut to whole batches: 0.11.2 trains a short last one, 0.10.1 drops it."""
    given: dict[str, Any] = {
        "rollout.batch_size": 8,
        "rollout.n_samples_per_prompt": 3,
        "train.num_episodes": 1,
    }
    assert global_steps(version, 20, given, monkeypatch) == [8, 8, *last]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_prompt_file_named_several_times_is_passed_several_times(
    version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    (path,) = (
        environment(version).parents[1].glob("lib/python*/site-packages/openrlhf/datasets/utils.py")
    )
    file = tmp_path / "a 'b' µ" / "train.jsonl"
    file.parent.mkdir()
    file.write_text("".join(f'{{"prompt": "p{i}", "label": "{i}"}}\n' for i in range(30)))
    rows = 104
    data = _load("openrlhf_datasets_utils", path).blending_datasets(
        ",".join([str(file)] * 4), None, MagicMock(), 0, max_count=rows, dataset_split="train"
    )
    data = data.select(range(min(rows, len(data))))
    assert data["prompt"] == [f"p{i % 30}" for i in range(rows)]
