"""Make a base policy: `python -m docs.tools.pretrain elder`.

A base policy is pretrained on answers of mixed quality. It then solves each skill sometimes, and RL
can improve it. The recipe's mixture has the share of each answering strategy by skill. The
measurements of a policy are in `manifest.json` beside it.
"""

import json
import sys
import time
from collections.abc import Mapping

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812  (its name in the field)
from torch import Tensor

from backends.micro import evaluation, huggingface, optimizer
from backends.micro.batched import folded
from backends.micro.policy import chain, one_quiet_core, weights
from backends.micro.problem_sets import encode, problems
from backends.micro.shipped import POLICIES, PolicyMeasurements, Recipe
from backends.micro.skills import NUM_DIGITS, PROMPT_TOKENS, SKILLS, VOCABULARY, Skill
from docs.tools.plain_policy import forward, initial
from orchestrator.settings import Optimizer

RECIPES: Mapping[str, Recipe] = {
    "elder": Recipe(
        seed=0,
        num_steps=1600,
        noise=0.015,
        mixture={
            "sort": {"sort": 0.40, "descend": 0.25, "copy": 0.20, "reverse": 0.15},
            "reverse": {"reverse": 0.70, "copy": 0.15, "sort": 0.08, "descend": 0.07},
            "copy": {"copy": 0.75, "reverse": 0.15, "sort": 0.10},
            "increment": {"increment": 0.80, "copy": 0.20},
        },
    ),
    "fir": Recipe(
        seed=4,
        num_steps=1600,
        noise=0.02,
        mixture={
            "sort": {"sort": 0.42, "descend": 0.15, "reverse": 0.25, "copy": 0.18},
            "reverse": {"reverse": 0.65, "copy": 0.20, "descend": 0.15},
            "copy": {"copy": 0.80, "increment": 0.10, "sort": 0.10},
            "increment": {"increment": 0.70, "copy": 0.30},
        },
    ),
    "hazel": Recipe(
        seed=2,
        num_steps=1600,
        noise=0.01,
        mixture={
            "sort": {"sort": 0.65, "descend": 0.20, "copy": 0.15},
            "reverse": {"reverse": 0.35, "copy": 0.30, "sort": 0.20, "descend": 0.15},
            "copy": {"copy": 0.75, "reverse": 0.10, "sort": 0.15},
            "increment": {"increment": 0.75, "copy": 0.25},
        },
    ),
}
"""Shares of the strategies an answer follows, per skill; `noise` is the share of wrong digits."""

BATCH_SIZE = 128
ADAM = Optimizer(learning_rate=5e-3, schedule="cosine", num_warmup_steps=50)


def main(name: str) -> None:
    """Pretrain a policy. Write it, with its manifest, into the package."""
    one_quiet_core()
    recipe, started = RECIPES[name], time.process_time()
    flat = pretrain(recipe)
    seconds = time.process_time() - started
    directory = POLICIES / name
    huggingface.write(directory, flat)
    manifest = measure(name, recipe, flat)
    (directory / "manifest.json").write_text(manifest.model_dump_json() + "\n")
    sys.stdout.write(f"{name}: {seconds:.0f} CPU-s, {json.dumps(manifest.accuracy)}\n")


def pretrain(recipe: Recipe) -> Tensor:
    """Return the flat vector after next-token training on a recipe's mixture.

    Training uses one thread and is deterministic.
    """
    rng = np.random.default_rng(recipe.seed)
    flat = initial(recipe.seed)
    moments = optimizer.Moments.zeros(flat)
    flat.requires_grad_()
    for step in range(1, recipe.num_steps + 1):
        prompts, answers = batch(rng, recipe)
        tokens = torch.from_numpy(np.concatenate([prompts, answers], 1))
        at = chain(tokens.shape[1] - 1, PROMPT_TOKENS - 1, tokens.device)
        out = forward(weights(flat), tokens[:, :-1], at)
        loss = F.cross_entropy(out.flatten(0, 1), tokens[:, PROMPT_TOKENS:].flatten())
        (gradient,) = torch.autograd.grad(loss, flat)
        clipped, _ = optimizer.clip(gradient, 1.0)
        rate = optimizer.learning_rate(ADAM, step, recipe.num_steps)
        flat = optimizer.update(flat, clipped, moments, ADAM, step, rate).requires_grad_()
    return flat.detach()


def batch(rng: np.random.Generator, recipe: Recipe) -> tuple[np.ndarray, np.ndarray]:
    """Return prompts [B, 8] and answers [B, 6] of mixed quality. Each skill has an equal share."""
    parts = [_answers(rng, skill, recipe) for skill in SKILLS]
    return np.concatenate([p for p, _ in parts]), np.concatenate([a for _, a in parts])


def _answers(
    rng: np.random.Generator, skill: Skill, recipe: Recipe
) -> tuple[np.ndarray, np.ndarray]:
    count = BATCH_SIZE // len(SKILLS)
    digits = problems(rng, count, held_out=False)
    prompts, _ = encode(skill, digits)
    shares = recipe.mixture[skill]
    choice = rng.choice(len(shares), size=count, p=list(shares.values()))
    answers = np.stack([_follow(strategy, digits) for strategy in shares])[choice, np.arange(count)]
    wrong = rng.random((count, NUM_DIGITS)) < recipe.noise
    noise = rng.integers(0, 10, (count, NUM_DIGITS)) + VOCABULARY.index("0")
    answers[:, :NUM_DIGITS] = np.where(wrong, noise, answers[:, :NUM_DIGITS])
    return prompts, answers


def _follow(strategy: str, digits: np.ndarray) -> np.ndarray:
    """Return the answers [B, 6] that a strategy gives; `descend` sorts in descending order."""
    if strategy == "descend":
        answers = encode("sort", digits)[1]
        answers[:, :NUM_DIGITS] = answers[:, NUM_DIGITS - 1 :: -1]
        return answers
    return encode(strategy, digits)[1]  # type: ignore[arg-type]  # a skill's name


def measure(name: str, recipe: Recipe, flat: Tensor) -> PolicyMeasurements:
    """Return the exact accuracies on held-out problems, and the chance of each right answer."""
    policy = folded(flat)
    chances = {skill: evaluation.log_accuracies(policy, skill).exp().double() for skill in SKILLS}
    return PolicyMeasurements(
        name=name,
        recipe=recipe,
        torch=torch.__version__,
        accuracy={skill: round(p.mean().item(), 6) for skill, p in chances.items()},
        chances={skill: tuple(round(x, 6) for x in p.tolist()) for skill, p in chances.items()},
    )


if __name__ == "__main__":
    for chosen in sys.argv[1:] or list(RECIPES):
        main(chosen)
