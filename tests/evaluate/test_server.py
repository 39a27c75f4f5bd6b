"""An OpenAI-compatible server as the engine: what it is really sent, and what becomes of it."""

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from orchestrator.errors import CheckpointError
from orchestrator.evaluate import UnscoredError, evaluate
from orchestrator.records import Engine, EvaluationSpec, Record, Sampling
from orchestrator.rundir import RunFolder

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("in_process")]

Train = Callable[..., Record]
AskFor = Callable[..., EvaluationSpec]
TEMPLATE = "{% for m in messages %}<{{ m['content'] }}>{% endfor %}"


class Server(ThreadingHTTPServer):
    """Answers by the seed it is sent: right where it is even."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.paths: list[str] = []
        self.healthy = True
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}/v1"


class Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        payload = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append(payload)
        self.server.paths.append(self.path)
        text = answer_to(payload)
        body = {"choices": [{"index": 0, "text": text}]}
        raw = json.dumps(body if self.server.healthy else {"error": "no such model"}).encode()
        self.send_response(200 if self.server.healthy else 404)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, *_: object) -> None:
        pass


def answer_to(payload: dict[str, Any]) -> str:
    digits = "".join(sorted(letter for letter in payload["prompt"] if letter.isdigit()))
    return digits if payload["seed"] % 2 == 0 else "0"


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as serving:
        thread = threading.Thread(target=serving.serve_forever, daemon=True)
        thread.start()
        yield serving
        serving.shutdown()


def served(
    ask: AskFor, engine: Engine, folder: RunFolder, record: Record, **changes: Any
) -> dict[str, float]:
    asked = ask(tasks=ask().tasks[:1], engine=engine, **changes)
    scores = evaluate([record], asked, folder, workers=1)
    assert {score.harness for score in scores} == {f"lm-eval 0.4.13, {engine.name}"}
    return {score.metric: score.value for score in scores}


def test_completions_are_asked_as_declared(
    server: Server, folder: RunFolder, train: Train, ask: AskFor
) -> None:
    engine = Engine(name="completions", base_url=f"{server.url}/completions", num_concurrent=4)
    record = train()
    sampling = Sampling(temperature=0.8, top_p=0.95, min_p=0.05, max_response_tokens=6)
    told = served(ask, engine, folder, record, sampling=sampling)
    assert set(server.paths) == {"/v1/completions"}
    assert len(server.asked) == 16 * 4
    assert len({payload["seed"] for payload in server.asked}) == 16 * 4
    assert set(Counter(payload["prompt"] for payload in server.asked).values()) == {4}
    right = [payload["seed"] % 2 == 0 for payload in server.asked]
    assert told["mean@4"] == pytest.approx(sum(right) / len(right))
    for payload in server.asked:
        rest = {k: v for k, v in payload.items() if k not in ("prompt", "seed")}
        assert rest == {
            "model": str(record.checkpoints[0].path),
            "max_tokens": 6,
            "temperature": 0.8,
            "top_p": 0.95,
            "min_p": 0.05,
            "top_k": -1,
            "repetition_penalty": 1.0,
            "stop": [],
            "skip_special_tokens": False,
            "spaces_between_special_tokens": False,
        }


def test_a_template_is_applied_here_and_special_tokens_not_twice(
    server: Server, folder: RunFolder, train: Train, ask: AskFor
) -> None:
    record = train()
    path = record.checkpoints[0].path / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "chat_template": TEMPLATE}))
    engine = Engine(name="completions", base_url=f"{server.url}/completions")
    served(ask, engine, folder, record)
    assert all(p["prompt"].startswith("<") for p in server.asked)
    assert all(p["add_special_tokens"] is False for p in server.asked)


def test_a_server_that_does_not_answer_is_told(
    server: Server, folder: RunFolder, train: Train, ask: AskFor, monkeypatch: pytest.MonkeyPatch
) -> None:
    from orchestrator.evaluate import engines

    real = engines.server_args
    monkeypatch.setattr(engines, "server_args", lambda *a: {**real(*a), "max_retries": 1})
    engine = Engine(name="completions", base_url=f"{server.url}/completions")
    server.healthy = False
    with pytest.raises(UnscoredError, match=r"server at http://127.*did not answer.*404"):
        served(ask, engine, folder, train())
    gone = Engine(
        name="completions", base_url="http://127.0.0.1:9/v1/completions", num_concurrent=1
    )
    with pytest.raises((UnscoredError, CheckpointError), match=r"127\.0\.0\.1:9.* did not answer"):
        served(ask, gone, folder, train(1))
