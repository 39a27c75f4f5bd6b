"""One reward contract: each library's shipped reward file, given text as that library decodes it.

SkyRL decodes a response with the tokens that end it (`batch_decode(ids)`), and OpenRLHF prompt and
response in one (`skip_special_tokens=False`). verl skips them, and Prime-RL gets the text
from a server that leaves out the token that stopped it. A right answer is worth 1.0 in all of them.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator import scoring
from tests.backends.shipped import LIBRARIES, planned, write

LABELS = {
    "math_boxed": r"\frac{1}{2}",
    "countdown": '{"numbers": [2, 3], "target": 6}',
    "exact": "yes",
    "reasoning_gym": '{"dataset": "chain_sum", "row": {"answer": "6", "metadata": {}}}',
}
RIGHT = {
    "math_boxed": r"so \boxed{0.5}",
    "countdown": "3 * 2",
    "exact": "yes",
    "reasoning_gym": "so <answer>6</answer>",
}
ENDINGS = (
    "",
    "<eos>",
    "<|im_end|>",
    "<|endoftext|>",
    "</s>",
    "<|eot_id|>",
    "<end_of_turn>\n",
    "<|im_end|>\n<|endoftext|>",
    "<pad><pad>",
    "<\uff5cend\u2581of\u2581sentence\uff5c>",
)
HEAD = """
import importlib.util, json, sys, types
from pathlib import Path
folder, rule, responses, label = sys.argv[1], sys.argv[2], json.loads(sys.argv[3]), sys.argv[4]
def loaded(name):
    spec = importlib.util.spec_from_file_location("reward_of_the_plan", Path(folder) / name)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
"""
ALONE = """
assert not [name for name in sys.modules if name.startswith(("orchestrator", "backends"))]
"""
PROGRAMS = {
    "skyrl": """
score = loaded("reward.py").score
print(json.dumps([score(text, label) for text in responses]))
""",
    "openrlhf": """
of = loaded("reward.py").reward_func
prompt = "<|im_start|>user\\nWhat?<|im_end|>\\n<|im_start|>assistant\\n"
print(json.dumps([
    of([begin + prompt + text], [prompt], [label])["rewards"]
    for text, begin in zip(responses, ["", "<s>"] * len(responses))
]))
""",
    "verl": """
of = loaded("reward.py").compute_score
print(json.dumps([of("math", text, label, {"index": 0}, rule=rule) for text in responses]))
""",
    "prime_rl": """
Path(folder, "data").mkdir()
Path(folder, "data", "train.jsonl").write_text(json.dumps({"question": "q", "answer": label}))
sys.modules["datasets"] = types.SimpleNamespace(load_dataset=lambda *a, **k: ["a row"])
sys.modules["verifiers"] = types.SimpleNamespace(
    SingleTurnEnv=types.SimpleNamespace, Rubric=types.SimpleNamespace)
made = loaded("orch_prime_rl_environment.py").load_environment("a/b", "train", rule, "", 1)
[reward] = made.rubric.funcs
print(json.dumps([reward([{"role": "assistant", "content": text}], label) for text in responses]))
""",
}


@pytest.mark.parametrize("rule", scoring.MODULES)
@pytest.mark.parametrize("library", LIBRARIES)
def test_a_right_answer_is_worth_one_however_it_was_decoded(
    library: str, rule: str, tmp_path: Path
) -> None:
    if rule == "reasoning_gym":
        pytest.importorskip("reasoning_gym")
    plan = planned(library, rule, tmp_path)
    write(plan, tmp_path)
    responses = [RIGHT[rule] + ending for ending in ENDINGS]
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            HEAD + PROGRAMS[library] + ALONE,
            tmp_path,
            rule,
            json.dumps(responses),
            LABELS[rule],
        ],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    worth = dict(zip(ENDINGS, json.loads(done.stdout), strict=True))
    assert worth == dict.fromkeys(ENDINGS, 1.0)


@pytest.mark.parametrize(
    ("response", "text"),
    [
        ("6<eos>", "6"),
        ("a <b> c", "a <b> c"),
        ("<eos> 6", "<eos> 6"),
        ("<eos>", ""),
        ("2 < 3 |> 4", "2 < 3 |> 4"),
        ("x" * 500 + "</s>", "x" * 500),
    ],
)
def test_only_what_ends_a_response_is_left_out(response: str, text: str) -> None:
    assert scoring.spoken(response) == text
