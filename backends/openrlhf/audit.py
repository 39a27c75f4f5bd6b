"""Read the KL that any launch of OpenRLHF asks for, release by release.

Source: OpenRLHF 0.4.0 to 0.11.2: cli/train_ppo_ray.py, models/utils.py, trainer/ppo_utils/
experience_maker.py, trainer/ray/ppo_actor.py. keys.json in this folder lists the flags of each
release. In all of them the KL is on by default: in the reward, as k1 with coefficient 0.01.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

from backends.openrlhf.flags import FLAT as LAST_FLAT
from backends.openrlhf.flags import NEWEST, own_tables
from backends.openrlhf.manifest import MANIFEST
from orchestrator.library.launch_keys import LONGEST_ENTRY, Keys, completed, unquoted
from orchestrator.library.launches import (
    AuditNote,
    CommandWord,
    Edit,
    Given,
    HeldKeys,
    Inactive,
    InLoss,
    InReward,
    Launch,
    LaunchReading,
    Rule,
)
from orchestrator.library.manifest import ReleaseTable
from orchestrator.library.releases import Releases, load_releases, merged_table, nearest

FLAT = {
    "coefficient": "init_kl_coef",
    "estimator": "kl_estimator",
    "in_loss": "use_kl_loss",
    "old_k3": "use_kl_estimator_k3",
    "unbiased": "unbiased_gradient",
    "advantage": "advantage_estimator",
    "group": "n_samples_per_prompt",
    "target": "kl_target",
}
DOTTED = {
    "coefficient": "algo.kl.init_coef",
    "estimator": "algo.kl.estimator",
    "in_loss": "algo.kl.use_loss",
    "old_k3": "use_kl_estimator_k3",
    "unbiased": "algo.kl.unbiased_gradient",
    "advantage": "algo.advantage.estimator",
    "group": "rollout.n_samples_per_prompt",
    "target": "algo.kl.target",
}
DEFAULTS = {
    "coefficient": "0.01",
    "estimator": "k1",
    "in_loss": "false",
    "old_k3": "false",
    "unbiased": "false",
    "advantage": "gae",
    "group": "1",
}
SWITCHES = ("use_kl_loss", "algo.kl.use_loss", "use_kl_estimator_k3", "algo.kl.unbiased_gradient")
"""Flags without a value."""
ESTIMATORS = MANIFEST.meanings("algo.kl.estimator", NEWEST)
FIRST_DOTTED, FIRST_LOSS, FIRST_ESTIMATOR = "0.10.2", "0.6.0", "0.6.4"
_ENTRY = re.compile(r"^(openrlhf\.cli\.train_ppo\w*|.*train_ppo(_ray)?\w*\.py)$")
_NOT_RL = re.compile(r"train_(sft|dpo|rm|kto|kd|prm)\b|serve_rm|batch_inference|lora_combiner")
_FLAG = re.compile(r"^--([A-Za-z_][\w.-]*)(?:=(.*))?$", re.DOTALL)


@cache
def releases() -> Releases:
    return load_releases(Path(__file__).with_name("keys.json"))


def audit(launch: Launch) -> LaunchReading | None:
    """Return the audit's reading of a launch; None if it starts no PPO trainer of OpenRLHF."""
    entry, rest = _entry(launch.words)
    if entry is None or _NOT_RL.search(entry):
        return None
    written = _flags(rest)
    dotted = any("." in name for name in written)
    flags, abbreviated = _completed(written, own_tables()[NEWEST if dotted else LAST_FLAT])
    names = DOTTED if dotted else FLAT
    switched_on = {
        name: [replace(each, text="true", why=()) for each in values]
        for name, values in flags.items()
        if name in SWITCHES
    }
    keys = Keys({names[k]: v for k, v in DEFAULTS.items()}, flags | switched_on)
    if launch.open_end:
        keys.opaque = launch.open_end
    version, because = _release(launch, keys, dotted)
    reading = _Judge(keys, names, entry, version, because).reading()
    return replace(reading, held=_held(flags, version), rules=(*reading.rules, *abbreviated))


def _completed(
    flags: dict[str, list[Given]], table: ReleaseTable
) -> tuple[dict[str, list[Given]], list[Rule]]:
    """Return the flags by their full names, and a rule for each one that was abbreviated."""
    found: dict[str, list[Given]] = {}
    rules = []
    for name, values in flags.items():
        full = (name,) if name in releases().keys else completed(name, table.keys)
        if len(full) == 1 and full[0] != name:
            text = f"--{name} is an abbreviation: argparse takes it for --{full[0]}"
            rules.append(Rule(text, "Python's argparse: allow_abbrev"))
        found.setdefault(full[0] if len(full) == 1 else name, []).extend(values)
    return found, rules


def _held(flags: dict[str, list[Given]], version: str) -> HeldKeys:
    """Return the flags and their release's table, or the table of all releases if it has none."""
    own = own_tables().get(version)
    return HeldKeys(
        flags,
        "argparse",
        own or _all_flags(),
        f"OpenRLHF {version}" if own else "OpenRLHF",
        exact=own is not None,
        others=(*own_tables().values(), _all_flags()),
        flag="--",
    )


@cache
def _all_flags() -> ReleaseTable:
    return merged_table(own_tables().values(), releases().keys)


def _entry(words: Sequence[CommandWord]) -> tuple[str | None, Sequence[CommandWord]]:
    for i, word in enumerate(words):
        if len(word.text) < LONGEST_ENTRY and _ENTRY.match(word.text):
            return word.text, words[i + 1 :]
    known = {f"--{FLAT['coefficient']}", f"--{DOTTED['coefficient']}"}
    if any(word.text.partition("=")[0] in known for word in words):
        for i, word in enumerate(words):
            if word.text.endswith(".py") or (i and words[i - 1].text == "-m"):
                return word.text, words[i + 1 :]
    return None, ()


def _flags(words: Sequence[CommandWord]) -> dict[str, list[Given]]:
    """Return each flag with the word after it as its value, unless that word is a flag."""
    found: dict[str, list[Given]] = {}
    for i, word in enumerate(words):
        match = _FLAG.match(word.text)
        if match is None:
            continue
        name = match[1] if "." in match[1] else match[1].replace("-", "_")
        value: str | None = match[2]
        lines, why = word.lines, word.why
        following = words[i + 1] if i + 1 < len(words) else None
        if value is None and following is not None and not _FLAG.match(following.text):
            value = following.text
            lines, why = (*lines, *following.lines), following.why
        mark = "=" if match[2] is not None else ""
        given = Given(unquoted(value or "true"), tuple(dict.fromkeys(lines)), why, mark)
        found.setdefault(name, []).append(given)
    return found


def _release(launch: Launch, keys: Keys, dotted: bool) -> tuple[str, str]:
    pinned = launch.versions.get("openrlhf")
    told = releases()
    if pinned is not None:
        version, _, why = pinned.partition(" ")
        return told.versions[nearest(told.versions, version)], f"{version}: {why}"
    if "algo.kl.unbiased_gradient" in keys.given:
        return NEWEST, "it gives --algo.kl.unbiased_gradient, which 0.11.1 brought"
    fitting, _ = told.accepting(keys.given)
    at = fitting[-1]
    gone = told.excluding(keys.given, at)
    if dotted:
        return told.versions[at], f"its flags have dots, which {FIRST_DOTTED} brought"
    if gone:
        return told.versions[at], f"the newest release that has --{gone[0]}"
    return told.versions[at], "the newest release that fits its flags"


class _Judge:
    """The reading of one command line under one release's rules."""

    def __init__(
        self, keys: Keys, names: dict[str, str], entry: str, version: str, because: str
    ) -> None:
        self.keys, self.names, self.entry = keys, names, entry
        self.version, self.because = version, because
        self.unknown: list[str] = []

    def reading(self) -> LaunchReading:
        keys, names = self.keys, self.names
        beta = keys.number(names["coefficient"])
        if beta is None:
            self.unknown.append(keys.why_unknown(names["coefficient"]))
        estimator = self._estimator()
        in_loss = bool(keys.switch(names["in_loss"]))
        straight = in_loss and bool(keys.switch(names["unbiased"]))
        on = None if beta is None else beta > 0
        reward, loss = InReward(False), InLoss(False)
        if on is not False and in_loss:
            loss = InLoss(on, estimator, beta, straight and estimator != "k2")
        elif on is not False:
            reward = InReward(on, estimator, beta)
        return LaunchReading(
            library="openrlhf",
            version=self.version,
            version_because=self.because,
            entry_point=self.entry,
            in_reward=reward,
            in_loss=loss,
            advantage_estimator=keys.text(names["advantage"]),
            reference_policy_loaded=on,
            group_size=keys.integer(names["group"]),
            inactive=tuple(self._inactive(on, in_loss)),
            contradictions=tuple(self._doubled()),
            settings=tuple(keys.settings),
            rules=tuple(self._rules(in_loss, straight)),
            change=tuple(self._change(beta, estimator)),
            assumes=tuple(self._assumed()),
            unknown=tuple(self.unknown),
        )

    def _assumed(self) -> Iterator[str]:
        yield from self.keys.assumes
        if not re.match(r"openrlhf[./]cli[./]", self.entry.lstrip("./")):
            yield f"{self.entry} is not OpenRLHF's own: that it reads these flags as its trainer"

    def _doubled(self) -> Iterator[AuditNote]:
        wanted = [self.names[k] for k in ("coefficient", "estimator", "in_loss")]
        for note in self.keys.doubled(wanted):
            yield AuditNote(f"--{note.text}", note.lines)

    def _estimator(self) -> str | None:
        keys, names = self.keys, self.names
        if keys.has(names["old_k3"]):
            return "k3"
        name = keys.text(names["estimator"])
        meant = ESTIMATORS.get(name)
        if meant is not None:
            return str(meant)
        self.unknown.append(keys.why_unknown(names["estimator"]))
        return None

    def _inactive(self, on: bool | None, in_loss: bool) -> Iterator[Inactive]:
        names = self.names
        if on is False:
            why = f"--{names['coefficient']} is not above 0, which switches every KL off"
            for name in ("in_loss", "estimator", "old_k3", "unbiased", "target"):
                yield from self._inert(name, why)
        elif not in_loss:
            why = f"it is for a KL in the loss, and --{names['in_loss']} is not given"
            yield from self._inert("unbiased", why)

    def _inert(self, name: str, why: str) -> Iterator[Inactive]:
        for each in self.keys.inert(self.names[name], why):
            yield Inactive(f"--{each.flag}", each.why, each.lines)

    def _rules(self, in_loss: bool, straight: bool) -> Iterator[Rule]:
        names = self.names
        maker = "openrlhf/trainer/ppo_utils/experience_maker.py"
        actor = "openrlhf/trainer/ray/ppo_actor.py: training_step"
        moved = f"--{names['in_loss']} moves the KL from the reward to the loss"
        always = "the KL is subtracted from the reward of each token, whether or not a flag says so"
        told = (moved, actor) if in_loss else (always, "openrlhf/models/utils.py: compute_reward")
        yield self._rule(*told)
        yield self._rule(
            f"--{names['coefficient']} is 0.01 unless given; at 0 there is no reference model",
            "openrlhf/cli/train_ppo_ray.py" if not in_loss else maker,
        )
        yield self._rule("k1, k2, k3 are computed", "openrlhf/models/utils.py: compute_approx_kl")
        if straight:
            yield self._rule(
                "the gradient is k2's times the importance ratio, whatever the estimator",
                "openrlhf/models/utils.py",
            )

    def _rule(self, text: str, source: str) -> Rule:
        return Rule(text, f"OpenRLHF {self.version}, {source}")

    def _change(self, beta: float | None, estimator: str | None) -> Iterator[Edit]:
        keys, names = self.keys, self.names
        for name in ("in_loss", "old_k3", "unbiased"):
            if keys.has(names[name]):
                yield Edit(names[name], None, keys.lines(names[name]))
        if estimator != "k1" and not keys.has(names["old_k3"]):
            flag = names["estimator"]
            yield Edit(flag, f"--{flag} k1", keys.lines(flag)[:1])
        if not beta:
            flag = names["coefficient"]
            yield Edit(flag, f"--{flag} 0.01", keys.lines(flag)[:1])
