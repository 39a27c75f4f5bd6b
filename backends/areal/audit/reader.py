"""Read the KL that a launch of AReaL asks for, release by release.

Source: AReaL 0.3.4 to 1.0.4: areal/api/cli_args.py (PPOActorConfig, GRPOConfig), areal/trainer/ppo/
actor.py (_compute_advantages; before 1.0 areal/engine/ppo/actor.py), areal/utils/data.py
(KLEstimator), areal/trainer/rl_trainer.py. The KL is in the reward alone, token by token, and GAE
sums it with the reward. keys.json holds the fields of the configuration classes.
"""

import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Literal

from orchestrator.audit.reading import (
    Keys,
    ReadLibrary,
    ReleaseReader,
    clip_range,
    shown,
    split_override,
    stock,
)
from orchestrator.kl.estimators import UNCLAMPED, Clamp
from orchestrator.library.key_tables import KeyTables, fields, load_tables
from orchestrator.library.launches import (
    AuditNote,
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

BETA, TYPE = "actor.kl_ctl", "actor.kl_estimator"
LAG, MINIBATCHES = "rollout.max_head_offpolicyness", "actor.ppo_n_minibatches"
PROXIMAL = "actor.prox_logp_method"
DECOUPLED, RECOMPUTED = "actor.use_decoupled_loss", "actor.recompute_logprob"
GROUP = "gconfig.n_samples"
ESTIMATORS = {"k1": "k1", "k2": "k2", "k3": "k3"}
SOURCE = "areal/api/cli_args.py"
PASSED = (
    *("sglang.", "vllm.", "critic.", "teacher.", "eval_gconfig.", "perf_tracer.", "stats_logger."),
    *("saver.", "recover.", "checkpointer.", "evaluator.", "cluster.", "launcher.", "scheduler."),
    *("swanlab.", "ref.", "workflow", "econfig.", "agent", "actor.scheduling_spec", "actor.fsdp"),
    *("rollout.scheduling_spec", "actor.megatron", "actor.archon", "rollout.openai"),
)
"""Sections whose keys orch does not check against a table. None of them changes the KL."""


def tables() -> KeyTables:
    """Return the keys of every release."""
    return load_tables(Path(__file__).with_name("keys.json"), PASSED)


def audit(launch: Launch) -> LaunchReading | None:
    """Return the audit's reading of a launch; None if it starts no RL training of AReaL."""
    given = [key for each in launch.documents for key in each.values]
    overrides = [pair for word in launch.words if (pair := split_override(word)) is not None]
    names = tuple(dict.fromkeys((*given, *(key for key, _ in overrides))))
    if not _is_own(names) and not any("areal" in word.text for word in launch.words):
        return None
    entry = next((word.text for word in launch.words if word.text.endswith(".py")), "")
    if launch.words and not entry:
        return None
    if not any(key.startswith("actor.") for key in names):
        return None
    basis = stock(
        launch, "areal", tables(), names, (SOURCE,), lambda text: fields(text, "GRPOConfig")
    )
    keys = Keys(basis.defaults)
    keys.add_documents(launch.documents)
    for key, value in overrides:
        keys.add(key, value)
    named = any(word.text.split("=")[0] == "--config" for word in launch.words)
    if named and not launch.documents:
        keys.opaque = "the file after --config could not be read"
    keys.opaque = launch.open_end or keys.opaque
    return _Reader(launch, keys, entry, basis).reading()


def _is_own(names: Collection[str]) -> bool:
    """Return True for keys that only AReaL's configurations have together."""
    return not {LAG, MINIBATCHES, "actor.mb_spec.max_tokens_per_mb"}.isdisjoint(names) and any(
        name.startswith(("gconfig.", "rollout.")) for name in names
    )


class _Reader(ReleaseReader):
    """A reader of one launch of AReaL under the rules of one release."""

    def _text(self, key: str) -> str | None:
        """Return the value of a key, or `null` if its section is null or absent."""
        parent = key.rpartition(".")[0]
        section = self.keys.last(parent)
        if not self.keys.has(key) and (section is None or section.text == "null"):
            return "null" if not self.keys.opaque else None
        return self.keys.text(key) if self.keys.has(key) else "null"

    def reading(self) -> LaunchReading:
        keys = self.keys
        beta = self.number(BETA)
        on = None if beta is None else beta != 0
        has_reference = self._has_reference()
        bonus = bool(on) and has_reference is False
        if on and has_reference is None:
            self.unknown.append("whether `ref:` is given cannot be read here")
        reward = InReward(False, beta=beta)
        if on is not False and not bonus:
            reward = InReward(on, self.estimator(TYPE, ESTIMATORS), beta)
        if any(key.startswith("teacher.") for key in keys.given):
            self.unknown.append("teacher: adds a KL to a teacher, which orch does not read")
        in_files = {key for each in self.launch.documents for key in each.values}
        return LaunchReading(
            library="areal",
            version=self.basis.version,
            version_because=self.basis.because,
            entry_point=self.entry or None,
            in_reward=reward,
            in_loss=InLoss(False),
            advantage_estimator="gae",
            reference_policy_loaded=bool(on and has_reference),
            group_size=keys.integer(GROUP),
            contradictions=(
                *([self._trap(beta or 0.0)] if bonus else []),
                *keys.doubled((BETA, TYPE)),
            ),
            settings=tuple(keys.settings),
            rules=tuple(self._rules()),
            changes=tuple(self._changes(reward, bonus=bonus)),
            assumes=tuple(self._assumed()),
            unknown=tuple(self.unknown),
            possibilities=self.possibilities(),
            regime=self._regime(),
            surroundings=self._surroundings(beta or 0.0, bonus=bonus),
            held=self.basis.held(keys.given, "structured", "AReaL", in_files=in_files),
        )

    def _has_reference(self) -> bool | None:
        """Return True if a reference policy is configured, or None if that cannot be read."""
        whole = self.keys.last("ref")
        if any(key.startswith("ref.") for key in self.keys.given):
            return True
        if whole is not None:
            return whole.text.lower() not in ("null", "")
        fact = self.basis.facts.get("ref")
        can_lack = fact is not None and fact.default == "null"
        return None if self.keys.opaque or not can_lack else False

    def _trap(self, beta: float) -> AuditNote:
        return AuditNote(
            f"{BETA} is {beta:g} and there is no `ref:`, so the log-probabilities of the reference "
            "policy are zeros: the KL becomes a bonus for entropy, and nothing keeps the policy "
            "near a reference policy",
            self.keys.lines(BETA),
        )

    def _regime(self) -> TrainingRegime:
        keys = self.keys
        lag, minibatches = keys.number(LAG), keys.number(MINIBATCHES)
        if lag:
            return TrainingRegime(False, f"rollouts lag by up to {lag:g} steps ({LAG})")
        if lag is None or minibatches is None:
            unread = LAG if lag is None else MINIBATCHES
            return TrainingRegime(None, keys.why_unknown(unread))
        return TrainingRegime.of_steps(minibatches, f"{MINIBATCHES} {minibatches:g}")

    def _surroundings(self, beta: float, *, bonus: bool) -> Surroundings:
        keys = self.keys
        batch, group = (self._text(f"actor.{n}.std_level") for n in ("adv_norm", "reward_norm"))
        divided: Literal["nothing", "group_std", "batch_std"] | None = "nothing"
        because, includes, notes = "", True, []
        if batch in ("batch", "group"):
            divided = "batch_std" if batch == "batch" else "group_std"
            because = f"actor.adv_norm.std_level {batch}"
        elif group in ("batch", "group"):
            divided, includes = ("batch_std" if group == "batch" else "group_std"), False
            because = f"actor.reward_norm.std_level {group}"
        if batch in ("batch", "group") and group in ("batch", "group"):
            notes.append(
                f"the reward, and not the KL, is divided by the {group}'s standard deviation "
                "(actor.reward_norm) before the KL is added"
            )
        scale = keys.number("actor.reward_scaling")
        if scale not in (None, 1.0) and beta:
            notes.append(
                f"actor.reward_scaling multiplies the reward by {scale:g} and not the KL: β counts "
                f"{1 / scale:.3g} times as much, unless the reward is normalised after it"
                if scale
                else "actor.reward_scaling is 0: the KL is alone"
            )
        sequence = keys.text("actor.importance_sampling_level") == "sequence"
        sapo = keys.switch("actor.use_sapo_loss")
        decoupled, recomputed = keys.switch(DECOUPLED), keys.switch(RECOMPUTED)
        ratio: Literal["token", "sequence_mean", "none"] = "token"
        if sequence:
            ratio = "sequence_mean"
        elif recomputed and not decoupled and keys.number(LAG):
            ratio = "none"
        low, high = keys.number("actor.eps_clip"), keys.number("actor.eps_clip_higher")
        if decoupled and beta and not bonus:
            notes.append(
                "the KL is of the rollout engine's log-probabilities, so that their mismatch to "
                f"the trainer's counts as KL ({DECOUPLED})"
            )
        level = self._text("actor.reward_norm.mean_level")
        return Surroundings(
            advantage_divided_by=divided,
            division_includes_kl=includes,
            divided_because=because,
            own_rollout_in_mean=level == "group"
            and self._text("actor.reward_norm.mean_leave1out") != "true",
            baseline_includes_kl=False,
            loss_mode="SAPO" if sapo else "GSPO" if sequence else "",
            ratio=ratio,
            clip=clip_range(low, high, symmetric=True),
            one_update=bool(decoupled or recomputed)
            and keys.number(MINIBATCHES) == 1
            and (not keys.given.get(PROXIMAL) or keys.text(PROXIMAL) == "recompute"),
            correction="the weights of the decoupled loss against the rollout engine"
            if decoupled
            else "",
            entropy=beta if bonus else 0.0,
            discount=self.discounts({key: key for key in ("actor.discount", "actor.gae_lambda")}),
            clamp=UNCLAMPED if bonus else Clamp(value=10.0),
            notes=tuple(notes),
        )

    def _assumed(self) -> Iterator[str]:
        yield from self.keys.assumes
        own = re.match(r"(\./)?examples/", self.entry or "examples/")
        if self.launch.words and not own:
            yield f"{shown(self.entry)} trains with AReaL's own trainer"

    def _rules(self) -> Iterator[Rule]:
        code = f"AReaL {self.basis.version}, areal/trainer/ppo/actor.py: _compute_advantages"
        yield Rule(
            "the KL is subtracted from the reward of each token and summed by GAE; no KL is in the "
            "loss",
            code,
        )
        yield Rule(f"{BETA} is 0.1 and {TYPE} k1 unless given", f"AReaL, {SOURCE}: PPOActorConfig")
        yield Rule("without `ref:` the reference's log-probabilities are zeros", code)

    def _changes(self, reward: InReward, *, bonus: bool) -> Iterator[LaunchChange]:
        if bonus:
            yield LaunchChange("no bonus", (self.put(BETA, "0.0"),))
        elif reward.active and reward.estimator != "k1":
            yield LaunchChange("k1 in the reward", (self.put(TYPE, "k1"),))


_ACTOR = "areal/trainer/ppo/actor.py, 1.0.4"
LOGGED = LoggedMetrics(
    (
        LoggedMetric(
            "ppo_actor/kl_rewards/avg",
            "",
            "the penalty in the reward, -kl_ctl times the estimate of kl_estimator, averaged over "
            "tokens: β is in it and it is negative. Without `ref:` it is -kl_ctl times log π, an "
            "entropy bonus and no KL",
            f"{_ACTOR}: _compute_advantages",
        ),
        LoggedMetric(
            "ppo_actor/update/approx_kl/avg",
            "",
            "no KL to the reference policy: the mean over tokens of log π - log π_proximal, so of "
            "minus k1 between the policy before the update and the policy",
            "areal/utils/functional/functional.py, ppo_actor_loss_fn, 1.0.4",
        ),
        LoggedMetric(
            "ppo_actor/update/behave_approx_kl/avg",
            "",
            "no KL to the reference policy: the mean over tokens of log π_proximal minus the log "
            "of the policy that sampled (staleness and rounding)",
            "areal/utils/functional/functional.py, ppo_actor_loss_fn, 1.0.4",
        ),
        LoggedMetric("ppo_actor/task_reward/avg", "train/reward_mean"),
        LoggedMetric("ppo_actor/update/entropy/avg", "train/entropy"),
        LoggedMetric("ppo_actor/update/actor_loss/avg", "train/policy_loss"),
        LoggedMetric("ppo_actor/update/clip_ratio/avg", "train/clip_fraction"),
    ),
    steps="a step is a rollout batch, which may be several train steps",
    launch=as_document,
    owns=having("actor.kl_ctl"),
)
"""The metrics that AReaL logs."""

READER = ReadLibrary(
    "areal",
    "AReaL",
    ReleaseMarks(
        hint=r"areal\.\w*\.?launcher|max_head_offpolicyness|kl_ctl|--config[ =]\S+\.ya?ml",
        distributions=("areal",),
        repositories=("AReaL",),
        files=(ReleaseFile("areal", "pyproject.toml", needs="areal"),),
    ),
    ESTIMATORS,
    audit,
    LOGGED,
)
