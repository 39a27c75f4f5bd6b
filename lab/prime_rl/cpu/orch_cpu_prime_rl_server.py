"""The HTTP interface of Prime-RL's inference server (vLLM's, and its own), answered on a CPU.

python -m orch_cpu_prime_rl_server @ inference.toml
"""

import sys
import tomllib
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any


class PrimeRlRoutes:
    """The routes that Prime-RL's orchestrator calls."""

    def __init__(self, name: str, seed: int) -> None:
        self._sampling: Any = import_module("orch_cpu_sampler")
        self.name = name
        self.sampler = self._sampling.Sampler(name, seed=seed)
        self.batches = import_module("orch_cpu_server").Batches(self.sampler)

    def models(self, _: Mapping[str, Any]) -> object:
        return {"object": "list", "data": [{"id": self.name, "object": "model"}]}

    def chat(self, body: Mapping[str, Any]) -> object:
        """Answer with a chat completion that has the token ids of its prompt and its response."""
        tokenizer = self.sampler.tokenizer
        text = tokenizer.apply_chat_template(
            body["messages"], tokenize=False, add_generation_prompt=True
        )
        # The chat template has written the special tokens already.
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        most = body.get("max_completion_tokens") or body["max_tokens"]
        response = self.batches.sample(ids, most, body.get("temperature", 1.0))
        spoken = tokenizer.decode(
            [one for one in response.ids if one not in self.sampler.ends],
            skip_special_tokens=body.get("skip_special_tokens", True),
        )
        content = [
            {"token": f"token_id:{one}", "logprob": logprob, "top_logprobs": []}
            for one, logprob in zip(response.ids, response.logprobs, strict=True)
        ]
        return self._completion(
            ids,
            {
                "index": 0,
                "message": {"role": "assistant", "content": spoken},
                "finish_reason": response.finish_reason,
                "logprobs": {"content": content},
                "token_ids": response.ids,
            },
            len(response.ids),
        )

    def tokens(self, body: Mapping[str, Any]) -> object:
        """Answer with the log-probability of each token of a sequence, as a prefill gives it."""
        ids = list(body["tokens"])
        [logprobs] = self.sampler.score([ids])
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": ""},
            "finish_reason": "length",
        }
        prompt: list[Any] = [
            {str(one): {"logprob": logprob}} for one, logprob in zip(ids, logprobs, strict=True)
        ]
        # As vLLM: nothing is before the first token, so it has no log-probability.
        return {**self._completion(ids, choice, 1), "prompt_logprobs": [None, *prompt[1:]]}

    def _completion(
        self, prompt: list[int], choice: Mapping[str, Any], length: int
    ) -> dict[str, object]:
        return {
            "id": "chatcmpl-orch",
            "object": "chat.completion",
            "created": 0,
            "model": self.name,
            "prompt_token_ids": prompt,
            "choices": [choice],
            "usage": {
                "prompt_tokens": len(prompt),
                "completion_tokens": length,
                "total_tokens": len(prompt) + length,
            },
        }

    def update(self, body: Mapping[str, Any]) -> object:
        """Take the weights that the trainer broadcast by the file system."""
        weights = self._sampling.read_weights(Path(body["weight_dir"]))
        self.sampler.load_weights(weights.items())
        return {"status": "ok"}


def main() -> None:
    config = tomllib.loads(Path(sys.argv[2]).read_text(encoding="utf-8"))
    engine = PrimeRlRoutes(config["model"]["name"], config.get("seed", 0))
    server = import_module("orch_cpu_server").JsonServer(
        config["server"]["port"],
        {
            "/v1/models": engine.models,
            "/v1/chat/completions": engine.chat,
            "/v1/chat/completions/tokens": engine.tokens,
            "/chat/completions/tokens": engine.tokens,
            "/update_weights": engine.update,
        },
    )
    server.serve_forever()


if __name__ == "__main__":
    main()
