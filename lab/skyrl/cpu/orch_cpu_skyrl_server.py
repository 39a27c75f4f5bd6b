"""The HTTP interface of vLLM's server that SkyRL's client asks, answered on a CPU."""

import threading
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any


class SkyRLRoutes:
    """The routes that SkyRL's RemoteInferenceClient calls. Others answer `{}`."""

    def __init__(self, model: str, dtype: str, seed: int) -> None:
        self.sampler = import_module("orch_cpu_sampler").Sampler(model, dtype, seed)
        self.batches = import_module("orch_cpu_server").Batches(self.sampler)
        self.asleep = False

    def generate(self, body: Mapping[str, Any]) -> object:
        """One response to token ids, with its log-probabilities."""
        if self.asleep:
            raise RuntimeError("asked for a response while asleep")
        sampling = body["sampling_params"]
        response = self.batches.sample(
            body["token_ids"], sampling["max_tokens"], sampling.get("temperature", 1.0)
        )
        content = [
            {"token": f"token_id:{one}", "logprob": logprob}
            for one, logprob in zip(response.ids, response.logprobs, strict=True)
        ]
        choice = {
            "index": 0,
            "token_ids": response.ids,
            "finish_reason": response.finish_reason,
            "logprobs": {"content": content},
        }
        return {"choices": [choice]}

    def load(self, path: Any) -> object:
        weights = import_module("torch").load(Path(path))
        self.sampler.load_weights(weights.items())
        return {"num_updates": self.sampler.num_updates}

    def sleep(self, _: Mapping[str, Any]) -> object:
        self.asleep = True
        return {}

    def wake_up(self, _: Mapping[str, Any]) -> object:
        self.asleep = False
        return {}


def start(model: str, dtype: str, seed: int) -> str:
    """Serve a model from a thread; return the server's address."""
    engine = SkyRLRoutes(model, dtype, seed)
    routes = {
        "/inference/v1/generate": engine.generate,
        "/orch/load": engine.load,
        "/sleep": engine.sleep,
        "/wake_up": engine.wake_up,
        "/is_sleeping": lambda _: {"is_sleeping": engine.asleep},
        "/get_world_size": lambda _: {"world_size": 1},
    }
    server = import_module("orch_cpu_server").JsonServer(0, routes)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}"
