"""lm-eval's own VLLM model over a stand-in for the vllm package, which needs a GPU.

What is real here is lm-eval's code and ours; the stand-in keeps what it is asked. No statement
about vLLM itself is tested.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.errors import EnvironmentFault
from orchestrator.records import Engine, Sampling

pytestmark = pytest.mark.slow

POLICY = Path(__file__).parents[2] / "backends" / "micro" / "policies" / "elder"
STAND_IN = {
    "vllm/__init__.py": """
import copy, json
from pathlib import Path
from types import SimpleNamespace
class SamplingParams:
    def __init__(self, n=1, seed=None, **named):
        self.n, self.seed, self.named = n, seed, named
    def clone(self):
        return copy.deepcopy(self)
class TokensPrompt(dict):
    pass
class LLM:
    def __init__(self, **named):
        self.named, self.asked = named, []
        self.config = json.loads((Path(named["model"]) / "config.json").read_text())
        self.llm_engine = SimpleNamespace(
            model_config=SimpleNamespace(max_model_len=64),
            engine_core=SimpleNamespace(shutdown=lambda: self.asked.append("ended")),
        )
    def generate(self, prompts, sampling_params, use_tqdm, lora_request):
        self.asked += list(zip(prompts, sampling_params, strict=True))
        return [SimpleNamespace(outputs=[SimpleNamespace(text=f"{p.seed}/{i}<|im_end|>rest")
                                         for i in range(p.n)]) for p in sampling_params]
""",
    "vllm/lora/__init__.py": "",
    "vllm/lora/request.py": "LoRARequest = None\n",
    "vllm/renderers/__init__.py": "",
    "vllm/renderers/hf.py": "def resolve_chat_template(**_):\n    return None\n",
    "vllm/tokenizers.py": (
        "from transformers import AutoTokenizer\n"
        "def get_tokenizer(name, *, tokenizer_mode, trust_remote_code, revision):\n"
        "    return AutoTokenizer.from_pretrained(name)\n"
    ),
    "vllm-0.18.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: vllm\nVersion: 0.18.0\n",
}


@pytest.fixture
def vllm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    from lm_eval.api.registry import model_registry

    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setattr(model_registry, "_objs", dict(model_registry._objs))
    for name, text in STAND_IN.items():
        path = tmp_path / "site" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    yield
    for name in [n for n in sys.modules if n.partition(".")[0] == "vllm"]:
        del sys.modules[name]
    sys.modules.pop("lm_eval.models.vllm_causallms", None)


def request(prompt: str, **kwargs: Any) -> Any:
    return SimpleNamespace(args=(prompt, kwargs))


def test_all_k_responses_are_one_request_with_a_seed_of_its_own(vllm: None) -> None:
    from orchestrator.evaluate import engines, models

    engine = engines.resolved(Engine(tensor_parallel_size=2), "full", None)
    sampling = Sampling(max_response_tokens=8)
    policy = models.opened(POLICY, engine, sampling)
    assert policy.model.named["tensor_parallel_size"] == 2
    assert policy.model.named["max_model_len"] == 64, "what the policy was made for"
    assert policy.has_template() is False
    kwargs = engines.generation(sampling, {"until": ["<|im_end|>"], "max_gen_toks": 32768}, engine)
    requests = [request(prompt, **kwargs) for prompt in ("12345", "54321") for _ in range(4)]
    policy.seeded(7)
    first = policy.generate_until(requests)
    assert len(policy.model.asked) == 2
    seeds = set()
    for _, params in policy.model.asked:
        assert params.n == 4
        seeds.add(params.seed)
        assert params.named == {
            "max_tokens": 8,
            "stop": ["<|im_end|>", "<eos>"],
            "temperature": 1.0,
            "top_p": 1.0,
            "top_k": -1,
            "repetition_penalty": 1.0,
            "skip_special_tokens": False,
            "spaces_between_special_tokens": False,
        }
    assert len(seeds) == 2
    assert len(set(first)) == 8  # every response reached its place, cut at the end of the turn
    assert all("rest" not in text for text in first)
    assert {text.split("/")[0] for text in first[:4]} != {text.split("/")[0] for text in first[4:]}
    assert policy.generate_until(requests) == first
    policy.seeded(8)
    assert not set(policy.generate_until(requests)) & set(first)


def test_a_prompt_is_refused_and_never_cut(vllm: None) -> None:
    """With 64 positions and 128 response tokens, lm-eval kept no token of a prompt."""
    from orchestrator.evaluate import engines, models

    engine, sampling = Engine(name="vllm"), Sampling(max_response_tokens=128)
    policy = models.opened(POLICY, engine, sampling)
    assert policy.max_length == 64
    kwargs = engines.generation(sampling, {"until": [], "max_gen_toks": 32768}, engine)
    told = (
        r"a prompt of 6 tokens and a response of up to 128 tokens do not fit into the 64 "
        r"positions of.*sampling\.max_response_tokens to at most 58"
        r".*evaluation\.engine\.max_model_len"
    )
    with pytest.raises(EnvironmentFault, match=told):
        policy.generate_until([request("12345", **kwargs)])
    assert policy.model.asked == []
    fitting = kwargs | {"max_gen_toks": 58}
    assert len(policy.generate_until([request("12345", **fitting)])) == 1
    ((prompt, params),) = policy.model.asked
    assert (len(prompt["prompt_token_ids"]), params.named["max_tokens"]) == (6, 58)


def test_an_engine_is_ended_with_its_job(vllm: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM's process of its own outlived the job else, and Python waited for it for ever."""
    from orchestrator.evaluate import harness, models

    def fail(*_: object) -> None:
        raise RuntimeError("a task")

    policy = models.opened(POLICY, Engine(name="vllm"), Sampling(max_response_tokens=8))
    monkeypatch.setattr(models, "opened", lambda *_: policy)
    monkeypatch.setattr(harness, "load_task", fail)
    ask = SimpleNamespace(
        asked=SimpleNamespace(sampling=Sampling(), kind="divergence"),
        task_file="none.yaml",
        harness_task="",
    )
    job: Any = SimpleNamespace(checkpoint=str(POLICY), engine=Engine(name="vllm"), asks=[ask])
    with pytest.raises(RuntimeError, match="a task"):
        harness.answer(job)
    assert policy.model.asked == ["ended"]
