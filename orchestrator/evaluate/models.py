"""The models that lm-eval generates with: a checkpoint in this process, in vLLM, or behind a
server.

Slow to import. The harness builds and scores requests. This module loads the policy, seeds
responses, and keeps out the defaults of checkpoints, libraries and servers.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch
from lm_eval.models import huggingface
from lm_eval.models.huggingface import HFLM
from lm_eval.models.utils import Collator, normalize_gen_kwargs
from safetensors import SafetensorError
from safetensors.torch import load_file
from transformers import GenerationConfig

from orchestrator.errors import CheckpointError, EnvironmentFault
from orchestrator.evaluate import engines, heads, small_llama, vllm_build
from orchestrator.evaluate.checkpoint import texts_hash
from orchestrator.evaluate.shared_rows import share_rows
from orchestrator.evaluate.small_llama import SmallLlama
from orchestrator.records import Engine, Sampling

SEQUENCES_AT_ONCE = {"cpu": 512, "cuda": 64}
PROMPTS_KEPT, BATCHES_KEPT, RESPONSES_KEPT = 4096, 64, 16_384
MOST_CODES = 2**62
"""Largest number of rows of token ids for which each row has a 64-bit number of its own."""
SHORT = 16
"""Longest response, in tokens, whose text is cached. A longer one rarely occurs again."""


class RequestOrder(Collator):  # type: ignore[misc]  # lm-eval has no types
    """lm-eval's order and batches of requests, faster where all have equal generation settings.

    lm-eval makes a key of the settings of every request, which took a tenth of an evaluation.
    """

    @staticmethod
    def group(
        arr: Sequence[Any], fn: Callable[[Any], Any], group_by: str = "gen_kwargs"
    ) -> dict[Any, list[Any]]:
        """Return the requests by their settings, as lm-eval groups them."""
        requests = list(arr)
        if group_by == "gen_kwargs" and requests:
            first = fn(requests[0])
            if all(fn(request) == first for request in requests):
                # All requests have equal settings, so the group of the first one has them all.
                groups: dict[Any, list[Any]] = Collator.group(requests[:1], fn, group_by)
                return dict.fromkeys(groups, requests)
        grouped: dict[Any, list[Any]] = Collator.group(requests, fn, group_by)
        return grouped


huggingface.Collator = RequestOrder


class _PreparedBatches(NamedTuple):
    """Requests that are sorted, batched and tokenized."""

    batches: list[tuple[torch.Tensor, torch.Tensor]]
    """Token ids and attention mask of each batch, both [B, n]."""
    places: list[int]
    """For each request, its row in the batches, one after the other."""
    longest: int
    """Tokens of the longest response."""
    settings: dict[str, Any]


class _KnownRequests(NamedTuple):
    """Requests of an earlier call, kept so that no others have their ids, and their batches."""

    requests: list[Any]
    batches: _PreparedBatches | None


class HarnessPolicy(HFLM):  # type: ignore[misc]  # lm-eval has no types
    """A checkpoint as lm-eval's `hf` model.

    It caches the tokenizer's results, because the k responses to an item, and the checkpoints of a
    study, need the same ones. Another checkpoint's weights may replace its own (`take`).

    sampling: how all responses are drawn; None: it may change from call to call. A small policy
    that is only sampled plainly is computed without Transformers' modules (small_llama.py).
    """

    def __init__(self, path: Path, engine: Engine | None = None, sampling: Sampling | None = None):
        device, dtype = (engine.device, engine.dtype) if engine else ("cpu", "auto")
        model, tokenizer = load(path, device, dtype, sampling)
        _refuse_infinite(model, path)
        ends = model.generation_config
        # A checkpoint may bring sampling settings of its own (top_k, repetition_penalty); the
        # spec's are the only ones that count.
        model.generation_config = GenerationConfig(
            bos_token_id=ends.bos_token_id,
            eos_token_id=ends.eos_token_id,
            pad_token_id=ends.pad_token_id,
        )
        super().__init__(
            pretrained=model,
            tokenizer=tokenizer,
            batch_size=SEQUENCES_AT_ONCE[device],
            add_bos_token=tokenizer.bos_token is not None,
        )
        self._kind = texts_hash(path), engine
        self._ends_alone = isinstance(model, SmallLlama) and _is_alone(tokenizer)
        self._decodes_plainly = isinstance(model, SmallLlama) and (
            not tokenizer.clean_up_tokenization_spaces
        )
        self._decode_rows = tokenizer.batch_decode
        tokenizer.batch_decode = self._decoded_rows  # lm-eval's stopping rule calls it
        self._ids: dict[Any, list[int]] = {}
        self._batches: dict[Any, tuple[torch.Tensor, torch.Tensor]] = {}
        self._prepared: dict[Any, _KnownRequests] = {}
        self._texts: dict[Any, Any] = {}
        self._num_tokens = max(len(tokenizer), model.config.get_text_config().vocab_size)
        self._texts_of_codes: dict[int, dict[int, str]] = {}
        """Number of tokens -> code of a row of that length -> its text."""

    def take(self, path: Path, engine: Engine, sampling: Sampling) -> bool:
        """Put the weights of another checkpoint in place of these: the same bits as a fresh load.

        Return False, with nothing changed, if it is another kind of policy: another config or
        tokenizer, another engine, other tensors, or a sampling that this policy does not do.
        """
        if (texts_hash(path), engine) != self._kind:
            return False
        if isinstance(self.model, SmallLlama) and not small_llama.samples_plainly(sampling):
            return False
        try:
            fresh = load_file(path / "model.safetensors")
        except (OSError, SafetensorError):  # sharded, pickled or cut: the loader reports which
            return False
        own = self.model.state_dict()
        if {name: (x.shape, x.dtype) for name, x in fresh.items()} != {
            name: (x.shape, x.dtype) for name, x in own.items()
        }:
            return False
        self.model.load_state_dict(fresh)
        _refuse_infinite(self.model, path)
        return True

    def tok_encode(self, string: str, *arguments: Any, **named: Any) -> list[int]:
        """Return the token ids of a text. Texts seen before are read from a cache."""
        key = (string, arguments, tuple(named.items())) if arguments or named else string
        if key not in self._ids:
            _make_room(self._ids, PROMPTS_KEPT)
            self._ids[key] = super().tok_encode(string, *arguments, **named)
        return list(self._ids[key])

    def tok_batch_encode(self, strings: list[str], *arguments: Any, **named: Any) -> Any:
        """Return token ids and attention mask of texts, both [B, n]. They are copies, because the
        harness edits them."""
        key = tuple(strings), arguments, tuple(named.items())
        if key not in self._batches:
            _make_room(self._batches, BATCHES_KEPT)
            self._batches[key] = super().tok_batch_encode(strings, *arguments, **named)
        ids, mask = self._batches[key]
        return ids.clone(), mask.clone()

    def tok_decode(self, tokens: Any, skip_special_tokens: bool = False) -> Any:
        """Decode with special tokens: a <pad> that the policy sampled is a wrong answer, not
        silence.
        """
        if not isinstance(tokens, list) or len(tokens) > SHORT:
            return super().tok_decode(tokens, skip_special_tokens=skip_special_tokens)
        key = *tokens, skip_special_tokens
        if key not in self._texts:
            _make_room(self._texts, RESPONSES_KEPT)
            # The tokenizer's own function, which Transformers' calls after a look at each token.
            plain = self.tokenizer.backend_tokenizer if self._decodes_plainly else None
            decode = super().tok_decode if plain is None else plain.decode
            self._texts[key] = decode(tokens, skip_special_tokens=skip_special_tokens)
        return self._texts[key]

    def _decoded_rows(self, rows: Any, **named: Any) -> Any:
        """Return the texts of rows of token ids [B, n], as the tokenizer's `batch_decode` does."""
        if named or not isinstance(rows, torch.Tensor):
            return self._decode_rows(rows, **named)
        length, base = rows.shape[1], self._num_tokens
        if base**length > MOST_CODES:
            return [self.tok_decode(row) for row in rows.tolist()]
        # One number for each row, because a look-up by a number is faster than one by a list.
        codes = (rows.cpu() * torch.tensor([base**i for i in range(length)])).sum(1).tolist()
        texts = self._texts_of_codes.setdefault(length, {})
        missing = {code: place for place, code in enumerate(codes) if code not in texts}
        if len(texts) + len(missing) > RESPONSES_KEPT:
            texts.clear()
            missing = {code: place for place, code in enumerate(codes)}
        for code, place in missing.items():
            texts[code] = self.tok_decode(rows[place].tolist())
        return [texts[code] for code in codes]

    def generate_until(self, requests: list[Any], **_: Any) -> list[str]:
        """Return a response to each request. No progress is shown: nobody sees this process."""
        prepared = self._prepared_batches(requests) if self._ends_alone else None
        if prepared is None:
            responses: list[str] = super().generate_until(requests, disable_tqdm=True)
            return responses
        texts: list[str] = []
        for ids, mask in prepared.batches:
            # Without lm-eval's criterion, which decodes every row after each token: it ends a batch
            # when each row has the end's text, and the policy when each row has its token.
            rows = self.model.generate(
                ids,
                mask,
                pad_token_id=self.tokenizer.pad_token_id,
                max_length=ids.shape[1] + prepared.longest,
                **prepared.settings,
            )
            texts += self._decoded_rows(rows[:, ids.shape[1] :])
        end = self.tokenizer.eos_token
        return [texts[place].split(end, 1)[0] for place in prepared.places]

    def _prepared_batches(self, requests: list[Any]) -> "_PreparedBatches | None":
        """Return the batches that lm-eval makes of these requests, kept for the next checkpoint.

        None: other texts than the end's end a response, or settings differ, and lm-eval's own
        function generates.
        """
        key = tuple(map(id, requests))
        if key not in self._prepared:
            _make_room(self._prepared, BATCHES_KEPT)
            batches = self._prepare([request.args for request in requests])
            self._prepared[key] = _KnownRequests(requests, batches)
        return self._prepared[key].batches

    def _prepare(self, arguments: list[Any]) -> "_PreparedBatches | None":
        settings = arguments[0][1]
        if settings.get("until") or any(each[1] != settings for each in arguments):
            return None
        settings = dict(normalize_gen_kwargs(settings, self.max_gen_toks))
        longest: int = settings.pop("max_gen_toks")
        del settings["until"]
        if longest >= self.max_length:  # lm-eval's sentence says so
            return None
        order = RequestOrder(
            arguments,
            sort_fn=lambda each: (-len(self.tok_encode(each[0])), each[0]),
            group_by="gen_kwargs",
            group_fn=lambda each: each[1],
        )
        batches = [
            self.tok_batch_encode(
                [text for text, _ in chunk],
                left_truncate_len=self.max_length - longest,
                truncation=self.truncation,
            )
            for chunk in order.get_batched(n=self.batch_size)
        ]
        places = order.get_original(list(range(len(arguments))))
        return _PreparedBatches(batches, places, longest, settings)

    def has_template(self) -> bool:
        """Return True if the tokenizer has a chat template."""
        return self.tokenizer.chat_template is not None

    def seeded(self, seed: int) -> None:
        """Seed torch's generator, from which the model samples."""
        seed_torch(seed, self.device.type)


def opened(checkpoint: Path, engine: Engine, sampling: Sampling) -> Any:
    """Return the checkpoint as a model of lm-eval. Raise CheckpointError if it does not load.

    A policy in this process may be the object of the former call, with other weights.
    """
    if engine.name == "vllm":
        return _vllm(checkpoint, engine, sampling)
    if engine.name in ("completions", "chat"):
        from orchestrator.evaluate import servers

        server = servers.Completions if engine.name == "completions" else servers.Chat
        return server(checkpoint, engine, sampling)
    if not (_LAST and _LAST[0].take(checkpoint, engine, sampling)):
        _LAST[:] = []  # its memory first
        _LAST[:] = [HarnessPolicy(checkpoint, engine, sampling)]
    return _LAST[0]


def seed_torch(seed: int, device: str) -> None:
    """Seed the generator of a device."""
    if device == "cpu":
        # torch.manual_seed would note for each other device which line has called it.
        torch.default_generator.manual_seed(seed)
    else:
        torch.manual_seed(seed)


def end(policy: Any) -> None:
    """End the process in which vLLM computes. Do nothing for another model.

    Python waits for its child processes before it ends, and vLLM's process waits for requests. So
    without this call, Python would never end.
    """
    engine = getattr(getattr(policy, "model", None), "llm_engine", None)
    if engine is not None:
        engine.engine_core.shutdown()


_LAST: list[HarnessPolicy] = []
"""The policy that `opened` returned last. The weights of the next one replace its weights."""


def _make_room(kept: dict[Any, Any], most: int) -> None:
    if len(kept) >= most:
        kept.clear()


def _refuse_infinite(model: Any, path: Path) -> None:
    if not all(part.isfinite().all() for part in model.parameters()):
        raise CheckpointError(
            f"checkpoint {path} has weights that are not finite: its run diverged, and there "
            "is no policy to evaluate; an earlier checkpoint may be whole"
        )


@contextmanager
def _fitting(checkpoint: Path, cpu: bool) -> Iterator[Path]:
    """Yield a checkpoint with heads for which vLLM has attention: this one, or a temporary copy."""
    width = heads.missing_width(checkpoint, cpu=cpu)
    if width is None:
        yield checkpoint
        return
    with TemporaryDirectory(prefix="orch-heads-") as folder:
        copy = Path(folder) / checkpoint.name
        heads.pad(checkpoint, copy, width)
        yield copy


def _vllm(checkpoint: Path, engine: Engine, sampling: Sampling) -> Any:
    cpu = vllm_build.is_for_cpu()
    try:
        from lm_eval.models.vllm_causallms import VLLM
    except ImportError as error:
        raise EnvironmentFault(
            f"evaluation.engine is vllm, which cannot be imported here ({error}); name an "
            "interpreter that has vLLM and lm-eval in evaluation.engine.python, or serve the "
            "checkpoint and use evaluation.engine.name=completions"
        ) from error

    class Vllm(engines.Seeded, VLLM):  # type: ignore[misc]  # lm-eval has no types
        """lm-eval's vLLM model, with one request for all k responses to a prompt."""

        def has_template(self) -> bool:
            return self.hf_chat_template is not None or self.tokenizer.chat_template is not None

        def _model_generate(
            self, requests: Any, generate: bool = False, sampling_params: Any = None
        ) -> list[Any]:
            """Return one output for each copy of a prompt, from a single request with n
            responses."""
            if not generate or not isinstance(sampling_params, list):
                return super()._model_generate(requests, generate, sampling_params)  # type: ignore[no-any-return]  # no types
            groups = engines.grouped(requests)
            params, place = [], 0
            for prompt, count in groups:
                one = sampling_params[place].clone()
                one.n, one.seed = count, engines.request_seed(self.seed, prompt)
                params.append(one)
                place += count
            outputs = super()._model_generate([prompt for prompt, _ in groups], True, params)
            return [_Single([completion]) for output in outputs for completion in output.outputs]

    with _fitting(checkpoint, cpu) as fitting:
        return Vllm(
            **engines.vllm_args(
                engine,
                str(fitting),
                sampling,
                seed=0,
                cpu=cpu,
                positions=heads.positions(checkpoint),
            )
        )


class _Single:
    """One completion, in the form that lm-eval expects."""

    def __init__(self, outputs: list[Any]):
        self.outputs = outputs


def load(
    path: Path, device: str = "cpu", dtype: str = "auto", sampling: Sampling | None = None
) -> tuple[Any, Any]:
    """Return model and tokenizer. Raise CheckpointError if they cannot be loaded.

    sampling: how all responses are drawn; None: not known.
    """
    if device == "cpu" and dtype in ("auto", "float32") and sampling is not None:
        small = small_llama.load(path) if small_llama.samples_plainly(sampling) else None
        if small is not None:
            return small
    from transformers import AutoModelForCausalLM, AutoTokenizer

    try:
        model = AutoModelForCausalLM.from_pretrained(path, dtype=dtype)
        tokenizer = AutoTokenizer.from_pretrained(path)
    except Exception as error:  # what the libraries raise for a bad file is not of one kind
        raise CheckpointError(
            f"checkpoint {path} cannot be loaded (cut in half?): "
            f"{' '.join(str(error).split())[:200]}. `orch retry` trains the cell again"
        ) from error
    model = model.to(device)
    if device == "cpu":
        share_rows(model)
    return model, tokenizer


def _is_alone(tokenizer: Any) -> bool:
    """Return True if a text contains the end's text only where it has the end token."""
    end, text = tokenizer.eos_token_id, tokenizer.eos_token
    if text is None or tokenizer.decode([end]) != text:
        return False
    beginnings = tuple(text[:length] for length in range(1, len(text)))
    others = (tokenizer.decode([token]) for token in range(len(tokenizer)) if token != end)
    return not any(text in other or other.endswith(beginnings) for other in others)
