"""The spec's engine and sampling as lm-eval's arguments."""

import pytest
from pydantic import ValidationError

from orchestrator.errors import EnvironmentFault
from orchestrator.evaluate import engines
from orchestrator.records import Engine, EvaluationSpec, Sampling

OF_TASK = {"until": ["<|im_end|>"], "max_gen_toks": 32768}


@pytest.mark.parametrize("name", ["auto", "vllm"])
def test_a_response_budget_that_leaves_no_room_for_a_prompt_is_refused(name: str) -> None:
    """Of 300 prompt tokens, 4096 positions and 8192 response tokens left none."""
    sampling = Sampling(max_response_tokens=8192)
    told = r"engine\.max_model_len \(4096 .*sampling\.max_response_tokens \(8192\)"
    with pytest.raises(ValidationError, match=told):
        EvaluationSpec(sampling=sampling, engine=Engine(name=name, max_model_len=4096))  # type: ignore[arg-type]  # a parameter
    EvaluationSpec(sampling=sampling, engine=Engine(name="hf", max_model_len=4096))
    with pytest.raises(EnvironmentFault, match=r"300 tokens .* 4096 positions"):
        engines.refuse_cut(300, 8192, 4096)
    engines.refuse_cut(300, 3796, 4096)


def test_what_a_server_cannot_be_asked_is_told() -> None:
    chat = Engine(name="chat", base_url="http://h/v1/chat/completions")
    with pytest.raises(EnvironmentFault, match=r"always applies one; .*completions"):
        engines.refuse_mismatch(chat, False, "math500", Sampling())
    bare = Engine(name="completions", base_url="http://h", extensions=False)
    with pytest.raises(EnvironmentFault, match=r"min_p is 1, .*paper_intended"):
        engines.refuse_mismatch(bare, True, "math500", Sampling(min_p=1.0))
    assert "top_k" not in engines.generation(Sampling(), OF_TASK, bare)
    with pytest.raises(ValidationError, match="base_url is needed"):
        Engine(name="chat")
    with pytest.raises(ValidationError, match="base_url is needed"):
        Engine(name="vllm", base_url="http://h")
