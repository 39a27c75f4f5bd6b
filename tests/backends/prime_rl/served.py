"""Loads our environment with the real verifiers and scores responses; prints JSON.

argv: a folder with orch_prime_rl_environment.py, orch_scoring/ and data/; the kind of its prompts.
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
        "prompt": row["prompt"],
        "answer": row["answer"],
        "trajectory": [],
        "completion": [{"role": "assistant", "content": response}],
        "timing": {"scoring_ms": 0, "total_ms": 0, "generation_ms": 0},
    }
    asyncio.run(environment.rubric.score_rollout(state))
    return state["reward"]


if sys.argv[2] == "mathematics":
    mathematics = vf.load_environment(
        NAME,
        path="math",
        split="train",
        reward="math_boxed",
        instruction="Box it.",
        num_prompts=2,
    )
    validation = vf.load_environment(
        NAME, path="math", split="train", reward="math_boxed", num_prompts=2, part="validation"
    )
    group = vf.EnvGroup(envs=[mathematics], env_names=["train"])
    told = {
        "prompts": sorted(row["prompt"][0]["content"] for row in group.get_dataset(seed=1)),
        "right": score(mathematics, r"\boxed{\frac{1}{2}}"),
        "validation": [row["prompt"][0]["content"] for row in validation.get_eval_dataset()],
        "wrong": score(mathematics, r"\boxed{3}"),
    }
else:
    countdown = vf.load_environment(NAME, path="countdown", split="train", reward="countdown")
    told = {
        "met": score(countdown, "<answer>3*5+7</answer>"),
        "missed": score(countdown, "<answer>3+5+7</answer>"),
    }
json.dump(told, sys.stdout)
