"""Read the KL that a launch of slime, or of its fork miles, asks for, release by release.

Source: slime 0.1.0 to 0.3.1 and miles 0.1.0: slime/utils/arguments.py, slime/backends/
megatron_utils/loss.py (compute_advantages_and_returns, policy_loss_function), slime/utils/
ppo_utils.py, slime/ray/rollout.py (_post_process_rewards). keys.json holds the flags of each.
Megatron's flags share the command: of those only the names are known.
"""

import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

from orchestrator.audit.reading import (
    Keys,
    ReadLibrary,
    Stock,
    StockReader,
    clip_range,
    from_old_samples,
    has_hole,
    off_its_own_token,
    program_of,
    regime_of_rollouts,
    stock,
    written_flags,
)
from orchestrator.kl.estimators import UNCLAMPED, Clamp, EngineWeight, Ratio
from orchestrator.library.key_tables import KeyTables, load_tables, version_tuple
from orchestrator.library.launches import (
    Decided,
    Divisor,
    Edit,
    Inactive,
    InLoss,
    InReward,
    Launch,
    LaunchChange,
    LaunchReading,
    Surroundings,
    TrainingRegime,
)
from orchestrator.library.logged import LoggedMetric, LoggedMetrics
from orchestrator.library.release_marks import CommandCall, OwnHooks, ReleaseFile, ReleaseMarks

COEFFICIENT, USE_LOSS, LOSS_COEFFICIENT = "kl-coef", "use-kl-loss", "kl-loss-coef"
TYPE, UNBIASED, ADVANTAGE = "kl-loss-type", "use-unbiased-kl", "advantage-estimator"
ESTIMATORS = {"k1": "k1", "kl": "k1", "k2": "k2", "k3": "k3", "low_var_kl": "k3"}
GROUPED = ("grpo", "gspo", "cispo")
"""Advantage estimators that use only the shape of the KL, not its values (get_grpo_returns)."""
TO_GO = ("reinforce_plus_plus", "ppo")
TOKEN = "reinforce_plus_plus_baseline"  # noqa: S105  (not a password)
_NO_REWARD = "\n    scalar_rewards = [0.0] * len(samples)"
"""What the library's own function for --use-opd returns, slime 0.2.3 to 0.3.1."""
_OWN = re.compile(
    r"^--(advantage-estimator|actor-num-nodes|actor-num-gpus-per-node|rollout-num-gpus"
    r"|n-samples-per-prompt|rollout-function-path|hf-checkpoint)(=|$)"
)
_STOCK_ROLLOUT = re.compile(r"(slime|miles)\.rollout\.\w*rollout\.")
_LEAVE_THE_KL = ("custom-config-path", "megatron-config-path", "rollout-data-postprocess-path")
_ENTRY = re.compile(r"(^|/)[\w.-]*train[\w-]*\.py$")
_VERSION = re.compile(r"""version\s*=\s*["'](\d+\.\d+\.\d+)""")
CODE = {
    "slime": "slime/backends/megatron_utils/loss.py",
    "miles": "miles/backends/training_utils/loss_hub/losses.py",
}
FIRST_DROPPING = (0, 2, 3)
"""The first release that parses with ignore_unknown_args."""
POST = "custom-reward-post-process-path"
_CUSTOM = ("custom-advantage-function-path", "custom-loss-function-path")


@cache
def tables(library: str = "slime") -> KeyTables:
    """Return the flags of every release of slime, or of its fork."""
    whole = load_tables(Path(__file__).with_name("keys.json"), ("sglang-", "router-"))
    if library == "slime":
        return whole
    own = load_tables(Path(__file__).with_name("miles.json"), whole.added)
    return replace(own, passed=whole.passed)


def audit(launch: Launch) -> LaunchReading | None:
    """Return the audit's reading of a launch; None if it starts no RL training of slime."""
    entry, rest = program_of(launch.words, _ENTRY)
    if not entry or not any(_OWN.match(word.text) for word in launch.words):
        return None
    library = _library(launch)
    table = tables(library)
    switches = [key for key, fact in table.facts[-1].items() if fact.kind == "switch"]
    given = written_flags(rest, switches)
    if any(each.text == "sft_loss" for each in given.get("loss-type", ())):
        return None
    basis = stock(launch, library, table, given, f"{library}/utils/arguments.py")
    keys = Keys(basis.defaults, given)
    keys.opaque = launch.open_end or (has_hole(rest) if not keys.has(ADVANTAGE) else "")
    return _Reader(launch, keys, entry, library, basis).reading()


def _library(launch: Launch) -> str:
    """Return `miles` for a launch that names it or lies in its project, else `slime`."""
    names = "miles" in launch.versions or any("miles" in word.text for word in launch.words)
    beside = launch.beside.get("miles/utils/arguments.py") is not None
    return "miles" if names or beside else "slime"


class _Reader(StockReader):
    """A reader of one launch of slime under the rules of one release."""

    library = "slime"
    written = "--{key} {value}"

    def __init__(self, launch: Launch, keys: Keys, entry: str, fork: str, basis: Stock) -> None:
        super().__init__(launch, keys, entry, basis)
        self.title = self.fork = fork
        """`slime`, or `miles`."""
        self.advantage = keys.text(ADVANTAGE)
        self.ahead = self._ahead()
        own = ("rollout-function-path", "custom-generate-function-path")
        named = (f"--{flag} {keys.text(flag) or '…'}" for flag in own if keys.has(flag))
        self.sampler = ", ".join(each for each in named if not _STOCK_ROLLOUT.search(each))
        """The functions that make the samples in place of slime's; empty without one."""
        self.to_sampler = keys.has("use-rollout-logprobs") or keys.has("keep-old-actor")
        """True if ratios are to the policy that sampled. Otherwise, where that one is older, the
        ratio of --use-unbiased-kl is 1 and its gradient the score: k3 gets k2's gradient."""
        self.is_late = bool(self.ahead) and not self.to_sampler

    def reading(self) -> LaunchReading:
        keys = self.keys
        reward, loss, of_steps = self._in_reward(), self._in_loss(), self._of_steps()
        decided = self._decided(reward, loss)
        if decided is not None and not reward.active and not loss.active:
            reward = InReward(True, "k1", keys.number("opd-kl-coef") or 1.0)
        self.sources = {
            "reward": f"{CODE[self.fork]}: compute_advantages_and_returns",
            "loss": f"{CODE[self.fork]}: policy_loss_function",
        }
        self._contradictions()
        is_fork = self.fork != self.library
        if is_fork:
            self.version = f"({self.fork} {self.version})"
        # Some releases drop unknown flags and do not refuse them.
        drops = not is_fork and version_tuple(self.basis.version) >= FIRST_DROPPING
        return self.found(
            reward,
            loss,
            advantage_estimator=self.advantage,
            group_size=keys.integer("n-samples-per-prompt"),
            inactive=self._inactive(),
            changes=self._changes(loss),
            assumes=self._assumed(reward, loss),
            sampler=self.sampler,
            regime=of_steps.behind(self.ahead) if self.ahead else of_steps,
            surroundings=self._surroundings(loss, of_steps.on_policy),
            held=self.basis.held(
                keys.given, "argparse", self.fork, ignoring=("",) if drops else ()
            ),
            decided=decided,
        )

    def _in_reward(self) -> InReward:
        beta = self.number(COEFFICIENT)
        if beta is None:
            return InReward(None)
        if beta == 0 or self.advantage in GROUPED:
            return InReward(False, beta=beta or None)
        if self.advantage not in (*TO_GO, TOKEN):
            self.unknown.append(
                f"the advantage estimator '{self.advantage or '…'}' is not slime's: its code says "
                "what becomes of the KL in the reward"
            )
        return InReward(True, self.estimator(TYPE, ESTIMATORS), beta)

    def _in_loss(self) -> InLoss:
        keys = self.keys
        on = self.switch(USE_LOSS)
        if not on:
            return InLoss(on)
        beta = self.number(LOSS_COEFFICIENT)
        if beta is None:
            return InLoss(None)
        if beta == 0:
            return InLoss(False, beta=0.0)
        estimator = self.estimator(TYPE, ESTIMATORS)
        if estimator == "k3" and keys.switch(UNBIASED) and self.is_late:
            return InLoss(True, estimator, beta, straight_through=True)
        if estimator is not None and keys.switch(UNBIASED):
            estimator = f"rho_{estimator}"
        for flag in _CUSTOM[1:]:
            if keys.has(flag) and keys.text("loss-type") == "custom_loss":
                self.unknown.append(f"--{flag} puts another loss in the place of slime's")
        return InLoss(True, estimator, beta)

    def _decided(self, reward: InReward, loss: InLoss) -> Decided | None:
        """Return the verdict and reason of a KL that reaches only its own token's advantage."""
        keys = self.keys
        distils = keys.switch("use-opd") and keys.number("opd-kl-coef") != 0
        distils = distils or self.advantage == "on_policy_distillation"
        if distils and (reward.active or loss.active):
            self.unknown.append("a KL to a teacher (--use-opd) and one to the reference policy")
        elif distils:
            return "teacher_kl", (
                "--use-opd takes log policy - log teacher off each token's advantage: the reverse "
                "KL of each token to the teacher"
            )
        is_rho = (loss.estimator or "").startswith("rho_")
        if loss.active and not reward.active and is_rho and self.is_late:
            return from_old_samples(loss, self.ahead)
        if reward.estimator == "k1" and self.advantage == TOKEN and not loss.active:
            return off_its_own_token(reward, TOKEN)
        return None

    def _inactive(self) -> Iterator[Inactive]:
        keys = self.keys
        if self.advantage in GROUPED and keys.number(COEFFICIENT):
            why = f"--{ADVANTAGE} {self.advantage} uses the KL in the reward for its shape alone"
            yield from keys.inert(why, COEFFICIENT, flag="--")
        if not keys.switch(USE_LOSS):
            why = f"it is for a KL in the loss, and --{USE_LOSS} is not given"
            yield from keys.inert(why, LOSS_COEFFICIENT, UNBIASED, flag="--")

    def _contradictions(self) -> None:
        keys = self.keys
        beta = keys.number(COEFFICIENT)
        if self.advantage in GROUPED and beta:
            text = (
                f"--{COEFFICIENT} {beta:g} asks for a KL in the reward, and the advantage of "
                f"{self.advantage} does not contain it (slime issue 397)"
            )
            self.note(text, COEFFICIENT)
        if beta and keys.number(LOSS_COEFFICIENT):
            text = f"--{COEFFICIENT} and --{LOSS_COEFFICIENT} are both set, which slime refuses"
            self.note(text, COEFFICIENT, LOSS_COEFFICIENT)
        wanted = (COEFFICIENT, USE_LOSS, LOSS_COEFFICIENT, TYPE, ADVANTAGE)
        self.notes += keys.doubled(wanted, "--")

    def _ahead(self) -> str:
        """Return the setting that lets an older policy sample rollouts; empty without one."""
        if "async" in self.entry.rpartition("/")[2]:
            return f"{self.entry} samples the next batch while it trains on this one"
        function = self.keys.last("rollout-function-path")
        if function is not None and "async" in function.text:
            return f"--rollout-function-path {function.text} samples while it trains"
        if self.keys.has("partial-rollout"):
            return "--partial-rollout continues responses that an older policy began"
        return ""

    def _of_steps(self) -> TrainingRegime:
        """Return the regime of the train steps alone, whoever sampled.

        A function of one's own may make several samples of a rollout, and each is trained on.
        """
        counted = self._counted_steps()
        if not self.sampler or self.keys.has("use-dynamic-global-batch-size"):
            return counted
        why = f"{counted.why}, if {self.sampler} makes one sample of each rollout"
        return replace(counted, on_policy=counted.on_policy and None, why=why, steps=None)

    def _counted_steps(self) -> TrainingRegime:
        """Return the regime of the train steps where each rollout is one sample."""
        keys = self.keys
        steps = keys.number("num-steps-per-rollout") if keys.has("num-steps-per-rollout") else None
        if steps is not None:
            return TrainingRegime.of_steps(steps, f"--num-steps-per-rollout {steps:g}")
        if keys.has("use-dynamic-global-batch-size"):
            return TrainingRegime.of_steps(1, "--use-dynamic-global-batch-size: all its samples")
        names = ("rollout-batch-size", "n-samples-per-prompt", "global-batch-size")
        return regime_of_rollouts(keys, *names, flag="--")

    def _surroundings(self, loss: InLoss, one_update: bool | None) -> Surroundings:
        """Return the surroundings of the KL. The group's mean and deviation are the reward's."""
        keys, unread, notes = self.keys, [], []
        grouped = self.advantage in (*GROUPED, TOKEN)
        own = keys.has(POST)
        normalised = grouped and not keys.switch("disable-rewards-normalization") and not own
        post = keys.text(POST) or ""
        code = self.launch.beside.get(f"{self.fork}/rollout/on_policy_distillation.py", _NO_REWARD)
        of_opd = f"{self.fork}.rollout.on_policy_distillation.post_process_rewards"
        is_0 = post == of_opd and _NO_REWARD in code
        if own and not is_0:
            unread.append(
                f"--{POST} leaves rewards as they are: its function takes the place of the group's "
                "normalisation"
            )
        size = keys.integer("n-samples-per-prompt")
        divided: Divisor = "nothing"
        because = f"--{ADVANTAGE} {self.advantage}"
        if keys.switch("normalize-advantages"):
            divided, because = "batch_std", "--normalize-advantages"
        elif normalised and self.advantage in GROUPED and size != 1:
            divided = "nothing" if keys.switch("disable-grpo-std-normalization") else "group_std"
        if keys.has(_CUSTOM[0]):
            unread.append(f"--{_CUSTOM[0]} leaves the KL to slime: its function makes advantages")
        token_mean = keys.switch("calculate-per-token-loss") or False
        reducer = keys.has("custom-pg-loss-reducer-function-path")
        ratio: Ratio = "none" if self.is_late and not keys.has("use-tis") else "token"
        moves = ""
        if keys.has("ref-update-interval"):
            moves = (
                f"every {keys.text('ref-update-interval') or '…'} rollouts it becomes a copy of "
                "the policy (--ref-update-interval)"
            )
        if loss.active and keys.switch(UNBIASED) and self.is_late:
            notes.append(
                "the ratio of --use-unbiased-kl is to the trainer's policy before the step, not to "
                "the older one that sampled, without --use-rollout-logprobs"
            )
        correction, weight = "", None
        least, most = keys.number("tis-clip-low"), keys.number("tis-clip")
        if keys.has("use-tis") and keys.has("custom-tis-function-path"):
            correction = f"the weights of {keys.text('custom-tis-function-path')}"
            unread.append(
                "--custom-tis-function-path masks few tokens: the loss, and the KL in it, is of "
                "those it keeps"
            )
        elif keys.has("use-tis"):
            correction = "token-level truncated importance sampling"
            weight = EngineWeight("tis_token", least, most) if most and least is not None else None
        return Surroundings(
            advantage_divided_by=divided,
            division_includes_kl=divided == "batch_std",
            divided_because=because,
            own_rollout_in_mean=normalised,
            baseline_includes_kl=False,
            policy_loss=self.advantage if self.advantage in ("gspo", "cispo") else "ppo",
            ratio="sequence_mean" if self.advantage == "gspo" else ratio,
            one_update=False if self.to_sampler else one_update,
            clip=clip_range(keys.number("eps-clip"), keys.number("eps-clip-high"), symmetric=True),
            correction=correction,
            engine_weight=weight,
            length_weighted=not token_mean,
            kl_loss_factor=None if reducer else 1.0,
            aggregation_because="--calculate-per-token-loss is not given" if not token_mean else "",
            entropy=keys.number("entropy-coef") or 0.0,
            discount=self._discount(),
            clamp=Clamp(value=10.0) if keys.text(TYPE) == "low_var_kl" else UNCLAMPED,
            moving_reference=moves,
            no_reward=f"--{POST} {post}" if is_0 else "",
            notes=tuple(notes),
            unread=tuple(unread),
        )

    def _discount(self) -> str:
        if self.advantage not in TO_GO:
            return ""
        names = ("gamma", "lambd") if self.advantage == "ppo" else ("gamma",)
        return self.discounts({name: f"--{name}" for name in names})

    def _assumed(self, reward: InReward, loss: InLoss) -> Iterator[str]:
        yield from self.keys.assumes
        for flag in _LEAVE_THE_KL:
            if self.keys.has(flag):
                yield f"--{flag} leaves the KL, and the tokens it is of, as they are"
        folder = self.keys.text("ref-load") or ""
        if (reward.active or loss.active) and re.fullmatch(r"\w[\w.-]*/[\w.-]+", folder):
            yield f"--ref-load {folder} is a folder: slime does not start with a name of the Hub"

    def _changes(self, loss: InLoss) -> Iterator[LaunchChange]:
        """Yield the changes to a term that is not criticised, the smallest first."""
        keys = self.keys
        to_k2 = self.put(TYPE, "k2")
        if loss.active:
            if keys.switch(UNBIASED):
                yield LaunchChange("k3 with the ratio", (Edit(TYPE, f"--{TYPE} k3"),))
            elif UNBIASED in self.basis.facts and loss.estimator == "k3":
                yield LaunchChange(
                    "k3 times the importance ratio", (Edit(UNBIASED, f"--{UNBIASED}"),)
                )
            yield LaunchChange("k2 in the loss", (to_k2,))
        elif (beta := keys.number(COEFFICIENT)) and self.advantage in GROUPED:
            out = Edit(COEFFICIENT, None, keys.lines(COEFFICIENT))
            on = Edit(USE_LOSS, f"--{USE_LOSS}", keys.lines(USE_LOSS)[:1])
            edits = (out, on, self.put(LOSS_COEFFICIENT, f"{beta:g}"), to_k2)
            yield LaunchChange("k2 in the loss", edits)
        elif beta:
            yield LaunchChange("k1 in the reward", (self.put(TYPE, "k1"),))


_LOSS = "slime/backends/megatron_utils/loss.py, policy_loss_function, 0.3.1"
LOGGED = LoggedMetrics(
    (
        LoggedMetric(
            "train/kl_loss",
            "train/kl_term",
            "KL to the reference policy, as --kl-loss-type estimates it (k1 unless given), times "
            "the importance ratio with --use-unbiased-kl: each response's mean over tokens, then "
            "the mean over responses, or over tokens with --calculate-per-token-loss; "
            "--kl-loss-coef is not in it, and may be 0",
            _LOSS,
        ),
        LoggedMetric(
            "train/ppo_kl",
            "",
            "no KL to the reference policy: the mean of log π_old - log π; with gspo, each "
            "response's own mean on all its tokens",
            _LOSS,
        ),
        LoggedMetric(
            "train/train_rollout_logprob_abs_diff",
            "",
            "no KL: the mean distance of the engine's log-probabilities from the trainer's",
            _LOSS,
        ),
        LoggedMetric("rollout/raw_reward", "train/reward_mean"),
        LoggedMetric("rollout/response_lengths", "rollout/response_tokens"),
        LoggedMetric("train/entropy_loss", "train/entropy"),
        LoggedMetric("train/pg_loss", "train/policy_loss"),
        LoggedMetric("train/pg_clipfrac", "train/clip_fraction"),
        LoggedMetric("train/grad_norm", "train/grad_norm"),
        LoggedMetric("train/lr-pg_0", "train/learning_rate"),
    ),
    step_names=("train/step", "rollout/step"),
)
"""The metrics that slime logs."""

READER = ReadLibrary(
    "slime",
    "slime",
    ReleaseMarks(
        hooks=OwnHooks(
            packages=("slime", "miles"),
            paths={
                "custom-loss-function-path": "loss",
                "custom-pg-loss-reducer-function-path": "loss",
                "custom-advantage-function-path": "advantage",
                POST: "advantage",
            },
            functions={"policy_loss_function": "loss", "compute_approx_kl": "trainer"},
            stock=r"(?:^|/)(?:train(?:_async)?|slime/rollout/on_policy_distillation)\.py$",
        ),
        hint=r"--advantage-estimator|--rollout-num-gpus|--kl-loss|--n-samples-per-prompt|train_async",
        distributions=("slime",),
        repositories=("slime",),
        files=(
            ReleaseFile("slime", "setup.py", needs="slime", pattern=_VERSION),
            ReleaseFile("slime", "slime/setup.py", needs="slime/slime", pattern=_VERSION),
            ReleaseFile("miles", "setup.py", needs="miles", pattern=_VERSION),
        ),
        command_calls=(CommandCall("execute_train", "train_args", "train_script", "train.py"),),
    ),
    ESTIMATORS,
    audit,
    LOGGED,
)
