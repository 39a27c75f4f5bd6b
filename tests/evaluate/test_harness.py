"""lm-eval on a shipped policy, in this process: what it is asked, and whether it is right."""

import json
import shutil
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from backends.micro import problem_sets, skills
from orchestrator.evaluate.scores import Result, ScoringJob
from orchestrator.records import EvalTask, Sampling
from tests.evaluate.data import MICRO, answers_of, request

pytestmark = pytest.mark.slow

POLICY = MICRO / "policies" / "elder"


@pytest.fixture(scope="module")
def policy(harness: ModuleType) -> Any:
    harness.torch.set_num_threads(1)
    return harness.HarnessPolicy(POLICY)


def answered(
    harness: ModuleType, folder: Path, **changes: Any
) -> tuple[Result, list[dict[str, Any]]]:
    task = EvalTask(name="micro_sort", domain="in", repeats=4, max_items=16)
    ask = request(folder, **{"task": task, "chat_template": True} | changes)
    harness.answer(ScoringJob(cell_id="cell", checkpoint=str(POLICY), files={}, asks=(ask,)))
    return answers_of(ask)


def test_scores_depend_on_checkpoint_and_seed_and_on_nothing_else(
    harness: ModuleType, tmp_path: Path
) -> None:
    def responses(name: str, **changes: Any) -> list[list[str]]:
        _, items = answered(harness, tmp_path / name, **changes)
        return [item["responses"] for item in items]

    first = responses("first")
    sampling = Sampling(temperature=0.5, top_p=0.9, min_p=0.1)
    other = responses("between", sampling=sampling, seed=1)  # also: it leaves nothing behind
    assert responses("again") == first
    assert first != other
    assert responses("seed", seed=1) != first
    assert responses("checkpoint", checkpoint="fir") != first


def test_the_checkpoints_own_sampling_settings_do_not_count(
    harness: ModuleType, tmp_path: Path
) -> None:
    path = Path(shutil.copytree(POLICY, tmp_path / "policy"))
    (path / "generation_config.json").write_text(
        json.dumps(
            {
                "eos_token_id": 2,
                "pad_token_id": 0,
                "do_sample": True,
                "top_k": 1,
                "repetition_penalty": 5.0,
            }
        )
    )
    told = harness.HarnessPolicy(path).model.generation_config
    assert (told.eos_token_id, told.top_k, told.repetition_penalty) == (2, None, None)


@pytest.mark.parametrize("until", [[], ["5"]], ids=["the end alone", "another stop"])
def test_responses_are_those_of_lm_evals_own_class(
    harness: ModuleType, policy: Any, until: list[str]
) -> None:
    """The peer decodes each row after each token."""
    from lm_eval.api.instance import Instance
    from lm_eval.models.huggingface import HFLM

    class Plain(harness.HarnessPolicy):  # type: ignore[name-defined, misc]  # a module's class
        _model_generate = HFLM._model_generate

    settings = {"until": until, "max_gen_toks": 7, "do_sample": True, "temperature": 1.0}
    prompts = [skills.text("sort", digits) for digits in problem_sets.held_out_problems(9).tolist()]
    prompts[3] = prompts[3][2:]  # a shorter one
    responses = []
    for each in (policy, Plain(POLICY)):
        each.seeded(3)
        requests = [
            Instance("generate_until", {}, (prompt, settings), place)
            for place, prompt in enumerate(prompts)
            for _ in range(4)
        ]
        responses.append(each.generate_until(requests))
    assert responses[0] == responses[1]
    assert len(set(responses[0])) > 4
