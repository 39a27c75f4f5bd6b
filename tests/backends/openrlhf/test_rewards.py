"""The reward files a launch ships, run as the library runs them: one response, in a thread."""

import importlib.util
import json
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from backends.openrlhf import BACKEND
from tests.backends.openrlhf.cells import PLACE, base, cell_of
from tests.backends.shipped import WORTH, rewards


@pytest.fixture(autouse=True)
def own_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each plan has a process of its own; here they share one."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in [name for name in sys.modules if name.startswith("orch_scoring")]:
        del sys.modules[name]
    yield
    for name in [name for name in sys.modules if name.startswith("orch_scoring")]:
        del sys.modules[name]


def shipped_reward(reward: str, directory: Path) -> ModuleType:
    """reward.py of a plan, loaded from where the launch puts it, as the sampler loads it."""
    plan = BACKEND.translate(cell_of(base(data={"reward": reward})), PLACE)
    path = directory / "reward.py"
    for name, text in plan.files.items():
        (directory / name).parent.mkdir(exist_ok=True)
        (directory / name).write_text(text, encoding="utf-8")
    assert str(PLACE.plan_dir / path.name) in plan.argv
    spec = importlib.util.spec_from_file_location("reward_func", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def in_a_thread(function: Callable[[], object]) -> object:
    answers: list[object] = []
    thread = threading.Thread(target=lambda: answers.append(function()))
    thread.start()
    thread.join()
    assert answers, "it raised: the library would swallow that, and fail later"
    return answers[0]


@pytest.mark.parametrize(
    ("response", "label", "reward"),
    [
        (r"so \boxed{\frac{1}{2}}<|im_end|>", "0.5", 1.0),
        (r"\boxed{3}, no: \boxed{4}", "4", 1.0),
        (r"\boxed{4}, no: \boxed{3}", "4", 0.0),
        ("the answer is 4", "4", 0.0),
        (r"\boxed{} 4", "4", 0.0),
        (r"\boxed{4", "4", 0.0),
        (r"\boxed{\sqrt{\frac{2}{1}}}", r"\sqrt{2}", 1.0),
        ("", "4", 0.0),
    ],
)
def test_math(response: str, label: str, reward: float, tmp_path: Path) -> None:
    module = shipped_reward("math_boxed", tmp_path)
    prompt = r"What is 2 + 2? Answer within \boxed{}."
    told = in_a_thread(lambda: module.reward_func([prompt + response], [prompt], [label]))
    assert told == {"rewards": reward, "scores": reward, "extra_logs": {}}


@pytest.mark.parametrize(
    ("response", "reward"),
    [
        ("<answer>(25 - 5) * 3 + 1</answer>", 1.0),
        ("<answer>99</answer> or <answer> 3*(25-5)+1 </answer><|im_end|>", 1.0),
        ("<answer>25 + 5 + 3 + 1</answer>", 0.05),
        ("<answer>61</answer>", 0.05),
        ("<answer>61 / 0</answer>", 0.01),
        ("<answer>25 ** 5 ** 9</answer>", 0.01),
        ("<answer>__import__('os')</answer>", 0.01),
        ("<answer></answer>", 0.01),
        ("<answer>" + "(" * 300 + "</answer>", 0.01),
        ("61", 0.05),
        ("(25 - 5) * 3 + 1<|im_end|>", 1.0),
        ("(25 - 5) * 3 + 1<|end_of_text|></s>\n", 1.0),
        ("I say 61", 0.01),
    ],
)
def test_countdown(response: str, reward: float, tmp_path: Path) -> None:
    module = shipped_reward("countdown", tmp_path)
    label = json.dumps({"numbers": [25, 5, 3, 1], "target": 61})
    told = in_a_thread(lambda: module.reward_func(["p" + response], ["p"], [label]))
    assert told == {"rewards": reward, "scores": reward, "extra_logs": {}}


BARE = """
import importlib.util, json
folder, right, wrong, label = sys.argv[1:]
spec = importlib.util.spec_from_file_location("reward_func", folder + "/reward.py")
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
print(json.dumps([
    module.reward_func(["p" + text], ["p"], [label])["rewards"] for text in (right, wrong)
]))
"""


@pytest.mark.parametrize("rule", [rule for rule in WORTH if rule != "exact"])
def test_it_stands_alone(rule: str, tmp_path: Path) -> None:
    plan = BACKEND.translate(cell_of(base(data={"reward": rule})), PLACE)
    assert rewards(BARE, plan, tmp_path, rule) == WORTH[rule]
