"""Read the KL that any launch of OpenRLHF asks for, release by release.

Source: OpenRLHF 0.4.0 to 0.11.2: cli/train_ppo_ray.py, models/utils.py, trainer/ppo_utils/
experience_maker.py, trainer/ray/ppo_actor.py. keys.json in this folder lists the flags of each
release. In all of them the KL is on by default: in the reward, as k1 with coefficient 0.01.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

from backends.openrlhf.flags import FACTS, FIRST_DOTTED, NEWEST, is_read, own_tables
from backends.openrlhf.flags import FLAT as LAST_FLAT
from backends.openrlhf.manifest import MANIFEST, PLAIN_ESTIMATORS
from orchestrator.audit.libraries import found_beside
from orchestrator.audit.reading import (
    LONGEST_ENTRY,
    Keys,
    ReleaseReader,
    as_number,
    clip_range,
    regime_of_rollouts,
    truncated,
    written_flags,
)
from orchestrator.kl.estimators import UNCLAMPED, Clamp, Correction, EngineWeight, Ratio
from orchestrator.library.key_tables import (
    KeyTables,
    completed,
    has_all_flags,
    is_since,
    load_tables,
    merged_table,
)
from orchestrator.library.key_tables import (
    flags as parsed_flags,
)
from orchestrator.library.launches import (
    CommandWord,
    Divisor,
    Edit,
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

LEVEL, LEVEL_MODE = "algo.advantage.is_correction_level", "algo.advantage.is_correction_mode"
GATING = "algo.advantage.is_correction_gating"
LEVEL_BOUNDS = "algo.advantage.is_correction_threshold"
OPTIONS: Mapping[str, tuple[str, str, str | None]] = {
    "coefficient": ("init_kl_coef", "algo.kl.init_coef", "0.01"),
    "estimator": ("kl_estimator", "algo.kl.estimator", "k1"),
    "in_loss": ("use_kl_loss", "algo.kl.use_loss", "false"),
    "old_k3": ("use_kl_estimator_k3", "use_kl_estimator_k3", "false"),
    "unbiased": ("unbiased_gradient", "algo.kl.unbiased_gradient", "false"),
    "advantage": ("advantage_estimator", "algo.advantage.estimator", "gae"),
    "group": ("n_samples_per_prompt", "rollout.n_samples_per_prompt", "1"),
    "target": ("kl_target", "algo.kl.target", None),
    "rollouts": ("rollout_batch_size", "rollout.batch_size", "1024"),
    "batch": ("train_batch_size", "train.batch_size", "128"),
    "epochs": ("max_epochs", "train.max_epochs", "1"),
    "async": ("async_train", "train.async_enable", "false"),
    "partial": ("partial_rollout", "train.partial_rollout_enable", "false"),
    "mode": ("policy_loss_type", "actor.policy_loss_type", "ppo"),
    "no_std": ("no_advantage_std_norm", "algo.advantage.no_std_norm", "false"),
    "entropy": ("entropy_loss_coef", "actor.entropy_coef", "0"),
    "clip": ("eps_clip", "actor.eps_clip", "0.2"),
    "bounds": ("eps_clip_low_high", "actor.eps_clip_low_high", None),
    "aggregation": ("loss_agg_mode", "actor.loss_agg_mode", "token-mean"),
    "correction": ("enable_vllm_is_correction", "algo.advantage.is_correction_enable", "false"),
    "correction_kind": ("vllm_is_correction_type", "algo.advantage.is_correction_type", "tis"),
    "correction_threshold": (
        "vllm_is_truncated_threshold",
        "algo.advantage.is_correction_threshold",
        None,
    ),
    "lambd": ("lambd", "algo.advantage.lambd", None),
    "gamma": ("gamma", "algo.advantage.gamma", None),
    "gpus": ("actor_num_gpus_per_node", "actor.num_gpus_per_node", None),
    "nodes": ("actor_num_nodes", "actor.num_nodes", None),
    "micro_train": ("micro_train_batch_size", "train.micro_batch_size", None),
    "micro_rollout": ("micro_rollout_batch_size", "rollout.micro_batch_size", None),
    "ring": ("ring_attn_size", "ds.ring_attn_size", None),
    "tensor": ("ds_tensor_parallel_size", "ds.tensor_parallel_size", None),
    "dynamic": ("use_dynamic_batch", "train.dynamic_batch_enable", None),
    "top_p": ("top_p", "rollout.top_p", None),
}
"""Name here -> the flag without dots, the flag with dots, and the default that decides a KL."""
FLAT = {name: flat for name, (flat, _, _) in OPTIONS.items()}
DOTTED = {name: dotted for name, (_, dotted, _) in OPTIONS.items()}
SWITCHES = (
    *("use_kl_loss", "algo.kl.use_loss", "use_kl_estimator_k3", "algo.kl.unbiased_gradient"),
    *(
        names[key]
        for names in (FLAT, DOTTED)
        for key in ("async", "partial", "no_std", "correction")
    ),
)
"""Flags without a value."""
THRESHOLD = 0.5, 5.0
"""The default bounds of the weights against the rollout engine (models/loss.py: PolicyLoss)."""
_CORRECTIONS: Mapping[str, tuple[str, Correction | None]] = {
    "tis": ("token-level truncated importance sampling", "tis_token"),
    "icepop": ("token-level IcePop's masks", "mis_token"),
    "seq-mask-tis": ("token-level truncated importance sampling with masked responses", None),
}
GROUPED = ("rloo", "reinforce_baseline", "group_norm", "dr_grpo")
"""Advantage estimators that subtract a baseline of the group before the KL is subtracted."""
ESTIMATORS = MANIFEST.meanings("algo.kl.estimator", NEWEST)
FIRST_ESTIMATOR = "0.6.1"
FIRST_TOKEN_MEAN, FIRST_KL_TOKEN_MEAN = "0.7.0", "0.7.5"
"""First releases in which the policy loss, and the KL in the loss, is one mean over all tokens.
Earlier releases average the tokens of each response first."""
FIRST_RLOO_PLAIN, FIRST_CLAMP = "0.8.5", "0.8.6"
FIRST_GROUPS = {
    "rloo": "0.5.3",
    "reinforce_baseline": "0.6.0",
    "group_norm": "0.6.0",
    "dr_grpo": "0.11.0",
}
"""First releases whose parser refuses groups of one rollout for these advantage estimators."""
FIRST_SHARED = "0.7.2"
"""First release whose parser wants a micro-batch of rollouts for each process of the actor."""
FIRST_SMALL = "0.10.0"
"""First release whose micro-batches have one sequence by default; 8 of rollouts, 4 of training
before."""
_ITS_OWN = re.compile(r"^(.*/)?openrlhf[./]cli[./]train_ppo(_ray)?(\.py)?$")
"""The library's entries, as modules or as paths."""
_ENTRY = re.compile(r"^(openrlhf\.cli\.train_ppo\w*|.*train_ppo(_ray)?\w*\.py)$")
_WITHOUT_RAY, FIRST_WITH_RAY = re.compile(r"train_ppo(\.py)?$"), "0.6.2"
"""openrlhf/cli/train_ppo.py, and the first release that has it no more."""
_STEPS = "openrlhf/trainer/ppo_trainer.py", "openrlhf/trainer/ray/ppo_actor.py"
"""Where releases before 0.7 have the train step, until 0.6.2 and since 0.6.3."""
_NOT_RL = re.compile(r"train_(sft|dpo|rm|kto|kd|prm)\b|serve_rm|batch_inference|lora_combiner")


@cache
def releases() -> KeyTables:
    """Return the keys of each release, as its own parser defines them."""
    return load_tables(Path(__file__).with_name("keys.json"), driven=FACTS)


def audit(launch: Launch) -> LaunchReading | None:
    """Return the audit's reading of a launch; None if it starts no PPO trainer of OpenRLHF."""
    entry, rest = _entry(launch.words)
    if entry is None or _NOT_RL.search(entry):
        return None
    written = written_flags(rest, several=_several())
    dotted = any("." in name for name in written)
    parser = _parser(launch, entry)
    newest = own_tables()[NEWEST if dotted else LAST_FLAT]
    flags = _completed(written, newest, frozenset(parsed_flags(parser)))
    names = DOTTED if dotted else FLAT
    switched_on = {
        name: [replace(each, text="true", why=()) for each in values]
        for name, values in flags.items()
        if name in SWITCHES
    }
    defaults = {names[k]: each for k, (_, _, each) in OPTIONS.items() if each is not None}
    keys = Keys(defaults, flags | switched_on)
    if launch.open_end:
        keys.opaque = launch.open_end
    version, because = _release(launch, keys, dotted, entry)
    was_1 = is_since(version, "0.5.7") and not is_since(version, "0.6.0")
    declared = parsed_flags(parser).get(names["lambd"])
    lambd = declared.default if declared else 1 if was_1 or is_since(version, "0.6.4") else 0.95
    keys.defaults = {**defaults, names["lambd"]: str(lambd)}
    reading = _Reader(launch, keys, entry, version, because, names).reading()
    return replace(reading, held=_held(flags, version, launch, entry))


def _parser(launch: Launch, entry: str) -> str:
    """Return the text of the checkout's program that the launch starts, which has its parser."""
    name = "train_ppo" if _WITHOUT_RAY.search(entry) else "train_ppo_ray"
    path = found_beside(entry, launch.beside) or f"openrlhf/cli/{name}.py"
    return launch.beside.get(path) or ""


def _completed(
    flags: dict[str, list[Given]], table: ReleaseTable, beside: frozenset[str]
) -> dict[str, list[Given]]:
    """Return the flags by their full names: argparse takes abbreviations."""
    given: dict[str, list[Given]] = {}
    for name, values in flags.items():
        full = (name,) if name in _all_flags().keys | beside else completed(name, table.keys)
        given.setdefault(full[0] if len(full) == 1 else name, []).extend(values)
    return given


@cache
def _several() -> frozenset[str]:
    """Return the flags that take several words: `--eps_clip_low_high 0.2 0.28`."""
    kinds = (pair for table in own_tables().values() for pair in table.kinds.items())
    return frozenset(name for name, kind in kinds if " x " in kind)


def _held(flags: dict[str, list[Given]], version: str, launch: Launch, entry: str) -> HeldKeys:
    """Return the flags with their release's table, or with that of all releases without one."""
    own = own_tables().get(version)
    if own is None and version in releases().versions:
        own = releases().table(version)
    parser = _parser(launch, entry)
    beside = frozenset(parsed_flags(parser))
    taken = {name for name in flags if completed(name, beside)}
    # A checkout of another time, whose flags have other names, is not what the launch runs.
    is_it = _ITS_OWN.match(entry) or found_beside(entry, launch.beside)
    return HeldKeys(
        flags,
        "argparse",
        own or _all_flags(),
        f"OpenRLHF {version}" if own else "OpenRLHF",
        exact=own is not None and not _WITHOUT_RAY.search(entry),
        others=(*own_tables().values(), _all_flags()),
        flag="--",
        checkout=beside | taken,
        is_whole=bool(is_it) and 2 * len(taken) > len(flags) and has_all_flags(parser),
    )


@cache
def _all_flags() -> ReleaseTable:
    return merged_table(own_tables().values(), releases().merged().keys)


def _entry(words: Sequence[CommandWord]) -> tuple[str | None, Sequence[CommandWord]]:
    for i, word in enumerate(words):
        if len(word.text) < LONGEST_ENTRY and _ENTRY.match(word.text):
            return word.text, words[i + 1 :]
    known = {f"--{FLAT['coefficient']}", f"--{DOTTED['coefficient']}"}
    if any(word.text.partition("=")[0] in known for word in words):
        for i, word in enumerate(words):
            if word.text.endswith(".py") or (i and words[i - 1].text in ("-m", "--module")):
                return word.text, words[i + 1 :]
    return None, ()


def _release(launch: Launch, keys: Keys, dotted: bool, entry: str) -> tuple[str, str]:
    version, why = launch.release("openrlhf")
    if version:
        return version, why
    if "algo.kl.unbiased_gradient" in keys.given:
        return NEWEST, "it gives --algo.kl.unbiased_gradient, which 0.11.1 brought"
    known = releases()
    fitting = known.accepting(keys.given, launch.bounds("openrlhf")[0])
    older = [i for i in fitting if not is_since(known.versions[i], FIRST_WITH_RAY)]
    if older and _WITHOUT_RAY.search(entry):
        return known.versions[older[-1]], f"the last release that has {entry}"
    at = fitting[-1]
    why = known.why(keys.given, at, "--")
    return known.versions[
        at
    ], f"its flags have dots, which {FIRST_DOTTED} brought" if dotted else why


class _Reader(ReleaseReader):
    """The reading of one command line under one release's rules."""

    library = "openrlhf"
    title = "OpenRLHF"
    written = "--{key} {value}"

    def __init__(
        self,
        launch: Launch,
        keys: Keys,
        entry: str,
        version: str,
        because: str,
        names: Mapping[str, str],
    ) -> None:
        super().__init__(launch, keys, entry, version, because)
        self.names = names

    def reading(self) -> LaunchReading:
        keys, names = self.keys, self.names
        beta = self.number(names["coefficient"])
        estimator = self._estimator()
        in_loss = bool(keys.switch(names["in_loss"]))
        straight = in_loss and bool(keys.switch(names["unbiased"]))
        on = None if beta is None else beta > 0
        reward, loss = InReward(False), InLoss(False)
        if on is not False and in_loss:
            loss = InLoss(on, estimator, beta, straight, weighted=straight)
        elif on is not False:
            reward = InReward(on, estimator, beta)
        wanted = [names[k] for k in ("coefficient", "estimator", "in_loss")]
        self.notes += keys.doubled(wanted, "--")
        self._refused()
        self.sources = {
            "reward": "openrlhf/models/utils.py: compute_reward",
            "loss": "openrlhf/trainer/ray/ppo_actor.py: training_step",
        }
        return self.found(
            reward,
            loss,
            advantage_estimator=keys.text(names["advantage"]),
            group_size=keys.integer(names["group"]),
            inactive=self._inactive(on, in_loss),
            changes=self._changes(beta, estimator, bool(loss.active)),
            no_gradient=self._detached() if loss.active else "",
            regime=self._regime(),
            surroundings=self._surroundings(),
        )

    def _detached(self) -> str:
        """Return why the KL in the loss has no gradient, if it has none: 0.6.0 to 0.6.4."""
        if not self.keys.has("packing_samples") or self.since(FIRST_TOKEN_MEAN):
            return ""
        texts = [text for path in _STEPS if (text := self.launch.beside.get(path))]
        if texts and not any("torch.tensor([each_kl.mean()" in text for text in texts):
            return ""
        source = _STEPS[self.since("0.6.3")]
        return f"with --packing_samples it is torch.tensor([...]), a constant ({source})"

    def _refused(self) -> None:
        """Note each size, and an entry point, with which OpenRLHF does not start."""
        is_its = re.match(r"openrlhf[./]cli[./]", self.entry) and _WITHOUT_RAY.search(self.entry)
        if is_its and self.since(FIRST_WITH_RAY):
            self.stops(f"{self.entry} is gone since {FIRST_WITH_RAY}", "openrlhf/cli")
        if "train_ppo_ray" not in self.entry:
            return
        keys, names = self.keys, self.names
        source = "openrlhf/cli/train_ppo_ray.py"
        estimator, group = keys.text(names["advantage"]) or "", self._size("group", 1)
        since = FIRST_GROUPS.get(estimator)
        if since is not None and self.since(since) and group == 1:
            why = f"--{names['group']} is 1: '{estimator} requires n_samples_per_prompt > 1'"
            self.stops(why, source, names["advantage"], names["group"])
        if self._size("tensor", 1) != 1:
            return
        self._too_few(group, source)
        self._uneven()

    def _too_few(self, group: int | None, source: str) -> None:
        """Note if some process of the actor gets no micro-batch of rollouts."""
        gpus, ring = self._gpus(), self._size("ring", 1)
        rollouts, micro = self._size("rollouts", 1024), self._micro("micro_rollout", 8)
        if not (group and gpus and ring and rollouts and micro):
            return
        if self.since(FIRST_SHARED) and rollouts * group // micro < gpus // ring:
            names = [
                self.names[key] for key in ("rollouts", "group", "micro_rollout", "gpus", "nodes")
            ]
            why = (
                f"--{names[0]} {rollouts} × --{names[1]} {group} in micro-batches of {micro} are "
                f"fewer than the actor's {gpus // ring} processes: 'The number of sample batches "
                "must be greater than or equal to the effective number of actor processes.'"
            )
            self.stops(why, source, *names)

    def _uneven(self) -> None:
        """Note if DeepSpeed refuses to part the batch over the actor's GPUs."""
        gpus, ring = self._gpus(), self._size("ring", 1)
        batch, micro = self._size("batch", 128), self._micro("micro_train", 4)
        if self.keys.has(self.names["dynamic"]) or not (gpus and ring and batch and micro):
            return
        steps, rest = divmod(batch * ring, micro * gpus)
        if not rest:
            return
        names = [self.names[key] for key in ("batch", "micro_train", "gpus", "nodes", "ring")]
        over = f"{gpus} GPUs" if ring == 1 else f"{gpus} GPUs in rings of {ring}"
        refusal = (
            "train_batch_size is not equal to micro_batch_per_gpu * gradient_acc_step * world_size "
            f"{batch * ring} != {micro} * {steps} * {gpus}"
            if steps
            else "Gradient accumulation steps: 0 has to be greater than 0"
        )
        sizes = f"--{names[0]} {batch} does not divide over {over} with --{names[1]} {micro}"
        source = "deepspeed/runtime/config.py: _batch_assertion"
        self.stops(f"{sizes}: '{refusal}'", source, *names)

    def _gpus(self) -> int | None:
        """Return the number of GPUs of the actor, or None if it is unknown."""
        nodes, each = self._size("nodes", 1), self._size("gpus", 8)
        return nodes * each if nodes and each else None

    def _micro(self, name: str, before: int) -> int | None:
        """Return a size of micro-batches. `before`: its default in earlier releases."""
        return self._size(name, 1 if self.since(FIRST_SMALL) else before)

    def _size(self, name: str, default: int) -> int | None:
        """Return a size, or None if it is unknown."""
        keys, key = self.keys, self.names[name]
        if keys.opaque and not keys.has(key):
            return None
        return keys.integer(key, default)

    def _regime(self) -> TrainingRegime:
        """Return the regime: on-policy if each batch of rollouts serves one train step."""
        keys, names = self.keys, self.names
        sizes = (names[each] for each in ("rollouts", "group", "batch", "epochs"))
        of_steps = regime_of_rollouts(keys, *sizes, flag="--")
        for name in ("async", "partial"):
            on = keys.switch(names[name])
            if on:
                why = f"--{names[name]} samples while the policy is updated"
                return of_steps.behind(why, ahead=True)
            if on is None:
                return TrainingRegime(None, keys.why_unknown(names[name]))
        return of_steps

    def _surroundings(self) -> Surroundings:
        """Return the surroundings of the KL.

        The group's baseline, and the division by its deviation, come before the KL is subtracted.
        Whitening over the batch comes after it.
        """
        keys, names = self.keys, self.names
        advantage = keys.text(names["advantage"]) or ""
        whitened = advantage in ("gae", "reinforce", "reinforce_baseline") or (
            advantage == "rloo" and not self.since(FIRST_RLOO_PLAIN)
        )
        no_std = keys.switch(names["no_std"])
        divided: Divisor | None = "nothing"
        if advantage == "group_norm":
            divided = "group_std"
        elif whitened and not no_std:
            divided = "batch_std"
        elif advantage not in (*GROUPED, "gae", "reinforce", "flash_reinforce"):
            divided = None
            self.unknown_advantage(advantage)
        gspo = keys.text(names["mode"]) == "gspo"
        kl_averaged = keys.text(names["aggregation"]) == "seq-mean-token-mean"
        # Packed samples of earlier releases have no mask: one mean over a micro-batch's tokens.
        old = not self.since(FIRST_TOKEN_MEAN)
        packed = old and keys.has("packing_samples") and self._micro("micro_train", 4) != 1
        averaged = kl_averaged or gspo or (old and not packed)
        kl_averaged = kl_averaged or not (packed or self.since(FIRST_KL_TOKEN_MEAN))
        correction, weight = self._correction()
        ahead = keys.switch(names["async"]) or keys.switch(names["partial"])
        ratio: Ratio = "sequence_mean" if gspo else "token"
        return Surroundings(
            advantage_divided_by=divided,
            division_includes_kl=divided != "group_std",
            divided_because=f"--{names['advantage']} {advantage}",
            own_rollout_in_mean=advantage in ("reinforce_baseline", "group_norm", "dr_grpo"),
            baseline_includes_kl=advantage not in GROUPED,
            policy_loss="gspo" if gspo else "ppo",
            ratio="none" if ahead and not correction else ratio,
            clip=self._clip(),
            correction=correction,
            engine_weight=weight,
            length_weighted=averaged,
            kl_loss_factor=1.0 if averaged == kl_averaged else None,
            aggregation_because="openrlhf/models/loss.py: PolicyLoss",
            entropy=keys.number(names["entropy"]) or 0.0,
            discount=self._discount(advantage),
            controller=f"--{names['target']}" if keys.has(names["target"]) else "",
            clamp=Clamp(value=10.0) if self.since(FIRST_CLAMP) else UNCLAMPED,
            unread=(*self.unread, *truncated(keys, top_p=names["top_p"])),
        )

    def _clip(self) -> Range | None:
        """Return the clip's bounds: of the flag with two words, else of the one that has both."""
        if self.keys.has(self.names["bounds"]):
            low, high = self._numbers(self.names["bounds"]) or (None, None)
            return clip_range(low, high)
        return clip_range(self.keys.number(self.names["clip"]), None, symmetric=True)

    def _numbers(self, key: str) -> Range | None:
        """Return the two numbers of a flag, None if unknown; one number is the upper bound."""
        words = (self.keys.text(key) or "").split()
        numbers = [number for word in words if (number := as_number(word)) is not None]
        if len(numbers) != len(words) or len(words) not in (1, 2):
            return None
        low, high = (0.0, *numbers)[-2:]
        return low, high

    def _discount(self, advantage: str) -> str:
        """Return λ and γ where they are not 1. Only GAE reads them."""
        if advantage != "gae":
            return ""
        names = {self.names[name]: f"--{self.names[name]}" for name in ("lambd", "gamma")}
        return self.discounts(names)

    def _correction(self) -> tuple[str, EngineWeight | None]:
        """Return the weights against the rollout engine in words, empty without them, and as the
        laboratory's weight, which has none for responses."""
        keys, names = self.keys, self.names
        level, mode = keys.text(LEVEL), keys.text(LEVEL_MODE, "mask")
        if keys.has(LEVEL):
            if level not in ("token", "seq"):
                return "", None
            kind = "masked" if mode == "mask" else "truncated"
            bounds = self._numbers(LEVEL_BOUNDS) if keys.has(LEVEL_BOUNDS) else THRESHOLD
            weight = bounds and EngineWeight(
                "tis_token" if mode == "clip" else "mis_token", *bounds
            )
            of_tokens = level == "token" and keys.text(GATING, "ratio") == "ratio"
            return f"{level}-level {kind} importance sampling", weight if of_tokens else None
        if not keys.switch(names["correction"]):
            return "", None
        named = keys.text(names["correction_kind"]) or "of a kind that is not known"
        unknown = f"importance sampling ({named})", None
        words, known = _CORRECTIONS.get(named, unknown)
        given = keys.has(names["correction_threshold"])
        return words, None if given or known is None else EngineWeight(known, *THRESHOLD)

    def _estimator(self) -> str | None:
        if self.keys.has(self.names["old_k3"]):
            return "k3"
        return self.estimator(self.names["estimator"], ESTIMATORS, PLAIN_ESTIMATORS)

    def _inactive(self, on: bool | None, in_loss: bool) -> Iterator[Inactive]:
        names = self.names
        if on is False:
            why = f"--{names['coefficient']} is not above 0, which switches every KL off"
            idle = ("in_loss", "estimator", "old_k3", "unbiased", "target")
            yield from self.keys.inert(why, *(names[each] for each in idle), flag="--")
        elif not in_loss:
            why = f"it is for a KL in the loss, and --{names['in_loss']} is not given"
            yield from self.keys.inert(why, names["unbiased"], flag="--")

    def _changes(
        self, beta: float | None, estimator: str | None, in_loss: bool
    ) -> Iterator[LaunchChange]:
        """Yield the changes to a term that is not criticised, the smallest first."""
        names = self.names
        older = tuple(self._removed("old_k3"))
        kind = names["estimator"]
        named = self.since(FIRST_ESTIMATOR)
        to_k1, to_k2 = self.put(kind, "k1"), self.put(kind, "k2")
        on = () if beta else (self.put(names["coefficient"], "0.01"),)
        if in_loss:
            if is_read(self.version):
                flag = names["unbiased"]
                added = (Edit(flag, f"--{flag}"),)
                yield LaunchChange("the reverse KL of each token, with its importance ratio", added)
            if named:
                yield LaunchChange("k2 in the loss", (*older, to_k2))
        needed = (to_k1,) if estimator != "k1" and named else ()
        yield LaunchChange(
            "k1 in the reward", (*self._removed("in_loss", "unbiased"), *older, *needed, *on)
        )

    def _removed(self, *flags: str) -> Iterator[Edit]:
        for flag in flags:
            if self.keys.has(self.names[flag]):
                yield Edit(self.names[flag], None, self.keys.lines(self.names[flag]))
