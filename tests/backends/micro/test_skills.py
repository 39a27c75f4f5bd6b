"""The embedded tasks and how base policies are pretrained on them."""

import numpy as np
import pytest
import torch

from backends.micro import skills
from backends.micro.policy import one_quiet_core
from backends.micro.problem_sets import encode, held_out_problems, problems
from backends.micro.skills import Skill, answer
from docs.tools import pretrain


@pytest.mark.parametrize(
    ("skill", "digits"),
    [
        ("sort", [1, 3, 4, 7, 9]),
        ("reverse", [3, 7, 9, 1, 4]),
        ("copy", [4, 1, 9, 7, 3]),
        ("increment", [5, 2, 0, 8, 4]),
    ],
)
def test_answers_by_hand(skill: Skill, digits: list[int]) -> None:
    assert answer(skill, [4, 1, 9, 7, 3]) == digits


def test_training_and_evaluation_share_no_problem() -> None:
    rng = np.random.default_rng(0)
    powers = 10 ** np.arange(4, -1, -1)
    trained = set((problems(rng, skills.NUM_TRAIN_PROBLEMS, held_out=False) @ powers).tolist())
    held_out = set((held_out_problems(10_006) @ powers).tolist())
    assert len(trained) + len(held_out) == 100_000
    assert not trained & held_out
    assert (held_out_problems(8) == held_out_problems(20)[:8]).all()


def test_prompts_and_answers_as_tokens() -> None:
    prompts, answers = encode("sort", np.array([[4, 1, 9, 7, 3]]))
    assert [skills.VOCABULARY[t] for t in prompts[0]] == ["<bos>", "S", *"41973", "="]
    assert [skills.VOCABULARY[t] for t in answers[0]] == [*"13479", "<eos>"]


def test_pretraining_is_deterministic_and_learns() -> None:
    one_quiet_core()
    recipe = pretrain.RECIPES["elder"].model_copy(update={"num_steps": 12})
    one, two = pretrain.pretrain(recipe), pretrain.pretrain(recipe)
    assert torch.equal(one, two)
    measured = pretrain.measure("elder", recipe, one)
    untrained = pretrain.measure("elder", recipe, pretrain.initial(0))
    assert sum(map(sum, measured.chances.values())) > 2 * sum(map(sum, untrained.chances.values()))
