"""Read the KL that a launch of open-instruct's GRPO asks for, release by release.

Source: open-instruct 0.1.0 to 0.3.0: open_instruct/grpo_fast.py and grpo_utils.py (the arguments,
compute_grpo_loss), model_utils.py (estimate_kl), data_loader.py. keys.json holds the fields of its
argument classes. Before December 2025 the estimators were named kl1 to kl4, in version 0.1.0 too.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from orchestrator.audit.reading import (
    Keys,
    ReadLibrary,
    StockReader,
    clip_range,
    from_old_samples,
    shown,
    stock,
    written_flags,
)
from orchestrator.kl.estimators import Clamp
from orchestrator.library.key_tables import KeyTables, Option, fields, load_tables
from orchestrator.library.launches import (
    CommandWord,
    Decided,
    Divisor,
    InLoss,
    InReward,
    Launch,
    LaunchChange,
    LaunchReading,
    Surroundings,
    TrainingRegime,
)
from orchestrator.library.logged import LoggedMetric, LoggedMetrics
from orchestrator.library.release_marks import ReleaseFile, ReleaseMarks

BETA, TYPE, LOADED = "beta", "kl_estimator", "load_ref_policy"
ESTIMATORS = {
    "0": "k1",
    "1": "k2",
    "2": "k3",
    "3": "rho_k1",
    "kl1": "k1",
    "kl2": "k2",
    "kl3": "k3",
    "kl4": "rho_k1",
}
OLD = "before December 2025"
SOURCES = ("open_instruct/grpo_fast.py", "open_instruct/grpo_utils.py")
"""Files of a checkout that have had the arguments, the older first."""
GROUP, AHEAD = "num_samples_per_prompt_rollout", "async_steps"
_ENTRY = re.compile(r"open_instruct[./](grpo_fast|grpo)(\.py)?$")
_NORMALISATION: dict[str, Divisor] = {"standard": "group_std", "centered": "nothing"}


def tables() -> KeyTables:
    """Return the options of every release."""
    return load_tables(Path(__file__).with_name("keys.json"))


def audit(launch: Launch) -> LaunchReading | None:
    """Return the audit's reading of a launch; None if it starts no GRPO of open-instruct."""
    entry, rest = _entry(launch.words)
    if entry is None and (launch.words or "num_unique_prompts_rollout" not in launch.in_files):
        return None
    given = written_flags(rest, dashes=False)
    # A checkout's pyproject.toml does not tell its release: it says 0.1.0 since January 2025, and
    # the estimators lost their names in December.
    own = next((each for each in SOURCES if _options(launch.beside.get(each) or "")), "")
    basis = stock(launch, "open_instruct", tables(), given, own, _options)
    if basis.is_own and basis.defaults.get(TYPE, "").startswith("kl"):
        basis = basis._replace(version=OLD)
    elif any(each.text.startswith("kl") for each in given.get(TYPE, ())) and not basis.named:
        because = "its --kl_estimator has a name that December 2025 replaced by a number"
        basis = basis._replace(version=OLD, because=because)
    keys = Keys(basis.defaults)
    keys.add_documents(launch.documents)
    for name, values in given.items():
        keys.given.setdefault(name, []).extend(values)
    # utils.py: ArgumentParserPlus takes a YAML file as its first argument.
    file = rest[0] if rest and not rest[0].text.startswith("-") else None
    keys.opaque = launch.open_end
    if file is not None and not launch.documents:
        named = shown(file.text) or next(iter(file.why), "its first argument")
        keys.opaque = f"it may come from the file {named}"
    reading = _Reader(launch, keys, entry or "", basis).reading()
    has_table = basis.version != OLD or basis.is_own
    return reading if has_table else replace(reading, held=None)


def _options(text: str) -> Mapping[str, Option]:
    """Return the options in a checkout's file: of one from before the first release all of them,
    else those that some release has, too; others are a fork's."""
    known = tables().merged()
    read = {**fields(text, "GRPOExperimentConfig"), **fields(text, "ExperimentConfig")}
    return fields(text, "Args") or {key: read[key] for key in read if known.has(key)}


def _entry(words: Sequence[CommandWord]) -> tuple[str | None, Sequence[CommandWord]]:
    """Return the program and its words, after a wrapper such as mason.py or ray_node_setup.sh."""
    for i, word in enumerate(words):
        if _ENTRY.search(word.text):
            rest = words[i + 1 :]
            end = next((j for j, each in enumerate(rest) if each.text in ("&&", ";")), len(rest))
            return word.text, rest[:end]
    return None, ()


class _Reader(StockReader):
    """A reader of one launch of open-instruct under the rules of one release."""

    library = "open_instruct"
    title = "open-instruct"
    written = "--{key} {value}"

    def reading(self) -> LaunchReading:
        keys = self.keys
        self.written = self.written if self.entry else StockReader.written
        beta, loaded = self.number(BETA), keys.switch(LOADED)
        on = None if beta is None else beta != 0
        loss = InLoss(False, beta=beta)
        if on is not False and loaded is not False:
            loss = InLoss(on, self.estimator(TYPE, ESTIMATORS), beta)
        if on and loaded is False and keys.has(BETA):
            text = f"--{BETA} asks for a KL, and --{LOADED} false leaves no reference policy for it"
            self.note(text, BETA, LOADED)
        self.notes += keys.doubled((BETA, TYPE))
        self.sources["loss"] = "open_instruct/model_utils.py: estimate_kl"
        return self.found(
            InReward(False),
            loss,
            own_release=self.basis.is_own,
            advantage_estimator="grpo",
            group_size=keys.integer(GROUP),
            changes=self._changes(loss),
            regime=self._regime(),
            surroundings=self._surroundings(),
            held=self.basis.held(keys.given, "argparse", "open-instruct"),
            decided=self._decided(loss),
        )

    def _decided(self, loss: InLoss) -> Decided | None:
        """Return the verdict of a ratio that is not to the policy that sampled."""
        regime = self._regime()
        sampled = self.keys.switch("use_vllm_logprobs")
        if self.unknown or loss.estimator != "rho_k1" or sampled or regime.on_policy is not False:
            return None
        return from_old_samples(loss, regime.why)

    def _regime(self) -> TrainingRegime:
        keys = self.keys
        ahead = keys.number(AHEAD)
        if ahead is None:
            return TrainingRegime(None, keys.why_unknown(AHEAD))
        epochs, parts = keys.number("num_epochs"), keys.number("num_mini_batches")
        of_steps = TrainingRegime.of_steps((epochs or 1) * (parts or 1))
        if ahead > 0:
            return of_steps.behind(f"responses are sampled {ahead:g} steps ahead (--{AHEAD})")
        return of_steps if parts else TrainingRegime(None, keys.why_unknown("num_mini_batches"))

    def _surroundings(self) -> Surroundings:
        keys, unread = self.keys, self.unread
        kind = keys.text("advantage_normalization_type") or ""
        divided = _NORMALISATION.get(kind)
        if divided is None:
            unread.append(f"--advantage_normalization_type {kind} leaves the KL as it is")
        cap = "truncated_importance_sampling_ratio_cap"
        capped = keys.has(cap) and (keys.number(cap) or 0) > 0
        corrected = keys.switch("use_rho_correction") or capped
        sampled = keys.switch("use_vllm_logprobs")
        unweighed = not corrected and not sampled and (keys.number(AHEAD) or 0) > 0
        moves = ""
        if frequency := keys.number("ref_policy_update_freq"):
            moves = (
                f"every {frequency:g} steps it becomes {keys.text('alpha') or '…'} of the policy "
                "and the rest of itself (--alpha, --ref_policy_update_freq)"
            )
        mean = keys.text("loss_denominator")
        name = keys.text("loss_fn", None if keys.opaque else "dapo") or ""
        loss = "ppo" if name == "dapo" else name
        return Surroundings(
            advantage_divided_by=divided,
            divisor_n=True,  # numpy's
            division_includes_kl=False,
            divided_because=f"--advantage_normalization_type {kind}",
            own_rollout_in_mean=True,
            baseline_includes_kl=False,
            policy_loss=loss,
            ratio="none" if unweighed else self.ratio(loss, name),
            clip=clip_range(keys.number("clip_lower"), keys.number("clip_higher")),
            one_update=not sampled
            and (keys.number("num_epochs") or 1) * (keys.number("num_mini_batches") or 0) == 1,
            correction="truncated importance sampling against the rollout engine"
            if corrected
            else "",
            aggregation_because=f"--loss_denominator {mean}" if mean not in (None, "token") else "",
            clamp=Clamp(log_ratio=40.0),
            moving_reference=moves,
            unread=tuple(unread),
        )

    def _changes(self, loss: InLoss) -> Iterator[LaunchChange]:
        names = ("kl2", "kl4") if self.basis.version == OLD else ("1", "3")
        if loss.active:
            for name in names:
                yield LaunchChange(f"{ESTIMATORS[name]} in the loss", (self.put(TYPE, name),))


_STATS = "open_instruct/grpo_utils.py, populate_sample_loss_stats; model_utils.py, estimate_kl"
_AVERAGE = "averaged over the batch's tokens, with the log-ratio clamped to 40"
LOGGED = LoggedMetrics(
    (
        LoggedMetric(
            "objective/kl0_avg",
            "train/kl_reference_per_token",
            f"KL to the reference policy: k1, {_AVERAGE}",
            _STATS,
        ),
        LoggedMetric(
            "objective/kl1_avg",
            "",
            f"half the squared log-ratio to the reference (k2), {_AVERAGE}",
            _STATS,
        ),
        LoggedMetric(
            "objective/kl2_avg", "", f"KL to the reference policy: k3, {_AVERAGE}", _STATS
        ),
        LoggedMetric(
            "objective/kl3_avg",
            "",
            f"KL to the reference policy: k1 times the importance ratio, {_AVERAGE}",
            _STATS,
        ),
        LoggedMetric(
            "loss/kl_avg",
            "",
            "the estimate that kl_estimator names, times β: β is in it",
            _STATS,
        ),
        LoggedMetric("scores", "train/reward_mean"),
        LoggedMetric("loss/policy_avg", "train/policy_loss"),
        LoggedMetric("policy/clipfrac_avg", "train/clip_fraction"),
        LoggedMetric("policy/entropy_avg", "train/entropy"),
    ),
    step_names=("training_step",),
)
"""The metrics that open-instruct's grpo_fast.py logs."""


def _unnamed(
    text: Callable[[str], str | None], releases: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    """Yield the release of a checkout whose version only git knows: 0.3.0, by a setting of it."""
    source = "open_instruct/grpo_utils.py"
    if "open_instruct" not in releases and "use_rho_correction" in (text(source) or ""):
        yield "open_instruct", f"0.3.0 {source} beside it has use_rho_correction"


READER = ReadLibrary(
    "open_instruct",
    "open-instruct",
    ReleaseMarks(
        hint=r"open_instruct[./](?:grpo|ppo)",
        aliases=("open-instruct",),
        repositories=("open-instruct",),
        files=(ReleaseFile("open_instruct", "pyproject.toml", needs="open_instruct"),),
        amended=_unnamed,
    ),
    ESTIMATORS,
    audit,
    LOGGED,
)
