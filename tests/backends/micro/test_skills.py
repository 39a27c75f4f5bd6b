"""The embedded tasks and how base policies are pretrained on them."""

import numpy as np
import pytest
import torch

from backends.micro import skills
from backends.micro.policy import one_quiet_core
from backends.micro.problem_sets import encode, held_out_problems, problems
from backends.micro.shipped import manifest, names
from backends.micro.skills import SKILLS, Skill, answer
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


@pytest.mark.parametrize("name", names())
def test_the_recipe_of_a_shipped_policy_is_the_scripts(name: str) -> None:
    assert manifest(name).recipe == pretrain.RECIPES[name]
    for shares in pretrain.RECIPES[name].mixture.values():
        assert sum(shares.values()) == pytest.approx(1)


def test_answers_follow_the_strategies_of_the_mixture() -> None:
    recipe = pretrain.Recipe(
        seed=0,
        num_steps=1,
        noise=0.0,
        mixture={skill: {"descend": 0.5, skill: 0.5} for skill in SKILLS},
    )
    prompts, answers = pretrain.batch(np.random.default_rng(0), recipe)
    first = skills.VOCABULARY.index("0")
    counts = {"right": 0, "descending": 0}
    for prompt, given in zip(prompts, answers, strict=True):
        digits, said = prompt[2:-1] - first, (given[:-1] - first).tolist()
        skill = next(s for s in SKILLS if skills.VOCABULARY[prompt[1]] == skills.LETTER[s])
        assert given[-1] == skills.EOS
        if said == answer(skill, digits.tolist()):
            counts["right"] += 1
        else:
            assert said == sorted(digits.tolist(), reverse=True)
            counts["descending"] += 1
    assert min(counts.values()) > 35


def test_pretraining_is_deterministic_and_learns() -> None:
    one_quiet_core()
    recipe = pretrain.RECIPES["elder"].model_copy(update={"num_steps": 12})
    one, two = pretrain.pretrain(recipe), pretrain.pretrain(recipe)
    assert torch.equal(one, two)
    measured = pretrain.measure("elder", recipe, one)
    untrained = pretrain.measure("elder", recipe, pretrain.initial(0))
    assert sum(map(sum, measured.chances.values())) > 2 * sum(map(sum, untrained.chances.values()))
