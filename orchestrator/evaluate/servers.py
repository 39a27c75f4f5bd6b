"""The model that lm-eval asks behind a server. Slow to import: it needs aiohttp."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import aiohttp
import requests
from lm_eval.models.openai_completions import LocalCompletionsAPI
from transformers import AutoTokenizer

from orchestrator.errors import EnvironmentFault
from orchestrator.evaluate import engines
from orchestrator.records import Engine, Sampling


class Completions(engines.Seeded, LocalCompletionsAPI):  # type: ignore[misc]  # lm-eval has no types
    """`/v1/completions`. orch applies the chat template, with the checkpoint's tokenizer."""

    def __init__(self, checkpoint: Path, engine: Engine, sampling: Sampling):
        super().__init__(**engines.server_args(engine, str(checkpoint), sampling))
        self.engine, self.repeat = engine, 0
        self._tokens = AutoTokenizer.from_pretrained(checkpoint)
        self._templated: set[str] = set()

    def has_template(self) -> bool:
        """Return True if the checkpoint's tokenizer has a chat template."""
        return self._tokens.chat_template is not None

    def apply_chat_template(self, chat_history: Any, add_generation_prompt: bool = True) -> str:
        """Return the text of a chat, and record that the text contains its special tokens."""
        text: str = self._tokens.apply_chat_template(
            chat_history, tokenize=False, add_generation_prompt=add_generation_prompt
        )
        self._templated.add(text)
        return text

    def generate_until(self, requests: Sequence[Any], **_: Any) -> list[str]:
        """Return one response for each request.

        The k copies of a request are sent in k rounds with k seeds; lm-eval would use one seed.
        """
        responses: list[str] = [""] * len(requests)
        # The loop sets the attribute itself: `_create_payload` reads it when lm-eval calls it.
        for self.repeat, places in enumerate(engines.rounds([id(each) for each in requests])):
            try:
                answers = super().generate_until(
                    [requests[place] for place in places], disable_tqdm=True
                )
            except Exception as error:
                raise _unreachable(self.engine, error) from error
            for place, answer in zip(places, answers, strict=True):
                responses[place] = answer
        return responses

    def _create_payload(self, messages: Any, *arguments: Any, **named: Any) -> dict[str, Any]:
        named["seed"] = engines.request_seed(self.seed, messages, self.repeat)
        payload: dict[str, Any] = super()._create_payload(messages, *arguments, **named)
        if messages in self._templated:
            payload["add_special_tokens"] = False  # the template wrote them already
        return payload


def _unreachable(engine: Engine, error: Exception) -> Exception:
    """Raise an error with a sentence if the server does not respond. Re-raise any other error."""
    if not isinstance(
        error, (aiohttp.ClientError, requests.RequestException, TimeoutError, ConnectionError)
    ):
        return error
    sentence = " ".join(str(error).split()) or type(error).__name__
    return EnvironmentFault(
        f"the server at {engine.base_url} did not answer: {sentence[:300]}. What is scored stays "
        "scored; see that it serves "
        f"{'model ' + engine.model if engine.model else 'this checkpoint'} and run it again"
    )
