"""Read the KL that a launch of ROLL asks for, release by release.

Source: ROLL 0.1.0 to 0.3.0: roll/configs/base_config.py (PPOConfig), roll/utils/functionals.py
(apply_kl_penalty, compute_approx_kl, compute_advantage), roll/pipeline/base_worker.py. keys.json
holds the fields of its configuration classes; dacite drops every other key of a file.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Literal

from orchestrator.audit.reading import (
    Keys,
    ReadLibrary,
    ReleaseReader,
    clip_range,
    split_override,
    stock,
)
from orchestrator.kl.estimators import Clamp
from orchestrator.library.key_tables import KeyFact, KeyTables, fields, load_tables
from orchestrator.library.launches import (
    AuditNote,
    Inactive,
    InLoss,
    InReward,
    Launch,
    LaunchChange,
    LaunchReading,
    Rule,
    Surroundings,
    TrainingRegime,
)
from orchestrator.library.logged import LoggedMetric, LoggedMetrics, as_document, having
from orchestrator.library.release_marks import ReleaseFile, ReleaseMarks

SWITCH, BETA, TYPE = "add_token_level_kl", "init_kl_coef", "kl_penalty"
USE_LOSS, LOSS_BETA = "use_kl_loss", "kl_loss_coef"
ADVANTAGE, ASYNC = "adv_estimator", "async_generation_ratio"
ESTIMATORS = {"kl": "k1", "abs": "abs", "mse": "k2"}
SOURCE = "roll/configs/base_config.py"
HELPERS = ("num_return_sequences_in_group", "is_num_return", "hydra", "defaults")
_ENTRY = re.compile(r"(^|/)start_\w*pipeline\.py$")
_RANGE = re.compile(r"list\(range\((\d+), ?(\d+)\)\)")


def tables() -> KeyTables:
    """Return the keys of every release."""
    return load_tables(Path(__file__).with_name("keys.json"), HELPERS)


def audit(launch: Launch) -> LaunchReading | None:
    """Return the audit's reading of a launch; None if it starts no RL pipeline of ROLL."""
    entry = next((word.text for word in launch.words if _ENTRY.search(word.text)), "")
    given = dict.fromkeys(key for each in launch.documents for key in each.values)
    if launch.words and not entry:
        return None
    if not launch.words and not ("rollout_batch_size" in given and _has_workers(given)):
        return None
    basis = stock(launch, "roll", tables(), [k for k in given if "." not in k], (SOURCE,), _own)
    keys = Keys(basis.defaults)
    keys.add_documents(launch.documents)
    for word in launch.words:
        pair = split_override(word)
        if pair is not None:
            keys.add(*pair)
    if launch.words and not launch.documents:
        keys.opaque = "it may come from the file that --config_name names, which was not read"
    keys.opaque = launch.open_end or keys.opaque
    return _Reader(launch, keys, entry, basis).reading()


def _own(text: str) -> Mapping[str, KeyFact]:
    return {**fields(text, "BaseConfig"), **fields(text, "PPOConfig")}


def _has_workers(given: Collection[str]) -> bool:
    return any(k.startswith("actor_train.") for k in given) and any(
        k.startswith("actor_infer.") for k in given
    )


class _Reader(ReleaseReader):
    """A reader of one launch of ROLL under the rules of one release."""

    def reading(self) -> LaunchReading:
        keys = self.keys
        reward, loss = self._in_reward(), self._in_loss()
        if any(k.startswith(("teacher.", "use_opd", "is_pure_opd")) for k in keys.given):
            self.unknown.append(
                "a teacher (use_opd, is_pure_opd) adds a KL that orch does not read"
            )
        flat_keys = {k: v for k, v in keys.given.items() if "." not in k and not k.isdigit()}
        return LaunchReading(
            library="roll",
            version=self.basis.version,
            version_because=self.basis.because,
            entry_point=self.entry or None,
            in_reward=reward,
            in_loss=loss,
            advantage_estimator=keys.text(ADVANTAGE),
            reference_policy_loaded=bool(reward.active or loss.active),
            group_size=self._group(),
            inactive=tuple(self._inactive()),
            contradictions=(
                *self._half_on(),
                *keys.doubled((SWITCH, BETA, TYPE, USE_LOSS, LOSS_BETA)),
            ),
            settings=tuple(keys.settings),
            rules=tuple(self._rules()),
            changes=tuple(self._changes(reward, loss)),
            assumes=tuple(keys.assumes),
            unknown=tuple(self.unknown),
            possibilities=self.possibilities(),
            regime=self._regime(),
            surroundings=self._surroundings(),
            held=self.basis.held(
                flat_keys, "structured", "ROLL", in_files=flat_keys, ignoring=("",)
            ),
        )

    def _in_reward(self) -> InReward:
        on = self.switch(SWITCH)
        if not on:
            return InReward(on)
        beta = self.number(BETA)
        if beta is None:
            return InReward(None)
        if beta == 0:
            return InReward(False, beta=0.0)
        if self.keys.text(TYPE) == "full":
            self.unknown.append(
                f"{TYPE} full needs the whole distribution, which the trainer does not keep"
            )
            return InReward(True, None, beta)
        return InReward(True, self.estimator(TYPE, ESTIMATORS), beta)

    def _in_loss(self) -> InLoss:
        on = self.switch(USE_LOSS)
        if not on:
            return InLoss(on)
        beta = self.number(LOSS_BETA)
        return InLoss(None if beta is None else beta != 0, "k3", beta)

    def _half_on(self) -> Iterator[AuditNote]:
        keys = self.keys
        if keys.has(BETA) and (keys.number(BETA) or 0) > 0 and keys.switch(SWITCH) is False:
            text = (
                f"{BETA} is {keys.number(BETA):g} and {SWITCH} is false: the reference policy is "
                "loaded and its KL logged, and no KL reaches the reward"
            )
            yield AuditNote(text, keys.lines(BETA, SWITCH))

    def _inactive(self) -> Iterator[Inactive]:
        keys = self.keys
        if keys.switch(SWITCH) is False:
            for key in (BETA, TYPE, "target_kl", "kl_horizon"):
                yield from keys.inert(key, f"{SWITCH} is false: no KL reaches the reward")
        if keys.switch(USE_LOSS) is False:
            yield from keys.inert(LOSS_BETA, f"{USE_LOSS} is false")

    def _group(self) -> int | None:
        for key in ("num_return_sequences_in_group", "train_env_manager.group_size"):
            if self.keys.has(key):
                return self.keys.integer(key)
        return self.keys.integer("actor_infer.generating_args.num_return_sequences")

    def _regime(self) -> TrainingRegime:
        keys = self.keys
        ahead = keys.number(ASYNC)
        if ahead:
            return TrainingRegime(False, f"rollouts are sampled ahead ({ASYNC} {ahead:g})")
        if any(key.startswith("train_env_manager") for key in keys.given):
            return TrainingRegime(
                None, "nothing says how many samples the environments' steps make"
            )
        epochs = keys.number("ppo_epochs")
        sizes = [keys.number("rollout_batch_size"), self._group(), self._update(), epochs]
        if any(not each for each in sizes):
            return TrainingRegime(None, "the batch of an update, or its devices, cannot be read")
        prompts, group, update, epochs = (each or 1 for each in sizes)
        steps = max(prompts * group // update, 1) * epochs
        text = f"rollout_batch_size {prompts:g} × {group:g} samples, {update:g} an update"
        return TrainingRegime.of_steps(steps, f"{text}, ppo_epochs {epochs:g}")

    def _update(self) -> float | None:
        """Return the number of samples of an update, over all data-parallel devices."""
        keys, train = self.keys, "actor_train.training_args"
        names = ("per_device_train_batch_size", "gradient_accumulation_steps")
        one, accumulated = (keys.number(f"{train}.{name}") for name in names)
        devices = _RANGE.search(keys.text("actor_train.device_mapping") or "")
        if not one or not accumulated or devices is None:
            return None
        width = 1.0
        for name in ("tensor_model", "pipeline_model", "context"):
            key = f"actor_train.strategy_args.strategy_config.{name}_parallel_size"
            width *= (keys.number(key) or 1.0) if keys.has(key) else 1.0
        count = int(devices[2]) - int(devices[1])
        return one * accumulated * max(count // width, 1)

    def _surroundings(self) -> Surroundings:
        keys = self.keys
        advantage = keys.text(ADVANTAGE) or ""
        divided: Literal["nothing", "group_std", "batch_std"] | None = "nothing"
        because, includes = "", True
        deviation = keys.last("norm_std_type") or keys.last("reward_norm")
        by_group = advantage == "grpo" or (deviation is not None and deviation.text == "group")
        if keys.switch("whiten_advantages"):
            divided, because = "batch_std", "whiten_advantages"
        elif by_group:
            divided, because, includes = "group_std", f"{ADVANTAGE} {advantage}", False
        elif deviation is not None and deviation.text in ("batch", "running"):
            divided, because, includes = "batch_std", "norm_std_type", False
        unread = []
        if advantage not in ("gae", "reinforce", "grpo"):
            unread.append(f"the advantage estimator '{advantage or '…'}' leaves the KL as it is")
        variant = keys.last("pg_variant")
        low, high = (keys.number(f"pg_clip_{end}") for end in ("low", "high"))
        clip = keys.number("pg_clip")
        if not keys.switch("use_pg_clip_range"):
            low = high = clip
        kind = keys.text("loss_agg_mode")
        averaged = kind == "seq-mean-token-mean"
        names = ("gamma", "lambd") if advantage == "gae" else ("gamma",)
        return Surroundings(
            advantage_divided_by=divided,
            division_includes_kl=includes,
            divided_because=because,
            own_rollout_in_mean=by_group,
            baseline_includes_kl=False,
            loss_mode="" if variant is None or variant.text == "ppo" else variant.text,
            ratio="none" if variant is not None and variant.text == "vanilla" else "token",
            clip=clip_range(low, high),
            correction="the weights of train_infer_correction"
            if any(k.startswith("train_infer_correction.is_weight") for k in keys.given)
            else "",
            length_weighted=averaged,
            aggregation_because=f"loss_agg_mode {kind}" if averaged else "",
            entropy=keys.number("entropy_loss_coef") or 0.0,
            discount=self.discounts({name: name for name in names}),
            controller="target_kl" if keys.has("target_kl") and keys.number("target_kl") else "",
            clamp=Clamp(value=10.0),
            clamp_of=("k3",),
            unread=tuple(unread),
        )

    def _rules(self) -> Iterator[Rule]:
        release = f"ROLL {self.basis.version}"
        yield Rule(
            f"a KL in the reward needs {SWITCH}; {BETA} is 0.2 unless given, and alone it loads "
            "the reference policy and changes nothing",
            f"{release}, roll/utils/functionals.py: apply_kl_penalty",
        )
        yield Rule(
            f"the KL in the loss is k3; {TYPE} is for the reward",
            f"{release}, roll/pipeline/base_worker.py: loss_func",
        )
        yield Rule("keys that no class has are dropped", f"{release}: dacite.from_dict")

    def _changes(self, reward: InReward, loss: InLoss) -> Iterator[LaunchChange]:
        put = self.put
        if reward.active and not loss.active:
            yield LaunchChange("k1 in the reward", (put(TYPE, "kl"),))
        elif any(True for _ in self._half_on()) and not loss.active:
            yield LaunchChange("k1 in the reward", (put(SWITCH, "true"), put(TYPE, "kl")))
        elif loss.active:
            weight = f"{loss.beta:g}" if loss.beta else "0.01"
            edits = (
                put(USE_LOSS, "false"),
                put(SWITCH, "true"),
                put(BETA, weight),
                put(TYPE, "kl"),
            )
            yield LaunchChange("k1 in the reward", edits)


_WORKER = "roll/pipeline/base_worker.py, loss_func, 0.3.0"
LOGGED = LoggedMetrics(
    (
        LoggedMetric(
            "critic/kl",
            "train/kl_term",
            "KL to the reference policy, as kl_penalty estimates it: each response's mean over "
            "tokens, then the mean over responses. It is logged whether or not it is in "
            "the reward: "
            "critic/kl_coef is 0 without add_token_level_kl",
            "roll/utils/functionals.py, compute_token_reward, 0.3.0",
            place="reward",
        ),
        LoggedMetric(
            "critic/kl",
            "",
            "KL to the reference policy, as kl_penalty estimates it, that nothing trains on: "
            "without add_token_level_kl it is only logged",
            "roll/utils/functionals.py, compute_token_reward, 0.3.0",
            place="loss",
        ),
        LoggedMetric(
            "actor/kl_loss",
            "train/kl_term",
            "KL to the reference policy: k3, clamped to 10, aggregated like the policy loss; "
            "kl_loss_coef is not in it. It is logged whether or not use_kl_loss is on",
            _WORKER,
            place="loss",
        ),
        LoggedMetric(
            "actor/kl_loss",
            "",
            "KL to the reference policy: k3, clamped to 10, that nothing trains on: without "
            "use_kl_loss it is only logged",
            _WORKER,
            place="reward",
        ),
        LoggedMetric(
            "actor/approxkl",
            "",
            "no KL to the reference policy: k2 between the policy and the policy before the "
            "batch's updates",
            _WORKER,
        ),
        LoggedMetric(
            "actor/policykl",
            "",
            "no KL to the reference policy: the mean of log π - log π_old",
            _WORKER,
        ),
        LoggedMetric("critic/score/mean", "train/reward_mean"),
        LoggedMetric("actor/pg_loss", "train/policy_loss"),
        LoggedMetric("actor/ppo_ratio_clipfrac", "train/clip_fraction"),
    ),
    steps="a step is a rollout batch, which may be several train steps",
    launch=as_document,
    owns=having("add_token_level_kl"),
)
"""The metrics that ROLL logs."""

READER = ReadLibrary(
    "roll",
    "ROLL",
    ReleaseMarks(
        hint=r"start_\w*pipeline|actor_infer|add_token_level_kl",
        repositories=("ROLL",),
        files=(
            ReleaseFile(
                "roll",
                "setup.py",
                needs="roll",
                pattern=re.compile(r"version\s*=\s*['\"](\d+\.\d+\.\d+)"),
            ),
        ),
    ),
    ESTIMATORS,
    audit,
    LOGGED,
)
