"""The nouns of an audit: what is read (Launch), what a library makes of it (Reading), and what is
said (Finding). Frozen, and without anything heavy: backends import this file.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from orchestrator.errors import OrchError

Verdict = Literal[
    "no_kl", "unbiased_reverse_kl", "zero_mean_noise", "token_forward_kl", "token_reverse_kl",
    "biased_reward", "both", "rollout_policy_kl_only", "undetermined",
]  # fmt: skip


class UnreadableScript(OrchError):
    """A file in which there is nothing to judge: one sentence says why."""


UNKNOWN = "\x00"
"""Stands, in a word, for what only running the script would tell."""
UNSET = "\x01"
"""Stands, in a word, for a variable that the script uses and nobody sets: empty, unless the
environment has it."""


@dataclass(frozen=True, slots=True)
class Word:
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
class Document:
    """A YAML or TOML file: dotted key -> value; `defaults`: files it says it builds on."""

    name: str
    values: Mapping[str, Given]
    builds_on: tuple[str, ...] = ()
    kind: Literal["yaml", "toml"] = "yaml"


@dataclass(frozen=True, slots=True)
class Launch:
    """What one command, or one configuration file on its own, asks for."""

    words: tuple[Word, ...] = ()
    """The command line, wrappers (`srun`, `uv run`, `ray job submit --`) included."""
    documents: tuple[Document, ...] = ()
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
    lost: tuple[int, tuple[str, ...]] | None = None
    """The line from which flags follow that the shell does not hand to it, and those flags."""
    more: str = ""
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
class Setting:
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
class Note:
    """Something to be told, and where it comes from."""

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
class Reading:
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
    contradictions: tuple[Note, ...] = ()
    settings: tuple[Setting, ...] = ()
    rules: tuple[Rule, ...] = ()
    change: tuple[Edit, ...] = ()
    change_note: str = ""
    """What to do where no change of the launch does it."""
    assumes: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    """Why the KL cannot be determined; empty where it can."""
    no_gradient: str = ""
    """Why the term in the loss has no gradient in this release, if it has none."""
    told: tuple[Verdict, str] | None = None
    """The verdict and its reason, where an entry point makes something else of the term."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The answer for one launch of a file, in one case it can take."""

    file: str
    line: int
    case: str | None
    usual: bool
    library: str
    version: str
    version_because: str
    entry_point: str | None
    kl_in_reward: InReward
    kl_in_loss: InLoss
    advantage_estimator: str | None
    reference_policy_loaded: bool | None
    group_size: int | None
    inactive_flags: tuple[Inactive, ...]
    contradictions: tuple[Note, ...]
    verdict: Verdict
    why: str
    lines: tuple[int, ...]
    """Lines of the file that the verdict stands on, ascending."""
    rollout_kl: float | None = None
    settings: tuple[Setting, ...] = ()
    rules: tuple[Rule, ...] = ()
    measured: str = ""
    """The laboratory's gradient of this term."""
    change: tuple[Edit, ...] = ()
    change_note: str = ""
    assumes: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def confidence(self) -> Literal["certain", "assumed", "none"]:
        """`none`: undetermined; `assumed`: it hangs on what `assumes` says; `certain`: on the file
        and the release alone."""
        if self.verdict == "undetermined":
            return "none"
        return "assumed" if self.assumes else "certain"

    @property
    def problem(self) -> bool:
        """Whether the KL term does not do what its name says, or the file contradicts itself."""
        return self.verdict in PROBLEMS or bool(self.contradictions)


PROBLEMS = frozenset({"zero_mean_noise", "biased_reward", "token_forward_kl", "both"})
