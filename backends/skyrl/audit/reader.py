"""Read the KL of anybody's launch of SkyRL, release by release.

Sources in skyrl-train 0.1 to 0.4 and skyrl 0.1.0 to 0.4.0: config/ppo_base_config.yaml or
train/config/config.py (AlgorithmConfig), utils/ppo_utils.py, trainer.py, workers/worker.py.
All of them have k3 in the loss with beta 0.001 by default.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

from backends.skyrl.manifest import (
    ALGORITHM,
    ASYNCHRONOUS,
    KL_TYPE,
    MANIFEST,
    NEWEST,
    tables,
)
from backends.skyrl.overrides import written
from orchestrator.audit.libraries import found_beside
from orchestrator.audit.own_code import entry_at
from orchestrator.audit.reading import (
    LONGEST_ENTRY,
    NOT_RESCALED,
    Keys,
    ReleaseReader,
    group_of_one,
    program_with_keys,
    reference_at_one,
    regime_of_sizes,
    shown,
    split_override,
    truncated,
    two_temperatures,
    unquoted,
)
from orchestrator.kl.estimators import Clamp, Correction, EngineWeight
from orchestrator.library.key_tables import is_since, merged_table
from orchestrator.library.launches import (
    AuditNote,
    BoundNote,
    Decided,
    Divisor,
    Given,
    HeldKeys,
    Inactive,
    InLoss,
    InReward,
    Launch,
    LaunchChange,
    LaunchReading,
    Range,
    Surroundings,
    TrainingRegime,
)
from orchestrator.library.manifest import ReleaseTable

USE_REWARD, USE_LOSS = f"{ALGORITHM}.use_kl_in_reward", f"{ALGORITHM}.use_kl_loss"
TYPE, COEFFICIENT = f"{ALGORITHM}.kl_estimator_type", f"{ALGORITHM}.kl_loss_coef"
OLD_K3, OLD_ABS = f"{ALGORITHM}.use_kl_estimator_k3", f"{ALGORITHM}.use_abs_kl"
ADVANTAGE, GROUP = f"{ALGORITHM}.advantage_estimator", "generator.n_samples_per_prompt"
CONTROL = f"{ALGORITHM}.kl_ctrl"
BATCH, MINIBATCH = "trainer.train_batch_size", "trainer.policy_mini_batch_size"
EPOCHS, ASYNC = "trainer.update_epochs_per_batch", "trainer.fully_async.enabled"
STALENESS = "trainer.fully_async.max_staleness_steps"
BY_DEVIATION, WHITENED = f"{ALGORITHM}.grpo_norm_by_std", f"{ALGORITHM}.advantage_batch_normalize"
REFERENCE_MODEL, POLICY_MODEL = (f"trainer.{name}.model.path" for name in ("ref", "policy"))
KNOWN_ADVANTAGE = re.compile(r"gae|grpo|rloo|reinforce\+\+|maxrl|.*no_op")
"""Those of some release (ppo_utils.py: AdvantageEstimator), and one that its examples register."""
PER_NODE, NODES = (f"trainer.placement.policy_num_{of}" for of in ("gpus_per_node", "nodes"))
LOSS_MODE, REDUCTION = f"{ALGORITHM}.policy_loss_type", f"{ALGORITHM}.loss_reduction"
CLIP_LOW, CLIP_HIGH = f"{ALGORITHM}.eps_clip_low", f"{ALGORITHM}.eps_clip_high"
ENTROPY, USE_ENTROPY = f"{ALGORITHM}.entropy_loss_coef", f"{ALGORITHM}.use_entropy_loss"
USE_TIS, TIS = f"{ALGORITHM}.use_tis", f"{ALGORITHM}.off_policy_correction.tis_ratio_type"
OFF_POLICY = f"{ALGORITHM}.off_policy_correction"
METRIC, TOKENS = f"{OFF_POLICY}.sequence_mask_metric", f"{OFF_POLICY}.token_mask_is_threshold"
OUTLIERS = f"{OFF_POLICY}.outlier_token_is_threshold"
CAPS: Mapping[str, tuple[str, float]] = {
    level: (f"{OFF_POLICY}.{level}_tis_ratio_clip_high", default)
    for level, default in (("token", 2.0), ("sequence", 5.0))
}
"""tis_ratio_type -> the key of its upper bound, and the default bound."""
BOUNDS: Mapping[str, tuple[tuple[str, float], tuple[str, float]]] = {
    "product": ((f"{OFF_POLICY}.product_mask_low", 0.5), (f"{OFF_POLICY}.product_mask_high", 2.0)),
    "geometric": ((f"{OFF_POLICY}.geo_mask_low", 0.99), (f"{OFF_POLICY}.geo_mask_high", 1.01)),
}
"""sequence_mask_metric -> the keys of its two bounds, and the default bounds."""
_KINDS: Mapping[tuple[str, str, bool], Correction] = {
    ("token", "", False): "tis_token",
    ("sequence", "", False): "tis_sequence",
    ("token", "", True): "mis_token",
    ("sequence", "product", False): "mis_sequence",
    ("", "", True): "reject_token",
    ("", "product", False): "reject_sequence",
    ("", "geometric", False): "geometric",
}
"""tis_ratio_type, sequence_mask_metric, and whether tokens are masked -> the weight's kind."""
_FLAG = re.compile(r"^(--[a-z]+\.[\w.]+)=(.*)$", re.DOTALL)
"""A key with dashes, which OmegaConf.from_cli takes for another key."""
LOSSES: Mapping[object, object] = {
    "regular": "ppo",
    "dual_clip": "ppo",
    "importance_sampling": "unclipped",
    **{name: name for name in ("clip_cov", "kl_cov", "cross_entropy")},
    **MANIFEST.meanings(LOSS_MODE, NEWEST),
}
"""policy_loss_type -> the entry of orchestrator.losses."""
WITH_OLD = {str(name) for name in LOSSES} - {"rollout_is", "dppo"}
"""Policy losses that the fully asynchronous trainer refuses from 0.3.0 on, the default among them:
their ratio is to old log-probabilities, which it does not keep (fully_async_trainer.py)."""
ENGINE_MODES = (
    "generator.inference_engine.engine_init_kwargs.logprobs_mode",
    "generator.engine_init_kwargs.logprobs_mode",
)
"""Where a launch sets vLLM's logprobs_mode; SkyRL itself leaves vLLM's default, raw_logprobs."""
ENGINES = ("generator.inference_engine.backend", "generator.backend")
COLOCATED, MOVES = "trainer.placement.colocate_all", "trainer.update_ref_every_epoch"
TO_SAMPLER = ("rollout_is", "dppo")
"""Policy losses whose ratio is to the rollout engine's policy, even if that policy is older. CISPO
is one with cispo_anchor=rollout (0.4.0)."""
ANCHOR, DUAL = f"{ALGORITHM}.cispo.cispo_anchor", f"{ALGORITHM}.clip_ratio_c"
OWN_BOUNDS: Mapping[str, tuple[tuple[str, float], tuple[str, float]]] = {
    "cispo": (
        (f"{ALGORITHM}.cispo.cispo_eps_clip_low", 1.0),
        (f"{ALGORITHM}.cispo.cispo_eps_clip_high", 4.0),
    ),
    "dppo": ((f"{ALGORITHM}.dppo.delta_low", 0.2), (f"{ALGORITHM}.dppo.delta_high", 0.2)),
}
"""Policy losses that do not read eps_clip_low and _high -> their keys and defaults."""
_ASYNC = re.compile(r"async")
"""Entry points that sample while the policy is updated: examples/train/{async,fully_async}."""
STEPWISE = "generator.step_wise_trajectories"
"""Each turn of a response is a sample of its own."""
IN_BOTH = "orch.kl_in_loss_too"
"""An option of orch_skyrl.py: the loss has the KL of the reward as well."""
_READ = (
    *(BATCH, MINIBATCH, EPOCHS, STALENESS, BY_DEVIATION, WHITENED, LOSS_MODE, REDUCTION),
    *(CLIP_LOW, CLIP_HIGH, USE_ENTROPY, ENTROPY, USE_TIS, TIS, USE_REWARD, USE_LOSS, TYPE),
    *(COEFFICIENT, ADVANTAGE, GROUP),
)
DEFAULTS = {key: written(tables()[NEWEST].defaults[key]) for key in _READ}
DEFAULTS |= dict.fromkeys((ASYNC, OLD_K3, OLD_ABS), "false")
"""Key -> its default, the same in every release that has it."""
_OLD = re.compile(r"skyrl_train[./]|^examples\.(?!train\.)[\w.]+$")
_IMPORTS_OLD = re.compile(r"^[ \t]*(from|import) skyrl_train\b", re.MULTILINE)
_OLD_KEYS = re.compile(
    r"^generator\.(backend|num_inference_engines|run_engines_locally|inference_engine_\w+"
    r"|weight_sync_backend|async_engine|gpu_memory_utilization|vllm_\w+|model_dtype"
    r"|enforce_eager)=?"
)
"""Keys of skyrl-train. skyrl 0.1.0 and 0.2.0 accept them too."""
_NEW = re.compile(
    r"(^|/)skyrl[./](train|backends)|^generator\.inference_engine\.|examples\.train\."
)
_ENTRY = re.compile(
    r"^(skyrl_train\.\w[\w.]*|skyrl\.train\.\w[\w.]*|.*skyrl_train/entrypoints/\w+\.py)$"
)
_OURS = re.compile(r"^(\+\+|\+|~)?(trainer\.(algorithm|placement|policy)|generator)\.[\w.]+=")
_OWN_RELEASE = re.compile(r"""__version__ = ["'](\d+\.\d+\.\d+)""")
_NOT_RL = re.compile(r"main_generate|serve|main_sft|sft_trainer")
ESTIMATORS = MANIFEST.meanings(KL_TYPE, NEWEST)
OLD_RELEASE, NEW_RELEASE, FIRST_GRADIENT = "train 0.1-0.4", "0.4.0", "0.2.0"
LAST_WITH_OLD_KEYS = FIRST_BY_PROMPT = "0.2.0"
"""FIRST_BY_PROMPT: the first release that splits the turns of a batch by their prompts."""
DISTILLS = re.compile(r"on_policy_distill")
"""Entry points of examples/on_policy_distillation. The KL to the reference model, the teacher,
replaces the reward token by token, whatever the estimator and the coefficient."""
NO_GRADIENT = "its compute_approx_kl stands under torch.no_grad (SkyRL issue 1340)"


def audit(launch: Launch) -> LaunchReading | None:
    """Return the audit's reading of a launch, or None if it does not start SkyRL."""
    entry, rest = program_with_keys(launch.words, _is_entry_point, _OURS)
    if any(word.text.lstrip("+").startswith("actor_rollout_ref.") for word in launch.words):
        return None
    if launch.words and (entry is None or _NOT_RL.search(entry)):
        return None
    if not launch.words and not any(key.startswith(f"{ALGORITHM}.") for key in launch.in_files):
        return None
    keys = Keys(DEFAULTS)
    keys.add_documents(launch.documents, untyped=True)
    for word in rest:
        override = split_override(word)
        if override is not None:
            keys.add(*override)
        elif (flag := _FLAG.match(word.text)) is not None:
            keys.add(flag[1], Given(unquoted(flag[2]), word.lines, word.why))
    if entry is not None and entry.endswith(".sh"):
        keys.opaque = f"it may come from {shown(entry)}, which this file calls"
    if launch.open_end:
        keys.opaque = launch.open_end
    version, because = _release(launch, keys)
    reading = _Reader(launch, keys, entry, version, because).reading()
    return replace(reading, held=_held(keys, launch, version))


def _held(keys: Keys, launch: Launch, version: str) -> HeldKeys:
    """Return the keys with their release's table, or with the table of all releases without one."""
    own = tables().get(version)
    old = version == OLD_RELEASE
    return HeldKeys(
        keys.given,
        "hydra" if old else "structured",
        own or (_train_keys() if old else _all_keys()),
        f"SkyRL {version}" if own else "skyrl-train" if old else "SkyRL",
        exact=own is not None,
        others=(*tables().values(), _train_keys()),
        defaults=DEFAULTS,
        in_files=launch.in_files,
        opaque=keys.opaque,
    )


@cache
def _train_keys() -> ReleaseTable:
    """Return the table of all keys that skyrl-train ever had, and of sections that take any key."""
    facts = json.loads(Path(__file__).with_name("train_keys.json").read_text(encoding="utf-8"))
    return ReleaseTable("skyrl-train", frozenset(facts["keys"]), {}, tuple(facts["added"]))


@cache
def _all_keys() -> ReleaseTable:
    return merged_table((*tables().values(), _train_keys()))


def _is_entry_point(text: str) -> bool:
    return len(text) < LONGEST_ENTRY and _ENTRY.match(text) is not None


def _release(launch: Launch, keys: Keys) -> tuple[str, str]:
    for name in ("skyrl", "skyrl-train"):
        version, why = launch.release(name)
        if version:
            return version if name == "skyrl" else OLD_RELEASE, why
    texts = [word.text.lstrip("+") for word in launch.words] + list(keys.given)
    if any(_NEW.search(text) for text in texts):
        own = _OWN_RELEASE.search(launch.beside.get("skyrl/__init__.py") or "")
        if own and is_since(own[1], FIRST_GRADIENT):  # code of 0.1.0 may have what 0.2.0 brought
            return own[1], "skyrl/__init__.py beside it says so, and its code may be later"
        return NEW_RELEASE, "the newest release; its entry point or keys are those of skyrl"
    if any(_OLD.search(text) for text in texts):
        return OLD_RELEASE, "its entry point is one of skyrl-train"
    program = found_beside(entry_at(launch.words)[1], launch.beside)
    if _IMPORTS_OLD.search(launch.beside.get(program) or ""):
        return OLD_RELEASE, "its program imports skyrl_train"
    if any(_OLD_KEYS.search(text) for text in texts):
        if not launch.words:
            return OLD_RELEASE, "its keys are those of skyrl-train"
        return LAST_WITH_OLD_KEYS, "the newest release that takes its keys"
    if any(values[-1].mark == "+" for values in keys.given.values()):
        return OLD_RELEASE, "its keys have Hydra's `+`, which skyrl refuses"
    return NEW_RELEASE, "the newest release; nothing in it tells the release"


class _Reader(ReleaseReader):
    """The reading of one launch under one release's rules."""

    library = title = "skyrl"

    @property
    def old(self) -> bool:
        return self.version == OLD_RELEASE

    def since(self, first: str) -> bool:
        """Return True for a release of skyrl that is not older than `first`."""
        return not self.old and super().since(first)

    def reading(self) -> LaunchReading:
        keys = self.keys
        self.notes += keys.doubled((USE_REWARD, USE_LOSS, TYPE, COEFFICIENT))
        in_reward, in_loss = self.switch(USE_REWARD), self.switch(USE_LOSS)
        by_orch = bool(keys.has(IN_BOTH) and keys.switch(IN_BOTH))
        in_loss = in_reward if by_orch else in_loss
        reward, loss = InReward(in_reward), InLoss(in_loss)
        if in_reward or in_loss:
            estimator, beta = self._estimator(), self.number(COEFFICIENT)
            on = None if beta is None else beta != 0
            reward = InReward(on, estimator, beta) if in_reward else reward
            loss = InLoss(on, estimator, beta) if in_loss else loss
        if in_reward and in_loss and not by_orch:
            which = f"{USE_LOSS} is true unless it is set to false"
            both = f"{USE_REWARD} and {USE_LOSS} are both true, which SkyRL refuses: {which}"
            self.note(both, USE_REWARD, USE_LOSS)
        self._refused()
        self.notes += self._raw()
        if not self.old and (reward.active or loss.active):
            self.notes += self._of_two_temperatures()
        ungraded = not self.since(FIRST_GRADIENT)
        dead = NO_GRADIENT if loss.active and ungraded else ""
        distilled = self._distilled(reward, loss)
        decided = distilled
        if distilled is not None:
            reward = InReward(True, "k1", 1.0)
        elif reward.active and self._is_stepwise():
            why = "turns have the advantage of the last one's reward: the KL of others is left out"
            decided = "other_objective", f"{STEPWISE}: {why}"
        self.notes += group_of_one(keys, ADVANTAGE, GROUP, ("grpo", "rloo"))
        package = "skyrl_train" if self.old else "skyrl/backends/skyrl_train"
        trainer = f"{'skyrl_train' if self.old else 'skyrl/train'}/trainer.py"
        self.sources = {
            "reward": f"{trainer}: apply_reward_kl_penalty",
            "loss": f"{package}/workers/worker.py",
        }
        named = keys.text(ADVANTAGE) or "grpo"
        return self.found(
            reward,
            loss,
            advantage_estimator=keys.text(ADVANTAGE),
            group_size=keys.integer(GROUP),
            inactive=self._inactive(reward, loss, dead),
            changes=() if distilled else tuple(self._changes(reward, loss)),
            assumes=(*self._assumed(), *self._newer(loss)),
            no_gradient=dead,
            decided=decided,
            regime=self._regime(),
            surroundings=None if distilled else self._surroundings(),
            chosen=() if KNOWN_ADVANTAGE.fullmatch(named) else (("advantage", named),),
        )

    def _refused(self) -> None:
        """Note each setting with which SkyRL does not start."""
        keys = self.keys
        batch, minibatch = keys.number(BATCH) or 0, keys.number(MINIBATCH) or 0
        # A program of one's own may have other defaults, and skyrl-train may take a remainder.
        sure = _is_entry_point(self.entry) or (keys.has(BATCH) and keys.has(MINIBATCH))
        left = batch % minibatch if minibatch else 0
        if sure and left and (batch < minibatch or not self.old):
            why = f"{BATCH} {batch:g} is no multiple of {MINIBATCH} {minibatch:g}"
            package = "skyrl_train" if self.old else "train"
            self.stops(why, f"{package}/utils/utils.py: validate_batch_sizes", BATCH, MINIBATCH)
        is_fully = "fully_async" in (self.entry or "")
        if not is_fully or not self.since("0.3"):
            return
        source = "train/fully_async_trainer.py"
        if (loss := keys.text(LOSS_MODE)) in WITH_OLD and not self._to_sampler(loss or ""):
            why = f"{LOSS_MODE} {loss} needs old log-probabilities; rollout_is and dppo do not"
            self.stops(why, source, LOSS_MODE)
        if not keys.has(COLOCATED) or keys.switch(COLOCATED):
            self.stops(f"{COLOCATED} is true", source, COLOCATED)

    def _raw(self) -> Iterator[AuditNote]:
        """Yield a remark if ratios are to raw probabilities of the engine, at a temperature."""
        keys = self.keys
        if not self._to_sampler(keys.text(LOSS_MODE) or "") and not self._correction()[0]:
            return
        mode = next((key for key in ENGINE_MODES if keys.has(key)), None)
        engine = next((keys.text(key) for key in ENGINES if keys.has(key)), "vllm")
        given = "raw_logprobs" if mode is None else keys.text(mode)
        if engine == "vllm" and given is not None and given.startswith("raw"):
            because = f"{mode} {given}" if mode else f"logprobs_mode {given}, vLLM's default"
            instead = f"{mode or ENGINE_MODES[self.old]}=processed_logprobs"
            yield from two_temperatures(
                keys, "generator.sampling_params.temperature", because, instead, *ENGINE_MODES
            )

    def _of_two_temperatures(self) -> Iterator[AuditNote]:
        """Yield a remark if the KL is to a reference policy at another temperature."""
        key, keys = "generator.sampling_params.temperature", self.keys
        is_megatron = keys.text("trainer.strategy") == "megatron"
        if not is_megatron and not keys.switch("trainer.algorithm.enable_sample_support_replay"):
            yield from reference_at_one(keys, key, "RefWorkerBase._forward_micro_batch")

    def _to_sampler(self, mode: str) -> bool:
        """Return True if the ratio of a policy loss is to the engine's probabilities."""
        anchored = self.keys.has(ANCHOR) and self.keys.text(ANCHOR) == "rollout"
        return mode in TO_SAMPLER or (mode == "cispo" and anchored)

    def _clip(self, mode: str) -> Range | None:
        """Return the bounds that a policy loss reads, or None if one is unknown."""
        keys = self.keys
        if mode not in OWN_BOUNDS:
            low, high = keys.number(CLIP_LOW), keys.number(CLIP_HIGH)
        else:
            low, high = (keys.number(key, default) for key, default in OWN_BOUNDS[mode])
        return (low, high) if low is not None and high is not None else None

    def _dual(self, mode: str) -> str:
        """Return what the second clip of `dual_clip` drops."""
        if mode != "dual_clip":
            return ""
        given = self.keys.number(DUAL, 3.0)
        most = "c" if given is None else f"{given:g}"
        return f"tokens of negative advantage whose ratio is above {most} ({DUAL})"

    def _moving_reference(self) -> str:
        moves = self.keys.has(MOVES) and self.keys.switch(MOVES)
        return f"each epoch makes it the policy of then ({MOVES})" if moves else ""

    def _samples_ahead(self) -> bool:
        """Return True if rollouts are sampled while the policy is updated."""
        keys = self.keys
        own = keys.has(ASYNCHRONOUS) and keys.switch(ASYNCHRONOUS)
        return bool(_ASYNC.search(self.entry or "") or own or keys.switch(ASYNC))

    def _regime(self) -> TrainingRegime:
        """Return the regime: on-policy if each batch of rollouts serves one train step."""
        keys = self.keys
        of_steps = regime_of_sizes(keys, BATCH, MINIBATCH, EPOCHS)
        minibatch, group = keys.number(MINIBATCH) or 0, keys.number(GROUP) or 1
        gpus = (keys.number(PER_NODE) or 1) * (keys.number(NODES) or 1)
        if minibatch * group % gpus:
            of_steps = TrainingRegime(None, f"{gpus:g} GPUs do not share {MINIBATCH} evenly")
        if self._samples_ahead():
            if _ASYNC.search(self.entry or "") and "fully" not in (self.entry or ""):
                return of_steps.behind(f"{self.entry} samples one step ahead", ahead=True)
            lag = keys.text(STALENESS) or "…"
            if lag != "0":
                why = f"rollouts lag by up to {shown(lag)} steps ({STALENESS})"
                return of_steps.behind(why, ahead=True)
        elif keys.has(STALENESS) and not keys.has(ASYNC) and self.version != NEW_RELEASE:
            why = f"{STALENESS} is given, and {self.entry or 'the entry point'} says if it counts"
            return TrainingRegime(None, why)
        if self._is_stepwise() and (not self.since(FIRST_BY_PROMPT)):
            why = f"{STEPWISE} makes each turn a sample: the turns of a batch give its train steps"
            return TrainingRegime(None, why)
        return of_steps

    def _is_stepwise(self) -> bool:
        return self.keys.has(STEPWISE) and bool(self.keys.switch(STEPWISE))

    def _surroundings(self) -> Surroundings:
        """Return the surroundings of the KL. The KL in the loss is a mean of responses' means."""
        keys, unread = self.keys, self.unread

        def read(key: str) -> str:
            return self.read(key, DEFAULTS[key]).lower()

        advantage = keys.text(ADVANTAGE) or ""
        divided: Divisor | None = "nothing"
        because = f"{ADVANTAGE} {advantage}"
        if advantage == "grpo":
            by_deviation = read(BY_DEVIATION)
            divided = "nothing" if by_deviation in ("false", "0", "no") else "group_std"
            because += f", {BY_DEVIATION} {by_deviation}"
        elif advantage in ("reinforce++", "gae"):
            divided = "batch_std"
        elif advantage != "rloo":
            divided = None
            self.unknown_advantage(advantage)
        if divided == "nothing" and read(WHITENED) == "true":
            divided, because = "batch_std", f"{WHITENED} true"
        mode, reduction = read(LOSS_MODE), read(REDUCTION)
        name = str(LOSSES.get(mode, mode))
        ratio = self.ratio(name, mode)
        correction, weight = self._correction()
        to_sampler = self._to_sampler(mode)
        if self._samples_ahead() and ratio == "token" and not correction and not to_sampler:
            ratio = "none"
        entropy = keys.number(ENTROPY) if read(USE_ENTROPY) == "true" else 0.0
        return Surroundings(
            advantage_divided_by=divided,
            divided_because=because,
            own_rollout_in_mean=advantage == "grpo",
            policy_loss=name,
            ratio=ratio,
            clip=self._clip(mode),
            also_drops=self._dual(mode),
            old_is_sampler=to_sampler,
            correction=correction,
            engine_weight=weight,
            length_weighted=reduction == "sequence_mean",
            kl_loss_factor=1.0 if reduction == "sequence_mean" else None,
            aggregation_because=f"{REDUCTION} {reduction}; the KL's is the mean of each response",
            entropy=entropy or 0.0,
            controller=f"{CONTROL}.type adaptive"
            if keys.switch(USE_REWARD) and keys.text(f"{CONTROL}.type") == "adaptive"
            else "",
            clamp=Clamp(20.0, 10.0),
            clamp_of=("k3",),
            moving_reference=self._moving_reference(),
            own_reference=keys.own_reference(REFERENCE_MODEL, POLICY_MODEL),
            bound_notes=tuple(self._bound_notes(mode, reduction, correction)),
            unread=(*unread, *self._truncated()),
        )

    def _bound_notes(self, mode: str, reduction: str, correction: str) -> Iterator[BoundNote]:
        """Yield where a policy loss or a mask is not what its name says (ppo_utils.py)."""
        lines = self.keys.lines(LOSS_MODE)
        if mode == "regular" and self.keys.has(DUAL):
            yield BoundNote(
                f"{LOSS_MODE} regular does not read clip_ratio_c: there is no second clip",
                f"{LOSS_MODE}=dual_clip",
                self.keys.lines(DUAL),
            )
        if mode == "importance_sampling":
            yield BoundNote(
                "importance_sampling has no bound and no mask against the engine, and its ratio is "
                "to the trainer's own probabilities",
                f"{LOSS_MODE}=rollout_is, whose ratio is to the engine",
                lines,
            )
        if mode in OWN_BOUNDS and (given := [k for k in (CLIP_LOW, CLIP_HIGH) if self.keys.has(k)]):
            low, high = (key for key, _ in OWN_BOUNDS[mode])
            yield BoundNote(
                f"{mode} does not read eps_clip_low and eps_clip_high",
                f"{low} and {high}",
                self.keys.lines(*given),
            )
        if "sequence-level" in correction and "token-level importance masks" in correction:
            yield BoundNote(
                "the weight of a response is the product of its kept tokens' ratios only: the "
                "tokens that the mask took are not in it",
                f"{TIS}=token",
                self.keys.lines(TIS),
            )
        elif correction == "token-level importance masks":
            yield BoundNote(
                "a mask alone keeps tokens at weight 1: IcePop, with the same bounds, weighs them "
                "by their ratio",
                f"{TIS}=token",
                self.keys.lines(f"{TOKENS}_low", f"{TOKENS}_high"),
            )
        if mode in ("gspo", "sapo") and reduction != "sequence_mean":
            yield BoundNote(
                f"{mode} is the mean over responses, and {REDUCTION} {reduction} is not: SkyRL "
                "only warns",
                f"{REDUCTION}=sequence_mean",
                lines,
            )
        if mode == "dppo" and "truncated" in correction:
            yield BoundNote(
                "DPPO's ratio is to the policy that sampled already: with the importance weights "
                "that policy counts twice",
                f"{TIS}=null",
                lines,
            )
        if any(self._given(f"{OUTLIERS}_{side}") for side in ("low", "high")):
            yield BoundNote(
                "one token outside the outlier bounds drops its whole response: of long responses "
                "few are left",
                f"{TOKENS}_low and {TOKENS}_high, which drop the token alone",
                self.keys.lines(f"{OUTLIERS}_low", f"{OUTLIERS}_high"),
            )

    def _truncated(self) -> Iterator[str]:
        sampling = "generator.sampling_params"
        names = {name: f"{sampling}.{name}" for name in ("top_p", "top_k", "min_p")}
        return truncated(self.keys, **names)

    def _correction(self) -> tuple[str, EngineWeight | None]:
        """Return the correction of the engine's mismatch in words and as the laboratory's weight.

        The words are empty without one. The weight is None for one that the laboratory has not
        (off_policy_correction_utils.py).
        """
        keys = self.keys
        low, high = (keys.number(f"{TOKENS}_{side}") for side in ("low", "high"))
        masks_tokens = low is not None and high is not None
        outliers = any(self._given(f"{OUTLIERS}_{side}") for side in ("low", "high"))
        tis, metric = self._given(TIS), self._given(METRIC)
        deprecated = not tis and keys.text(USE_TIS) == "true"
        tis = "token" if deprecated else tis
        words = {
            f"{tis}-level truncated importance sampling": tis,
            "token-level importance masks": masks_tokens,
            f"masked responses ({metric})": metric,
            "masked responses (outlier tokens)": outliers,
        }
        text = " with ".join(each for each, acts in words.items() if acts)
        kind = _KINDS.get((tis, metric, masks_tokens))
        if kind is None or outliers or (deprecated and (metric or masks_tokens)):
            return text, None
        least: float | None = 0.0
        if deprecated:
            cap = most = keys.number(f"{ALGORITHM}.tis_imp_ratio_cap")
        elif kind.startswith("tis"):
            cap = most = keys.number(*CAPS[tis])
        else:
            of_metric = BOUNDS.get(metric, ((f"{TOKENS}_low", None), (f"{TOKENS}_high", None)))
            least, most = (keys.number(*bound) for bound in of_metric)
            cap = keys.number(*CAPS[tis]) if kind.startswith("mis") else most
        if least is None or most is None or cap is None or cap < most or least >= most:
            return text, None
        return text, EngineWeight(kind, least, most)

    def _given(self, key: str) -> str:
        """Return the text of a key of the correction; empty without a value."""
        text = (self.keys.text(key) or "").strip().lower()
        return "" if text in ("null", "none") else text

    def _distilled(self, reward: InReward, loss: InLoss) -> Decided | None:
        """Return the verdict and reason of an entry point that changes the KL in the reward.

        Return None for SkyRL's own trainer. An unknown advantage makes the KL unknown.
        """
        if reward.active is not True or loss.active is not False:
            return None
        advantage = self.keys.text(ADVANTAGE) or ""
        if DISTILLS.search(self.entry or "") and advantage == "no_op":
            why = (
                "its entry point puts log teacher - log policy in place of each token's reward "
                "(k1, weight 1): the reverse KL of each token to the teacher, which stands in the "
                f"place of the reference model; {TYPE} and {COEFFICIENT} are not read"
            )
            return "token_reverse_kl", why
        if advantage.endswith("no_op"):
            self.unknown.append(
                f"the advantage '{advantage}' is not SkyRL's: {self.entry or 'its entry point'} "
                "says what is made of the reward and of the KL in it"
            )
        return None

    def _assumed(self) -> Iterator[str]:
        yield from self.keys.assumes
        if self.entry and not _ENTRY.match(self.entry) and not DISTILLS.search(self.entry):
            yield f"{self.entry} hands these keys to SkyRL's trainer unchanged"

    def _newer(self, loss: InLoss) -> Iterator[str]:
        """Yield a note with the assumed release if another release would change the reading."""
        if loss.active and self.old and self.because.startswith("its"):
            yield "the code is skyrl-train's: a fork that gave the KL a gradient has it in the loss"
        if loss.active and self.because.startswith("the newest"):
            yield (
                f"the release is {FIRST_GRADIENT} or later: in 0.1.0 and in skyrl-train the same "
                "KL in the loss has no gradient"
            )

    def _estimator(self) -> str | None:
        keys = self.keys
        if self.old and keys.switch(OLD_K3):
            return "k3"
        if self.old and keys.switch(OLD_ABS):
            return "abs"
        meant = ESTIMATORS.get(keys.text(TYPE))
        if meant is None:
            self.unknown.append(keys.why_unknown(TYPE))
        return None if meant is None else str(meant)

    def _inactive(self, reward: InReward, loss: InLoss, dead: str) -> Iterator[Inactive]:
        keys = self.keys
        asked = [key for key in (USE_REWARD, USE_LOSS, TYPE) if keys.switch(key)]
        if reward.beta == 0 or loss.beta == 0:
            yield from keys.inert(f"{COEFFICIENT} is 0", *asked)
        elif reward.active is False and loss.active is False:
            why = f"neither {USE_REWARD} nor {USE_LOSS} is true"
            yield from keys.inert(why, COEFFICIENT, TYPE)
        if dead:
            why = f"the KL in the loss has no gradient here: {dead}"
            yield from keys.inert(why, USE_LOSS, COEFFICIENT, TYPE)
        if not reward.active:
            controls = [key for key in keys.given if key.startswith(f"{CONTROL}.")]
            yield from keys.inert(
                f"it is for a KL in the reward; {USE_REWARD} is not true", *controls
            )

    def _changes(self, reward: InReward, loss: InLoss) -> Iterator[LaunchChange]:
        """Yield the changes to a term that is not criticised, the smallest first."""
        beta = f"{reward.beta or loss.beta or 0.001:g}"
        if loss.active and not reward.active:
            yield self.keys.change("k2 in the loss", (TYPE, "k2"))
        weight = (COEFFICIENT, beta)
        rewarded = ((USE_REWARD, "true"), (USE_LOSS, "false"), (TYPE, "k1"), weight)
        yield self.keys.change("k1 in the reward", *rewarded)
        unscaled = (*rewarded, (BY_DEVIATION, "false"))
        yield self.keys.change("k1 in the reward, not rescaled", *unscaled, also=NOT_RESCALED)
        moved = ((USE_REWARD, "false"), (USE_LOSS, "true"), (TYPE, "k2"), weight)
        yield self.keys.change("k2 in the loss", *moved)
