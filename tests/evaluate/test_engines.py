"""The spec's engine and sampling as lm-eval's arguments."""

import pytest
from pydantic import ValidationError

from orchestrator.errors import EnvironmentFault
from orchestrator.evaluate import engines
from orchestrator.records import Engine, EvaluationSpec, Sampling, Site

OF_TASK = {"until": ["<|im_end|>"], "max_gen_toks": 32768}


def test_auto_is_transformers_for_the_embedded_and_vllm_for_the_others() -> None:
    assert engines.resolved(Engine(), "micro", None).name == "hf"
    site = Site(options={"gres": "gpu:a100:4"})
    full = engines.resolved(Engine(), "full", site)
    assert (full.name, full.tensor_parallel_size) == ("vllm", 4)
    one = engines.resolved(Engine(tensor_parallel_size=1), "full", site)
    assert one.tensor_parallel_size == 1


def test_no_default_of_a_model_or_a_server_samples() -> None:
    sampling = Sampling(temperature=0.7, top_p=0.9, min_p=0.1, max_response_tokens=5)
    served = engines.generation(sampling, OF_TASK, Engine(name="chat", base_url="http://h"))
    assert served == {
        "until": ["<|im_end|>"],
        "max_gen_toks": 5,
        "do_sample": True,
        "temperature": 0.7,
        "top_p": 0.9,
        "min_p": 0.1,
        "top_k": -1,
        "repetition_penalty": 1.0,
        "skip_special_tokens": False,
        "spaces_between_special_tokens": False,
    }
    vllm = engines.generation(sampling, OF_TASK, Engine(name="vllm"))
    assert vllm["top_k"] == -1
    assert "seed" not in vllm  # a seed here would make all repeats of a prompt the same
    bare = Engine(name="completions", base_url="http://h", extensions=False)
    assert "top_k" not in engines.generation(Sampling(), OF_TASK, bare)


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
    with pytest.raises(ValidationError, match="base_url is needed"):
        Engine(name="chat")
    with pytest.raises(ValidationError, match="base_url is needed"):
        Engine(name="vllm", base_url="http://h")
