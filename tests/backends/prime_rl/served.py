"""Loads our environment with the real verifiers and scores responses; prints JSON.

argv: a folder with orch_prime_rl_environment.py, math.jsonl and countdown.jsonl.
"""

import asyncio
import json
import sys

sys.path.insert(0, sys.argv[1])

import verifiers as vf

NAME = "orch-prime-rl-environment"


def score(environment, response):
    """The reward of a response to the first prompt."""
    row = environment.get_dataset()[0]
    state = vf.State(input={key: row[key] for key in ("prompt", "answer", "task", "example_id")})
    state |= {
        "prompt": row["prompt"], "answer": row["answer"], "trajectory": [],
        "completion": [{"role": "assistant", "content": response}],
        "timing": {"scoring_ms": 0, "total_ms": 0, "generation_ms": 0},
    }  # fmt: skip
    asyncio.run(environment.rubric.score_rollout(state))
    return state["reward"]


mathematics = vf.load_environment(
    NAME, path="math.jsonl", split="train", reward="math_boxed", instruction="Box it.",
    num_prompts=2,
)  # fmt: skip
countdown = vf.load_environment(NAME, path="countdown.jsonl", split="train", reward="countdown")
group = vf.EnvGroup(envs=[mathematics], env_names=["train"])
json.dump({
    "prompts": sorted(row["prompt"][0]["content"] for row in group.get_dataset(seed=1)),
    "right": score(mathematics, r"\boxed{\frac{1}{2}}"), "wrong": score(mathematics, r"\boxed{3}"),
    "met": score(countdown, "<answer>3*5+7</answer>"),
    "missed": score(countdown, "<answer>3+5+7</answer>"),
}, sys.stdout)  # fmt: skip
