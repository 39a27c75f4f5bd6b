"""The nouns of a launch: what was read of it, and what a library makes of it.

A backend's `audit` takes a Launch and returns a LaunchReading. Frozen, and without anything heavy.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from orchestrator.errors import OrchError
from orchestrator.library.manifest import ReleaseTable

AuditVerdict = Literal[
    "no_kl",
    "unbiased_reverse_kl",
    "zero_mean_noise",
    "token_forward_kl",
    "token_reverse_kl",
    "biased_reward",
    "both",
    "rollout_policy_kl_only",
    "undetermined",
]


class UnreadableScript(OrchError):
    """A file in which there is nothing to judge: one sentence says why."""


UNKNOWN = "\x00"
"""Stands, in a word, for what only running the script would tell."""
UNSET = "\x01"
"""Stands, in a word, for a variable that the script uses and nobody sets: empty, unless the
environment has it."""


@dataclass(frozen=True, slots=True)
class CommandWord:
    """One word of a command line. `why`: reasons of its UNKNOWNs, names of its UNSETs."""

    text: str
    lines: tuple[int, ...] = ()
    why: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Given:
    """A value somebody wrote. `text` may hold UNKNOWN and UNSET."""

    text: str
    lines: tuple[int, ...] = ()
    why: tuple[str, ...] = ()
    mark: str = ""
    """Hydra's prefix of an override: `+`, `++`, `~` or nothing."""


@dataclass(frozen=True, slots=True)
class ConfigDocument:
    """A YAML or TOML file: dotted key -> value. `builds_on`: files that it says it builds on."""

    name: str
    values: Mapping[str, Given]
    builds_on: tuple[str, ...] = ()
    kind: Literal["yaml", "toml"] = "yaml"


@dataclass(frozen=True, slots=True)
class Launch:
    """What one command, or one configuration file on its own, asks for."""

    words: tuple[CommandWord, ...] = ()
    """The command line, wrappers (`srun`, `uv run`, `ray job submit --`) included."""
    documents: tuple[ConfigDocument, ...] = ()
    """Configuration files that apply, the weakest first."""
    line: int = 1
    case: str | None = None
    """Which way the script went to come here, in words."""
    usual: bool = True
    """Whether it is the way taken without arguments and with nothing in the environment."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Library -> release, where something says so, the reason after a space."""
    caveats: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    """Configuration files it names that could not be read."""
    cut_off: tuple[int, tuple[str, ...]] | None = None
    """The line from which flags follow that the shell does not hand to it, and those flags."""
    open_end: str = ""
    """Why there may be words that are not in `words`; empty where there are none."""


@dataclass(frozen=True, slots=True)
class InReward:
    """The KL in the reward. None: not known, or, where it is not active, not there."""

    active: bool | None
    estimator: str | None = None
    beta: float | None = None


@dataclass(frozen=True, slots=True)
class InLoss:
    """The KL in the loss. `straight_through`: k2's gradient whatever the estimator's value."""

    active: bool | None
    estimator: str | None = None
    beta: float | None = None
    straight_through: bool = False


@dataclass(frozen=True, slots=True)
class ReadSetting:
    """One key that was read: given at those lines, or the release's default (no lines)."""

    key: str
    value: str
    lines: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Inactive:
    """A flag that is set and does nothing, and the rule by which it does not."""

    flag: str
    why: str
    lines: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class AuditNote:
    """A remark for people, and the lines it comes from."""

    text: str
    lines: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Rule:
    """A fact of a library's release: what it does, and which function of which file does it."""

    text: str
    source: str


@dataclass(frozen=True, slots=True)
class Edit:
    """A change of the launch: `text` in place of the words on `lines`, or, without lines, a word
    to be added; text None takes the words away. `key`: whose value it is."""

    key: str
    text: str | None
    lines: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class TrainingRegime:
    """Whether a launch learns from samples of the policy that it updates.

    `on_policy` is None where that is not known; `why`: what decides it, for people.
    """

    on_policy: bool | None
    why: str


@dataclass(frozen=True, slots=True)
class HeldKeys:
    """All keys of a launch, and what the audit holds them against."""

    given: Mapping[str, Sequence[Given]]
    grammar: Literal["hydra", "structured", "argparse", "pydantic"]
    """By whose rules the library takes or refuses a key: see orchestrator.audit.key_check."""
    table: ReleaseTable
    name: str
    """The release of the table, for people."""
    exact: bool
    """Whether it is the table of the launch's release; else of every key that some release has."""
    others: tuple[ReleaseTable, ...] = ()
    """Tables of other releases."""
    defaults: Mapping[str, str] = field(default_factory=dict)
    in_files: frozenset[str] = frozenset()
    """Keys that stand in configuration files, not on the command line."""
    own: frozenset[str] = frozenset()
    """Keys that a configuration of the launch's own adds, so that a command may change them."""
    flag: str = ""
    """What stands before a key on a command line: `--`."""


@dataclass(frozen=True, slots=True)
class LaunchReading:
    """What a library's release makes of a launch."""

    library: str
    version: str
    version_because: str
    entry_point: str | None
    in_reward: InReward
    in_loss: InLoss
    advantage_estimator: str | None = None
    reference_policy_loaded: bool | None = None
    group_size: int | None = None
    rollout_kl: float | None = None
    """Weight of a KL to the policy that sampled, which is no KL to a reference policy."""
    inactive: tuple[Inactive, ...] = ()
    contradictions: tuple[AuditNote, ...] = ()
    settings: tuple[ReadSetting, ...] = ()
    rules: tuple[Rule, ...] = ()
    change: tuple[Edit, ...] = ()
    change_note: str = ""
    """What to do where no change of the launch does it."""
    assumes: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    """Why the KL cannot be determined; empty where it can."""
    no_gradient: str = ""
    """Why the term in the loss has no gradient in this release, if it has none."""
    regime: TrainingRegime = TrainingRegime(None, "orch does not read it for this library")
    held: HeldKeys | None = None
    """None: no table of this library's keys is known."""
    decided: tuple[AuditVerdict, str] | None = None
    """The verdict and its reason, where an entry point makes something else of the term."""
