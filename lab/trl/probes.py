"""TRL's own rewards, advantages and loss of both trainers, for lab/probes/runner.py.

It runs on TRL's source, without an import of TRL. The configuration,
`_generate_and_score_completions`, `_calculate_rewards` and `_compute_loss` are the library's.
Stand-ins are generation, which returns the batch's rollouts, and the forward pass, which returns
their log-probabilities. The KL that orch ships runs from a launch's files.
"""

import contextlib
import inspect
import math
import sys
import types
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, ClassVar, NamedTuple

from lab.probes.protocol import LEAST, MOST, Bounds, NativeTerm, OwnLaunch
from lab.probes.shared import at_last_token, check_groups

PACKAGE = "trl"
UTILS = "trainer/utils.py"
TRAINERS = {"grpo": "GRPOTrainer", "rloo": "RLOOTrainer"}
CONFIGURATIONS = {"grpo": "GRPOConfig", "rloo": "RLOOConfig"}
STOOD_IN = (
    "generation, which returns the rollouts asked about; the models: a forward pass returns the "
    "log-probabilities asked about; accelerate: one process; transformers.TrainingArguments: its "
    "defaults; the library's .float() leaves double precision as it is"
)
TYPICAL = {"reward": "k1", "loss": "k3"}
"""Place -> an estimator that orch can send to TRL there."""

STALE = ("--num_iterations", "2")
"""Arguments that use rollouts twice. Only then does the loss have an importance ratio."""
CORRECTED = "--use_bias_correction_kl"


def names(_version: str) -> list[tuple[str, str, tuple[str, ...]]]:
    """Return place, name and further arguments of every estimator. In TRL none has a name."""
    return [
        ("loss", "k3", (CORRECTED, "false", *STALE)),
        ("loss", f"k3 {CORRECTED}", (CORRECTED, "true", *STALE)),
        ("reward", "k1", ()),
    ]


def natives(_version: str) -> dict[str, NativeTerm]:
    """Return launches with the options that shape the objective, in TRL's own words."""
    corrected = (CORRECTED, "true")
    terms = {"grpo --beta": _native("grpo")}
    for label, switch in (("", "false"), (f" {CORRECTED}", "true")):
        level = ("--importance_sampling_level", "sequence")
        terms[f"grpo {' '.join(level)}{label}"] = _native("grpo", *level, CORRECTED, switch)
    for loss_type in ("grpo", "bnpo", "dr_grpo", "cispo", "sapo", "vespo", "luspo"):
        terms[f"grpo --loss_type {loss_type} {CORRECTED}"] = _native(
            "grpo", "--loss_type", loss_type, *corrected, of_responses=loss_type == "luspo"
        )
    for more in (("--scale_rewards", "batch"), ("--scale_rewards", "none"), STALE):
        terms[f"grpo {' '.join(more)} {CORRECTED}"] = _native("grpo", *more, *corrected)
    terms["rloo"] = _native("rloo", beta=None, of_responses=True)
    normalized = ("--normalize_advantages", "true")
    terms[f"rloo {' '.join(normalized)}"] = _native("rloo", *normalized, of_responses=True)
    return terms


def corrections(_version: str) -> dict[str, OwnLaunch]:
    """Return launches with vLLM and each correction of its mismatch, in TRL's own words."""
    prefix = "--vllm_importance_sampling_"
    by_options = {
        "grpo --use_vllm true": _corrected((None, 3.0))._replace(is_silent=True),
        f"grpo {prefix}correction false": _corrected((None, None), f"{prefix}correction", "false"),
    }
    for mode in ("token_truncate", "token_mask", "sequence_truncate", "sequence_mask"):
        for least in (None, LEAST):
            words = [f"{prefix}mode", mode, f"{prefix}clip_max", str(MOST)]
            words += [] if least is None else [f"{prefix}clip_min", str(least)]
            by_options[f"grpo {' '.join(words)}"] = _corrected((least, MOST), *words)
    return by_options


def _corrected(bounds: Bounds, *more: str) -> OwnLaunch:
    """Return a launch with vLLM and k3 in the loss, and the bounds of its correction."""
    launch = _native("grpo", "--use_vllm", "true", CORRECTED, "false", *more).launch
    return launch._replace(bounds=bounds, estimator="k3")


def ratio_levels(_version: str) -> dict[str, OwnLaunch]:
    """Return launches with each level of the importance ratio, in TRL's own words."""
    launches = {}
    for level in ("token", "sequence"):
        for switch in ("false", "true"):
            words = ("--importance_sampling_level", level, CORRECTED, switch)
            launch = _native("grpo", *words, *STALE).launch
            launches[f"grpo {' '.join(words)}"] = launch._replace(estimator="k3")
    return launches


RLOO_BETA = 0.05
"""RLOOConfig's own beta, which a launch need not give."""


def _native(
    script: str, *more: str, beta: float | None = 0.5, of_responses: bool = False
) -> NativeTerm:
    """Return a launch without a clip, whose rollouts make two minibatches."""
    own = [] if beta is None else ["--beta", str(beta)]
    clip = ["--epsilon", ".inf"] if script == "rloo" else []
    batch = ["--per_device_train_batch_size", "4", "--steps_per_generation", "2"]
    longest = ["--max_completion_length", "3"]
    argv = [script, *own, *more, *clip, *batch, *longest, "--num_generations"]
    pair, four = (OwnLaunch([*argv, size]) for size in ("2", "4"))
    return NativeTerm(pair, four, RLOO_BETA if beta is None else beta, of_responses)


def silent(_version: str) -> OwnLaunch:
    """Return a launch of `grpo` that sets nothing about KL."""
    return OwnLaunch(["grpo", "--per_device_train_batch_size", "4", "--num_generations", "4"])


class Factor(float):
    """A coefficient that records its factor: the KL before beta."""

    multiplied: Any = None

    def __mul__(self, other: Any) -> Any:
        if not isinstance(other, int | float):
            self.multiplied = other
        return float(self) * other


class AskedLaunch(NamedTuple):
    """A launch as its script reads it."""

    script: str
    options: Any
    shipped: tuple[Any, str, str] | None
    """The module of the KL that orch ships, its estimator and its place; None: it ships none."""


NOT_SCORED: tuple[None, dict[str, Any], None, dict[str, Any]] = (None, {}, None, {})


class TrlProbes:
    """Both trainers, and the configurations that their scripts parse."""

    def __init__(self, sources: Any, _version: str):
        import numpy as np
        import torch

        self.torch, self.sources = torch, sources
        self._scored: tuple[Any, Mapping[str, Any], Any, dict[str, Any]] = NOT_SCORED
        """The launch, the rollouts, the trainer and the scores of the last `advantages`."""
        utils = sources.load(UTILS, ["pad", "nanstd", "nanmin", "nanmax"], torch=torch, np=np)
        own = {
            **{name: getattr(utils, name) for name in ("pad", "nanstd", "nanmin", "nanmax")},
            "torch": torch,
            "nn": torch.nn,
            "math": math,
            "inspect": inspect,
            "gather": _same,
            "gather_object": _same,
            "profiling_decorator": _same,
            "disable_gradient_checkpointing": lambda *_: contextlib.nullcontext(),
            "profiling_context": lambda *_: contextlib.nullcontext(),
            "is_async_callable": lambda _: False,
        }
        methods = ("_generate_and_score_completions", "_calculate_rewards", "_compute_loss")
        more = {"grpo": ("get_off_policy_mask", "get_gamma_weights"), "rloo": ()}
        self.methods: dict[str, dict[str, Any]] = {}
        for script, name in TRAINERS.items():
            file = f"trainer/{script}_trainer.py"
            wanted = (*methods, *more[script])
            module = sources.load(file, [f"{name}.{each}" for each in wanted], **own)
            self.methods[script] = {each: getattr(module, each) for each in wanted}
        self.configurations = {
            script: getattr(
                sources.load(
                    f"trainer/{script}_config.py",
                    [name],
                    _BaseConfig=TrainingDefaults,
                    dataclass=dataclass,
                    field=field,
                ),
                name,
            )
            for script, name in CONFIGURATIONS.items()
        }

    def read(self, argv: Sequence[str], files: Mapping[str, str]) -> AskedLaunch:
        """Return the options of a launch: of its file, then of its arguments, as TrlParser does."""
        import yaml

        script = next(word for word in argv if word in TRAINERS)
        words = [each for each in argv[list(argv).index(script) + 1 :] if each != "--chat"]
        given = dict(zip(words[::2], words[1::2], strict=True))
        given.pop("--metrics", None)
        config = given.pop("--config", None)
        options = yaml.safe_load(files[f"{script}.yaml"]) if config else {}
        kl = [given.pop(f"--kl-{what}", None) for what in ("estimator", "placement")]
        options.update({key.removeprefix("--"): yaml.safe_load(v) for key, v in given.items()})
        shipped = (_module(files), *kl) if kl[0] else None
        return AskedLaunch(script, self._configured(script, options), shipped)

    def _configured(self, script: str, given: Mapping[str, Any]) -> Any:
        """Return the library's configuration, with its own defaults and its own checks."""
        known = self.configurations[script].__dataclass_fields__
        own = {key: value for key, value in given.items() if key in known}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            configuration: Any = self.configurations[script](**own)
        for key, value in given.items():
            if key not in known:  # of a script, of its model or of its data
                setattr(configuration, key, value)
        return configuration

    def kl(self, launch: AskedLaunch, place: str, batch: Mapping[str, Any]) -> Any:
        """Return the KL [N, T] that a trainer multiplies by its beta."""
        shape = batch["logp"].shape
        if place == "loss":
            trainer = self._trainer(launch, batch)
            self._loss(trainer, {**batch, "advantages": self.torch.zeros(shape)})
            return trainer.beta.multiplied
        one = {key: _column(value, shape) for key, value in batch.items() if key != "rewards"}
        rows = len(one["logp"])
        trainer = self._trainer(launch, {**one, "rewards": self.torch.zeros(rows)}, groups_of=1)
        trainer.now = one["logp"]
        trainer.scored(rows)
        return trainer.beta.multiplied.view(shape)

    def advantages(self, launch: AskedLaunch, batch: Mapping[str, Any]) -> tuple[Any, Any]:
        """Return rewards at the last token of a response, and token advantages, from `old`."""
        check_groups(batch["groups"], launch.options.num_generations)
        trainer = self._trainer(launch, batch)
        scored = trainer.scored(len(batch["rewards"]))
        rollouts = {key: value for key, value in batch.items() if key != "logp"}
        self._scored = (launch, rollouts, trainer, scored)
        rewards = batch["rewards"].clone()
        if launch.script == "rloo" and trainer.beta.multiplied is not None:
            rewards -= float(trainer.beta) * trainer.beta.multiplied[: len(rewards)]
        gains = scored["advantages"]
        gains = gains[:, None] if gains.dim() == 1 else gains
        return at_last_token(rewards, batch["mask"]), gains.expand_as(batch["mask"]).clone()

    def loss(self, launch: AskedLaunch, batch: Mapping[str, Any]) -> Any:
        """Return _compute_loss of one micro-batch that is the whole minibatch.

        After `advantages` of the same launch and rollouts, the rollouts are scored already.
        """
        (of_launch, rollouts, trainer, scored), self._scored = self._scored, NOT_SCORED
        if of_launch is launch and all(batch.get(key) is value for key, value in rollouts.items()):
            return self._loss_of(trainer, scored, batch)
        return self._loss(self._trainer(launch, batch), batch)

    def moved_reference(self, launch: AskedLaunch) -> list[float]:
        """Return a weight of the reference model after each of four steps, by TRL's callback."""
        torch = self.torch
        state = SimpleNamespace(deepspeed_plugin=None)
        module = self.sources.load(
            "trainer/callbacks.py",
            ["SyncRefModelCallback"],
            TrainerCallback=object,
            AcceleratorState=lambda: state,
        )
        model, reference = (torch.nn.Linear(1, 1, bias=False) for _ in range(2))
        torch.nn.init.ones_(model.weight)
        torch.nn.init.zeros_(reference.weight)
        callback = module.SyncRefModelCallback(reference, None)
        weights = []
        for step in range(1, 5):
            at = SimpleNamespace(global_step=step)
            if launch.options.sync_ref_model:
                callback.on_step_end(launch.options, at, None, model=model)
            weights.append(float(reference.weight))
        return weights

    def _loss(self, trainer: Any, batch: Mapping[str, Any]) -> Any:
        return self._loss_of(trainer, trainer.scored(len(batch["logp"])), batch)

    def _loss_of(self, trainer: Any, inputs: dict[str, Any], batch: Mapping[str, Any]) -> Any:
        of_tokens = inputs["advantages"].dim() == 2
        inputs["advantages"] = batch["advantages"] if of_tokens else batch["advantages"][:, 0]
        trainer.now = batch["logp"]
        if trainer.beta:
            trainer.beta = Factor(trainer.beta)
        return trainer._compute_loss(trainer.model, inputs)  # noqa: SLF001  (the library's own function is what is asked)

    def _trainer(
        self, launch: AskedLaunch, batch: Mapping[str, Any], groups_of: int | None = None
    ) -> Any:
        """Return a trainer whose models return the batch's log-probabilities."""
        library = type("Library", (StoodIn,), dict(self.methods[launch.script]))
        if launch.shipped:
            module, estimator, placement = launch.shipped
            own = module.taught(library, estimator, placement)
            own.pop("__init__")  # it looks at a real model
            library = type("Library", (library,), own)
        return library(launch, batch, min(groups_of or 10**9, len(batch["logp"])))


class StoodIn:
    """The parts of a trainer without arithmetic: models, rollouts, processes and log."""

    _tokenizer = SimpleNamespace(pad_token_id=0)
    processing_class = SimpleNamespace(batch_decode=lambda ids, **_: ["" for _ in ids])
    environment_factories = environments = tools = pad_to_multiple_of = state = None
    _multi_environment = aux_loss_enabled = _entropy_bonus_enabled = False
    current_gradient_accumulation_steps = 1
    orch_asked = orch_states = None
    reward_func_names, reward_processing_classes = ("task",), (None,)
    _log_completion_extra = _log_metric = None

    def __init__(self, launch: AskedLaunch, batch: Mapping[str, Any], most: int) -> None:
        import torch

        args = launch.options
        vars(self).update(vars(args))
        # a batch is a minibatch: several of them were sampled at once
        self.turns = args.steps_per_generation // args.gradient_accumulation_steps
        own = {**vars(args), "gradient_accumulation_steps": 1, "steps_per_generation": self.turns}
        self.args = SimpleNamespace(**{**own, "per_device_train_batch_size": 10**9})
        self.num_generations = min(args.num_generations, most)
        self.epsilon_low = args.epsilon
        self.epsilon_high = args.epsilon if args.epsilon_high is None else args.epsilon_high
        self.beta: Any = Factor(args.beta)
        weights = [1.0] if args.reward_weights is None else args.reward_weights
        self.reward_weights = torch.tensor(weights)
        self.batch, self.now = batch, batch["old"]
        self.reward_funcs = (lambda **_: batch["rewards"].repeat(self.turns).tolist(),)
        self.model, self.ref_model = Policy(self, "policy"), Policy(self, "reference")
        self._metrics = self._logs = Unkept()
        self._pending_extra_logs: dict[str, Any] = {}
        self._pending_metrics: dict[str, Any] = {}
        self.accelerator = SimpleNamespace(
            device=torch.device("cpu"),
            process_index=0,
            num_processes=1,
            sync_gradients=True,
            autocast=contextlib.nullcontext,
            **dict.fromkeys(
                ("gather", "gather_for_metrics", "reduce", "pad_across_processes"), _same
            ),
        )

    def scored(self, rows: int) -> dict[str, Any]:
        """Return the library's scored rollouts of a batch, for its first minibatch."""
        prompts = [{"prompt": "p"} for _ in range(rows * self.turns)]
        output = self._generate_and_score_completions(prompts)  # type: ignore[attr-defined]  # the library's
        return {
            key: value[:rows] if getattr(value, "dim", int)() else value
            for key, value in output.items()
        }

    def _generate(self, prompts: Sequence[str]) -> tuple[Any, ...]:
        lengths = self.batch["mask"].sum(1).long().tolist() * self.turns
        rollouts = [[1]] * len(prompts), [[0] * length for length in lengths]
        if "get_gamma_weights" not in dir(self):  # of RLOOTrainer
            return (*rollouts, [""] * len(prompts))
        sampled = None
        if "engine" in self.batch:
            lists = self.batch["engine"].tolist() * self.turns
            sampled = [row[: len(ids)] for row, ids in zip(lists, rollouts[1], strict=True)]
        return (*rollouts, None, [""] * len(prompts), sampled, {}, None, None)

    def logps(self, model: "Policy", rows: int, keep: int) -> Any:
        """Return the log-probabilities [rows, keep] that the batch has of a policy."""
        import torch

        values = self.batch["ref"] if model.name == "reference" else self.now
        with torch.enable_grad():
            return values[:, :keep].repeat(rows // len(values), 1)

    def _get_per_token_logps_and_entropies(
        self, model: "Policy", ids: Any, _attention: Any, keep: int, *_: Any, **__: Any
    ) -> tuple[Any, Any, None]:
        logps = self.logps(model, len(ids), keep)
        return logps, logps.detach() * 0, None


class Unkept:
    """The library's metrics and logs, in tables of lists: it adds to them, and nothing is kept."""

    def __getitem__(self, _: object) -> "Unkept":
        """Return the table or list of a name."""
        return self

    def __setitem__(self, _: object, __: object) -> None: ...

    def append(self, _: object) -> None:
        """Keep nothing."""

    def extend(self, _: object) -> None:
        """Keep nothing."""


class Policy:
    """A policy over two tokens, of which the first is the one that was sampled.

    Its log-probability is the batch's; so the next-token distribution is known wherever one is
    asked for. The hidden states are the logits, and the head changes nothing.
    """

    training = True

    def __init__(self, trainer: StoodIn, name: str) -> None:
        self.trainer, self.name = trainer, name

    def __call__(self, *, orch_pass: Callable[["Policy"], Any]) -> Any:
        """Return a pass of the shipped KL over this policy."""
        return orch_pass(self)

    def get_output_embeddings(self) -> Any:
        """Return the head: the identity."""
        import torch

        return SimpleNamespace(weight=torch.eye(2), bias=None)

    def base_model(self, *, input_ids: Any, **_: Any) -> Any:
        """Return hidden states [rows, tokens, 2] of a prompt of one token and its response."""
        import torch

        logps = self.trainer.logps(self, len(input_ids), input_ids.shape[1] - 1)
        states = torch.stack([logps, torch.log1p(-logps.exp())], dim=-1)
        return SimpleNamespace(last_hidden_state=torch.cat([states, states[:, :1]], dim=1))


@dataclass
class TrainingDefaults:
    """transformers.TrainingArguments: the options and defaults that the configurations look at."""

    _VALID_DICT_FIELDS: ClassVar[list[str]] = []
    device: ClassVar[Any] = SimpleNamespace(type="cpu")
    world_size: ClassVar[int] = 1
    per_device_train_batch_size: int = 8
    per_device_eval_batch_size: int = 8
    gradient_accumulation_steps: int = 1
    do_eval: bool = False
    auto_find_batch_size: bool = False
    parallelism_config: Any = None
    eval_strategy: str = "no"
    gradient_checkpointing_kwargs: Any = None
    use_liger_kernel: bool = False

    def __post_init__(self) -> None: ...


def _module(files: Mapping[str, str]) -> Any:
    """Return orch_trl_kl.py of a launch, with what it imports of the launch's folder."""
    for name in ("orch_quiet_kl", "orch_trl_kl"):
        module = sys.modules[name] = types.ModuleType(name)
        exec(compile(files[f"{name}.py"], f"{name}.py", "exec"), vars(module))  # noqa: S102  (the launch's own file)
    return sys.modules["orch_trl_kl"]


def _same(value: Any, **_: Any) -> Any:
    """Stand in for a decorator, and for what one process gathers."""
    return value


def _column(value: Any, shape: Any) -> Any:
    """Return a table with a row for each of its entries; anything else as it is."""
    return value.reshape(-1, 1) if getattr(value, "shape", None) == shape else value


PROBES = TrlProbes
