"""Read the KL that a launch of ms-swift's GRPO asks for, release by release.

Source: ms-swift 3.6.0 to 4.5.2: swift/rlhf_trainers/grpo_trainer.py (before 4.0 swift/trainers/
rlhf_trainer/), swift/rl_core/grpo_algorithm.py (compute_advantages), swift/arguments/rlhf_args.py
(_init_grpo). keys.json holds the fields of its argument classes; of the options of transformers and
TRL, which share the command, only the names are known.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

from orchestrator.audit.reading import (
    Keys,
    ReadLibrary,
    ReleaseReader,
    Stock,
    clip_range,
    stock,
    written_flags,
)
from orchestrator.kl.estimators import Clamp, Correction, EngineWeight
from orchestrator.library.key_tables import KeyTables, load_tables
from orchestrator.library.launches import (
    CommandWord,
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
from orchestrator.library.logged import LoggedMetric, LoggedMetrics, as_flags, having
from orchestrator.library.release_marks import ReleaseFile, ReleaseMarks

BETA, IN_REWARD, ADVANTAGE, SCALE = "beta", "kl_in_reward", "advantage_estimator", "scale_rewards"
DEFAULT_BETA = "0.04"
"""The beta that _init_grpo sets if it is None."""
GROUP = "num_generations"
_WEIGHTS: Mapping[str, Correction] = {"token_truncate": "tis_token", "token_mask": "mis_token"}
"""rollout_importance_sampling_mode -> the laboratory's weight, which is of tokens only."""
_DIVISORS: dict[str, Literal["nothing", "group_std", "batch_std"]] = {
    "none": "nothing",
    "group": "group_std",
    "batch": "batch_std",
}
"""Value of --scale_rewards -> the divisor of the advantage."""
_ENTRY = re.compile(r"(^|/)(rlhf\.py|swift|megatron)$")


def tables() -> KeyTables:
    """Return the options of every release."""
    return load_tables(Path(__file__).with_name("keys.json"))


def audit(launch: Launch) -> LaunchReading | None:
    """Return the audit's reading of a launch; None if it starts no GRPO of ms-swift."""
    entry, rest = _entry(launch.words)
    if entry is None:
        return None
    given = written_flags(rest, dashes=False)
    for document in launch.documents:
        for key, value in document.values.items():
            given.setdefault(key, [value])
    named = given.get("rlhf_type")
    if named is None or named[-1].text != "grpo":
        return None
    basis = stock(launch, "ms_swift", tables(), given)
    keys = Keys({**basis.defaults, BETA: DEFAULT_BETA, "gradient_accumulation_steps": "1"}, given)
    files = [w.text for w in rest if w.text.endswith((".yaml", ".yml", ".json"))]
    if files and not launch.documents and ("config" in given or rest[0].text == files[0]):
        keys.opaque = f"it may come from {files[0]}, which could not be read"
    keys.opaque = launch.open_end or keys.opaque
    return _Reader(launch, keys, entry, basis).reading()


def _entry(words: Sequence[CommandWord]) -> tuple[str | None, Sequence[CommandWord]]:
    for i, word in enumerate(words):
        match = _ENTRY.search(word.text)
        if match is None:
            continue
        if match[2] == "rlhf.py" and ("swift" in word.text or "cli" in word.text):
            return word.text, words[i + 1 :]
        if match[2] != "rlhf.py" and i + 1 < len(words) and words[i + 1].text == "rlhf":
            return f"{match[2]} rlhf", words[i + 2 :]
    return None, ()


class _Reader(ReleaseReader):
    """A reader of one launch of ms-swift under the rules of one release."""

    written = "--{key} {value}"

    def __init__(self, launch: Launch, keys: Keys, entry: str, basis: Stock) -> None:
        super().__init__(launch, keys, entry, basis)
        self.advantage = self._chosen(ADVANTAGE, "grpo")

    def _chosen(self, key: str, otherwise: str) -> str:
        """Return the value of a key, or `otherwise`, which the release sets without one."""
        if key not in self.basis.facts:
            return otherwise
        text = self.keys.text(key)
        if text is None:
            self.unknown.append(self.keys.why_unknown(key))
        return otherwise if text in (None, "null") else (text or otherwise)

    def reading(self) -> LaunchReading:
        keys = self.keys
        beta = self.number(BETA)
        on = None if beta is None else beta != 0
        default = "false" if self.advantage == "grpo" else "true"
        in_reward = self._chosen(IN_REWARD, default).lower() == "true"
        reward, loss = InReward(False), InLoss(False, beta=beta)
        if on is not False and in_reward:
            reward, loss = InReward(on, "k1", beta), InLoss(False)
        elif on is not False:
            loss = InLoss(on, "k3", beta)
        if any(key.startswith("teacher_model") for key in keys.given):
            self.unknown.append("--teacher_model adds a KL to a teacher, which orch does not read")
        return LaunchReading(
            library="ms_swift",
            version=self.basis.version,
            version_because=self.basis.because,
            entry_point=self.entry,
            in_reward=reward,
            in_loss=loss,
            advantage_estimator=self.advantage,
            reference_policy_loaded=on,
            group_size=keys.integer(GROUP),
            inactive=tuple(self._inactive(on)),
            contradictions=tuple(keys.doubled((BETA, IN_REWARD, ADVANTAGE))),
            settings=tuple(keys.settings),
            rules=tuple(self._rules()),
            changes=tuple(self._changes(loss)),
            assumes=tuple(self._assumed()),
            unknown=tuple(dict.fromkeys(self.unknown)),
            possibilities=self.possibilities(),
            regime=self._regime(),
            surroundings=self._surroundings(),
            held=self.basis.held(keys.given, "argparse", "ms-swift"),
        )

    def _inactive(self, on: bool | None) -> Iterator[Inactive]:
        if on is False:
            for each in self.keys.inert(IN_REWARD, "--beta is 0, which switches every KL off"):
                yield Inactive(f"--{each.flag}", each.why, each.lines)

    def _regime(self) -> TrainingRegime:
        keys = self.keys
        if keys.switch("async_generate"):
            why = "--async_generate samples the next batch while it trains on this one"
            return TrainingRegime(False, why)
        iterations = keys.number("num_iterations")
        if iterations is None:
            return TrainingRegime(None, keys.why_unknown("num_iterations"))
        if self.entry.startswith("megatron"):
            return self._megatron_regime(iterations)
        accumulated = keys.number("gradient_accumulation_steps")
        per_generation = keys.last("steps_per_generation")
        if keys.has("generation_batch_size") and per_generation is None:
            return TrainingRegime(None, "--generation_batch_size and the number of GPUs decide it")
        steps = keys.number("steps_per_generation") if per_generation is not None else accumulated
        if not accumulated or not steps:
            unread = "steps_per_generation" if accumulated else "gradient_accumulation_steps"
            return TrainingRegime(None, keys.why_unknown(unread))
        updates = iterations * max(steps // accumulated, 1)
        sizes = (
            f"--num_iterations {iterations:g} × --steps_per_generation {steps:g} / "
            f"--gradient_accumulation_steps {accumulated:g}"
        )
        return TrainingRegime.of_steps(updates, sizes)

    def _megatron_regime(self, iterations: float) -> TrainingRegime:
        steps = self.keys.last("steps_per_generation")
        if iterations <= 1 and (steps is None or steps.text == "1"):
            if self.keys.has("generation_batch_size"):
                return TrainingRegime(None, "--generation_batch_size over --global_batch_size")
            return TrainingRegime.of_steps(1)
        text = f"--steps_per_generation {steps.text if steps else 1}"
        return TrainingRegime(False, f"{text}, --num_iterations {iterations:g}")

    def _surroundings(self) -> Surroundings:
        keys, unread = self.keys, []
        default = {"grpo": "group", "rloo": "none", "reinforce_plus_plus": "batch"}
        scale = self._chosen(SCALE, default.get(self.advantage, "")).lower()
        scale = {"true": "group", "false": "none"}.get(scale, scale)
        divided = _DIVISORS.get(scale)
        if divided is None:
            unread.append(f"--{SCALE} {scale} leaves the KL as it is")
        level = keys.text("importance_sampling_level") or "token"
        kind = (keys.text("loss_type") or "grpo").strip("[]'\" ")
        kind = "grpo" if kind == "null" else kind
        mode = {"cispo": "CISPO", "sapo": "SAPO", "real": "REAL", "fipo": "FIPO"}.get(kind, "")
        ratio: Literal["token", "sequence_mean", "none"] = "token"
        if level.startswith("sequence"):
            ratio, mode = "sequence_mean", mode or "GSPO"
        correction, weight = "", None
        sampling = self._chosen("rollout_importance_sampling_mode", "null")
        if sampling != "null" and keys.text("disable_rollout_importance_sampling") != "true":
            correction = f"importance sampling against the rollout engine ({sampling})"
            most = keys.number("rollout_importance_sampling_threshold")
            if sampling in _WEIGHTS and most:
                weight = EngineWeight(_WEIGHTS[sampling], 0.0, most)
        if keys.switch("async_generate") and not correction:
            ratio = "none"
        moves = ""
        if keys.switch("sync_ref_model"):
            steps, alpha = keys.text("ref_model_sync_steps"), keys.text("ref_model_mixup_alpha")
            moves = (
                f"every {steps or '…'} steps it becomes {alpha or '…'} of the policy and the rest "
                "of itself (--sync_ref_model)"
            )
        low, high = keys.number("epsilon"), keys.number("epsilon_high")
        return Surroundings(
            advantage_divided_by=divided,
            divided_because=f"--{SCALE} {scale}",
            own_rollout_in_mean=self.advantage == "grpo",
            loss_mode=mode,
            ratio=ratio,
            clip=clip_range(low, high, symmetric=True),
            correction=correction,
            engine_weight=weight,
            correction_includes_kl=True,
            length_weighted=kind in ("grpo", "sapo"),
            aggregation_because=f"--loss_type {kind}" if kind in ("grpo", "sapo") else "",
            clamp=Clamp(20.0, 10.0),
            clamp_of=("k3",),
            moving_reference=moves,
            unread=tuple(unread),
        )

    def _assumed(self) -> Iterator[str]:
        yield from self.keys.assumes
        if self.keys.has("loss_scale"):
            yield "--loss_scale weighs no token of the KL"

    def _rules(self) -> Iterator[Rule]:
        code = f"ms-swift {self.basis.version}, swift/rlhf_trainers/grpo_trainer.py"
        yield Rule(
            f"--{BETA} is {DEFAULT_BETA} unless given", "swift/arguments/rlhf_args.py: _init_grpo"
        )
        yield Rule("the KL in the loss is k3, whatever else is given", f"{code}: _compute_loss")
        if IN_REWARD in self.basis.facts:
            yield Rule(
                f"--{IN_REWARD} sums k1 over the response and takes it off the reward before the "
                "baseline; it is on by default for rloo and reinforce_plus_plus",
                f"{code}: _compute_advantages",
            )

    def _changes(self, loss: InLoss) -> Iterator[LaunchChange]:
        if IN_REWARD in self.basis.facts:
            needed = (self.put(IN_REWARD, "true"),) if loss.active else ()
            yield LaunchChange("k1 in the reward", (*needed, self.put(SCALE, "none")))


LOGGED = LoggedMetrics(
    (
        LoggedMetric(
            "kl",
            "train/kl_term",
            "KL to the reference policy: k3 of each token, averaged over each process's tokens, "
            "then over processes; β is not in it",
            "swift/rlhf_trainers/grpo_trainer.py, 4.5.2",
            place="loss",
        ),
        LoggedMetric(
            "kl",
            "train/kl_reference",
            "KL to the reference policy: k1 of the old policy summed over a response, "
            "averaged over "
            "responses (with --kl_in_reward)",
            "swift/rlhf_trainers/grpo_trainer.py, 4.5.2",
            place="reward",
        ),
        LoggedMetric("reward", "train/reward_mean"),
        LoggedMetric("entropy/mean", "train/entropy"),
        LoggedMetric("grad_norm", "train/grad_norm"),
        LoggedMetric("learning_rate", "train/learning_rate"),
        LoggedMetric("clip_ratio/region_mean", "train/clip_fraction"),
        LoggedMetric("completions/mean_length", "rollout/response_tokens"),
    ),
    prefixes=("train/",),
    launch=as_flags(("swift", "rlhf"), dashes=False),
    step_names=("train/global_step",),
    owns=having("rlhf_type"),
)
"""The metrics of ms-swift's GRPO trainer. Transformers' loggers put `train/` before a name."""

READER = ReadLibrary(
    "ms_swift",
    "ms-swift",
    ReleaseMarks(
        hint=r"rlhf_type|swift rlhf|megatron rlhf",
        aliases=("ms-swift", "swift"),
        distributions=("ms-swift", "ms_swift"),
        repositories=("ms-swift",),
        files=(
            ReleaseFile(
                "ms_swift",
                "swift/version.py",
                pattern=re.compile(r"__version__ = ['\"](\d+\.\d+\.\d+)"),
            ),
        ),
    ),
    {"k1": "k1", "k3": "k3"},
    audit,
    LOGGED,
)
