"""The data types of a launch: its words and files, and a library's reading of them.

A backend's `audit` takes a Launch and returns a LaunchReading. All types are frozen. The module
imports nothing heavy.
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
    """Raised for a file with nothing to judge. The message is one sentence with the reason."""


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
    """A value that is written in a launch. `text` may hold UNKNOWN and UNSET."""

    text: str
    lines: tuple[int, ...] = ()
    why: tuple[str, ...] = ()
    mark: str = ""
    """Hydra's prefix of an override: `+`, `++`, `~` or nothing."""


@dataclass(frozen=True, slots=True)
class ConfigDocument:
    """A YAML or TOML file: dotted key -> value.

    `builds_on`: the files that it names as its base.
    """

    name: str
    values: Mapping[str, Given]
    builds_on: tuple[str, ...] = ()
    kind: Literal["yaml", "toml"] = "yaml"


@dataclass(frozen=True, slots=True)
class Launch:
    """The words and documents of one command, or of one configuration file alone."""

    words: tuple[CommandWord, ...] = ()
    """The command line, wrappers (`srun`, `uv run`, `ray job submit --`) included."""
    documents: tuple[ConfigDocument, ...] = ()
    """Configuration files that apply, the weakest first."""
    line: int = 1
    case: str | None = None
    """The way by which the script comes to the launch, in words."""
    usual: bool = True
    """True for the way without arguments and with an empty environment."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Library -> release, where something says so, the reason after a space."""
    caveats: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    """Configuration files it names that could not be read."""
    cut_off: tuple[int, tuple[str, ...]] | None = None
    """The line from which flags follow that the shell does not hand to it, and those flags."""
    open_end: str = ""
    """The reason why `words` may lack words; empty if it is complete."""


@dataclass(frozen=True, slots=True)
class InReward:
    """The KL in the reward. A None is unknown; if the KL is not active, it is absent."""

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
    """One key that was read: given on those lines, or the release's default (no lines)."""

    key: str
    value: str
    lines: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Inactive:
    """A flag that is set and has no effect, and the rule that says so."""

    flag: str
    why: str
    lines: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class AuditNote:
    """A remark for a user, and the lines it comes from."""

    text: str
    lines: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Rule:
    """A fact about a library's release: its behaviour, and the file and function that show it."""

    text: str
    source: str


@dataclass(frozen=True, slots=True)
class Edit:
    """A change of the launch.

    `text` replaces the words on `lines`. Without lines it is a word to add; None removes the words.
    `key`: the key whose value changes.
    """

    key: str
    text: str | None
    lines: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class TrainingRegime:
    """The training regime: on-policy if a launch learns from samples of the policy that it updates.

    `on_policy` is None if that is unknown. `why`: the deciding fact, for a user.
    """

    on_policy: bool | None
    why: str


@dataclass(frozen=True, slots=True)
class HeldKeys:
    """All keys of a launch, and the tables that the audit compares them with."""

    given: Mapping[str, Sequence[Given]]
    grammar: Literal["hydra", "structured", "argparse", "pydantic"]
    """The rules by which the library accepts or refuses a key: see orchestrator.audit.key_check."""
    table: ReleaseTable
    name: str
    """The release of the table, for people."""
    exact: bool
    """True for the table of the launch's release; False for every key that some release has."""
    others: tuple[ReleaseTable, ...] = ()
    """Tables of other releases."""
    defaults: Mapping[str, str] = field(default_factory=dict)
    in_files: frozenset[str] = frozenset()
    """Keys that stand in configuration files, not on the command line."""
    own: frozenset[str] = frozenset()
    """Keys that a configuration of the launch's own adds, so that a command may change them."""
    flag: str = ""
    """The prefix of a key on a command line: `--`."""


@dataclass(frozen=True, slots=True)
class LaunchReading:
    """The reading of a launch by the rules of one library release."""

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
    """Advice if no change of the launch is enough."""
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
