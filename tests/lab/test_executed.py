"""The reward that orch ships with a launch runs where the library is."""

import json
from pathlib import Path

import pytest

from orchestrator import scoring
from tests.backends import child
from tests.backends.environments import contract_python, cpu_python, library_python
from tests.backends.shipped import planned, write
from tests.backends.test_shipped_rewards import ENDINGS, HEAD, LABELS, PROGRAMS, RIGHT
from tests.golden import RELEASES


def python_of(library: str) -> Path:
    """The Python of an environment with the library; of Prime-RL, the verifiers that it locks."""
    if library == "prime_rl":
        return library_python("verifiers", no_deps=[], needs=["verifiers==0.1.12", "math-verify"])
    return cpu_python(library, RELEASES[library])


LOADED = {
    **PROGRAMS,
    "trl": """
sys.path.insert(0, folder)
of = loaded("orch_reward.py").task_reward
print(json.dumps(of(completions=responses, label=[label] * len(responses))))
""",
    "prime_rl": """
import inspect
sys.path.insert(0, folder)
Path(folder, "data").mkdir(exist_ok=True)
for part in ("train", "validation"):
    row = {"question": f"q of {part}", "answer": label}
    Path(folder, "data", f"{part}.jsonl").write_text(json.dumps(row))
load = loaded("orch_prime_rl_environment.py").load_environment
made = load("a/b", "train", rule, "", 1)
[row] = made.get_dataset()
assert (row["answer"], row["prompt"][-1]["content"]) == (label, "q of train")
held_out = load("a/b", "train", rule, "", 1, "validation").get_eval_dataset()
assert held_out[0]["prompt"][-1]["content"] == "q of validation"
rubrics = getattr(made.rubric, "rubrics", None) or [made.rubric]
[reward] = [f for each in rubrics for f in each.funcs if f.__name__ == "reward_of"]
assert list(inspect.signature(reward).parameters) == ["completion", "answer"], "it gives by name"
print("\\n" + json.dumps(
    [reward([{"role": "assistant", "content": text}], label) for text in responses]
))
""",
}
"""The library's own packages: its data sets, and for Prime-RL the environment that it serves."""


@pytest.mark.thorough  # in a library's environment
@pytest.mark.slow
@pytest.mark.parametrize("rule", [each for each in scoring.MODULES if each != "reasoning_gym"])
@pytest.mark.parametrize("library", [*RELEASES, "prime_rl@0.8.0"])
def test_a_reward_is_computed_where_the_library_is(library: str, rule: str, tmp_path: Path) -> None:
    """The plan's own reward file and scorer, loaded as the library loads them, nothing of orch.

    The environments have no reasoning-gym.
    """
    name, _, version = library.partition("@")
    python = contract_python(name, version) if version else python_of(name)
    folder = tmp_path / "it's a plan"
    newer = {"advantage.estimator": "dr_grpo", "max_staleness_steps": 1} if version else {}
    write(planned(name, rule, folder, version, **newer), folder)
    responses = [RIGHT[rule] + ending for ending in ENDINGS]
    arguments = (folder, rule, json.dumps(responses), LABELS[rule])
    parent = child.Imported(python, ("datasets", "verifiers") if name == "prime_rl" else ())
    done = child.forked(parent, HEAD + LOADED[name], arguments, tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    worth = dict(zip(ENDINGS, json.loads(done.stdout.splitlines()[-1]), strict=True))
    assert worth == dict.fromkeys(ENDINGS, 1.0)
