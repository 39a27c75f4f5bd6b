"""The data types of a launch: its words and files, and a library's reading of them.

A backend's `audit` takes a Launch and returns a LaunchReading. All types are frozen. The module
imports nothing heavy.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple, Self

from orchestrator.errors import OrchError
from orchestrator.kl.estimators import UNCLAMPED, Clamp, EngineWeight, Ratio
from orchestrator.library.manifest import ReleaseTable
from orchestrator.library.release_marks import Replaced

AuditVerdict = Literal[
    "no_kl",
    "unbiased_reverse_kl",
    "rescaled_reverse_kl",
    "surrogate_reverse_kl",
    "zero_mean_noise",
    "unlikelihood_of_old_samples",
    "token_forward_kl",
    "token_reverse_kl",
    "k2_of_old_samples",
    "k3_of_old_samples",
    "biased_reward",
    "both",
    "teacher_kl",
    "other_objective",
    "rollout_policy_kl_only",
    "does_not_train",
    "undetermined",
]


class UnreadableScript(OrchError):
    """Raised for a file without a launch that orch can read. The message is one sentence."""


UNKNOWN = "\x00"
"""Stands in a word for a part that only a run of the script would show."""
UNSET = "\x01"
"""Stands in a word for a variable that the script reads and never sets. It is empty unless the
environment sets it."""


BOUNDS = " within"


class NamedRelease(str):
    """A release, a space, and the reason: with how it is known.

    named: a person, a script, a requirement or an installation says it. copy: the library's code
    lies in the project, where a fork may have changed it. A plain text counts as named.
    """

    how: Literal["named", "copy"]

    def __new__(cls, text: str, how: Literal["named", "copy"]) -> Self:
        """Return the text with how it is known."""
        release = super().__new__(cls, text)
        release.how = how
        return release

    @classmethod
    def how_of(cls, text: str) -> Literal["named", "copy"]:
        """Return how a release is known."""
        return text.how if isinstance(text, cls) else "named"


@dataclass(frozen=True, slots=True)
class CommandWord:
    """One word of a command line. `why`: the reason of each UNKNOWN, the name of each UNSET."""

    text: str
    lines: tuple[int, ...] = ()
    why: tuple[str, ...] = ()
    default_of: tuple[str, ...] = ()
    """Variables that nothing in the script sets (`$X`), whose defaults the text holds."""
    file: str = ""
    """The configuration file that holds the text, if it is another one."""
    choices: tuple[tuple[str, str], ...] = ()
    """What the UNKNOWN of the text may be: a condition in words, and the text where it holds."""


@dataclass(frozen=True, slots=True)
class Given:
    """A value that is written in a launch. `text` may hold UNKNOWN and UNSET."""

    text: str
    lines: tuple[int, ...] = ()
    why: tuple[str, ...] = ()
    mark: str = ""
    """Hydra's prefix of an override: `+`, `++`, `~` or nothing."""
    default_of: tuple[str, ...] = ()
    """As of CommandWord."""
    file: str = ""
    """As of CommandWord."""
    choices: tuple[tuple[str, str], ...] = ()
    """As of CommandWord."""


@dataclass(frozen=True, slots=True)
class ConfigDocument:
    """A YAML or TOML file: dotted key -> value.

    `builds_on`: the files that it names as its base.
    """

    name: str
    values: Mapping[str, Given]
    builds_on: tuple[str, ...] = ()
    kind: Literal["yaml", "toml", "call"] = "yaml"
    """`call`: the keyword arguments of a call in Python; `name` is then the class."""
    module: str = ""
    """For a `call`: the module that the class is imported from; empty where the file defines it."""
    imports: tuple[str, ...] = ()
    """For a `call`: the packages that its file imports, `NAME?` if under an `if`; `__main__` if
    the file is a program."""
    options: frozenset[str] | None = frozenset()
    """For a `call`: further keys that the program's own classes and parser take; None: some of them
    are not at hand."""
    defaults: Mapping[str, Given] = field(default_factory=dict)
    """For a `call` by a parser: the defaults that the program's own classes give."""
    parser: str = ""
    """For a `call`: the class of the parser that makes the object from options of the command line;
    empty: none does."""
    on_trainer: Mapping[str, Given] = field(default_factory=dict)
    """For a `call`: attributes that its file sets on the trainer, once that is made."""


@dataclass(frozen=True, slots=True)
class CutOff:
    """Flags of a script that the shell does not pass to the launch."""

    line: int
    """The line of the first one."""
    flags: tuple[str, ...]
    refused: bool
    """True if the launch cannot start as written; its words are then the intended ones."""


@dataclass(frozen=True, slots=True)
class CarriageReturn:
    """The carriage returns before the line ends of a shell script, which bash takes for text."""

    line: int
    """The first line with commands that has one."""
    breaks: bool
    """True if one follows a `\\`, which then does not continue its command."""


@dataclass(frozen=True, slots=True)
class AuditNote:
    """A remark for a user, and the lines it comes from."""

    text: str
    lines: tuple[int, ...] = ()
    stops: bool = False
    """True if the library refuses the launch for it."""
    apart: bool = False
    """True if it is no matter of the KL: no change of the term mends it, or is refused for it. If
    it stops too, it does so whatever the release."""
    of_advantage: bool = False
    """True if it holds for the library's own advantage alone."""
    of_text: bool = False
    """True if the text of the script has it, whatever the library and its release."""


class OwnCode(NamedTuple):
    """Somebody's own code in the place of a library's around the loss."""

    kind: Replaced
    name: str
    """`Class.method` or a function."""
    path: str
    lines: tuple[int, ...] = ()
    """The first and the last line; empty if the file is not at hand."""
    how: str = ""
    """How it takes the library's place, in words."""

    @property
    def where(self) -> str:
        """Return `file:first-last`, or the file alone."""
        return f"{self.path}:{'-'.join(map(str, self.lines))}" if self.lines else self.path


@dataclass(frozen=True, slots=True)
class Launch:
    """The words and documents of one command, or of one configuration file alone."""

    words: tuple[CommandWord, ...] = ()
    """The command line, wrappers (`srun`, `uv run`, `ray job submit --`) included."""
    documents: tuple[ConfigDocument, ...] = ()
    """Configuration files that apply, the weakest first."""
    line: int = 1
    case: str | None = None
    """The branches of the script that lead to the launch, in words."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Library -> its release (NamedRelease). Libraries of unknown release are absent; with BOUNDS
    after its name: what a requirement says of it (`>=0.9,<1`), a space, and the reason."""
    beside: Mapping[str, str] = field(default_factory=dict)
    """Path -> text of files of the project around the script, such as a fork's own source."""
    in_folder: Mapping[str, str] = field(default_factory=dict)
    """Name -> text of the files in the script's folder."""
    caveats: tuple[str, ...] = ()
    apart: tuple[OwnCode, ...] = ()
    """Somebody's own code that has no KL, as far as can be read."""
    missing: tuple[str, ...] = ()
    """Configuration files that the launch names and that could not be read."""
    cut_off: CutOff | None = None
    carriage_return: CarriageReturn | None = None
    """Of a shell script whose lines end in CR LF; its words are then those without the CR."""
    placeholder: tuple[str, int] | None = None
    """A `<place for a value>` in a shell script that keeps bash from starting it, and its line."""
    open_end: str = ""
    """Why `words` may be incomplete; empty if it is complete."""
    own: tuple[OwnCode, ...] = ()
    """Somebody's own code around the loss, which decides in place of the library."""
    names: tuple[str, ...] = ()
    """Of a launch in Python: the imports of its file by dotted name
    (`trl.rewards.accuracy_reward`), and the keywords that it passes to them
    (`trl.GRPOTrainer(tools)`). Imports inside a `try` are left out."""

    @property
    def in_files(self) -> frozenset[str]:
        """Return the keys that stand in configuration files, not on the command line."""
        return frozenset(key for document in self.documents for key in document.values)

    def release(self, *names: str) -> tuple[str, str]:
        """Return the release that something names for a library by one of its names, and the
        reason with it; empty without one."""
        named = next((self.versions[name] for name in names if name in self.versions), "")
        version, _, why = named.partition(" ")
        return version, f"{version}: {why}"

    def bounds(self, library: str) -> tuple[str, str]:
        """Return the bounds of a library's release, and the reason; empty without any."""
        bounds, _, why = self.versions.get(f"{library}{BOUNDS}", "").partition(" ")
        return bounds, why


@dataclass(frozen=True, slots=True)
class InReward:
    """The KL in the reward. A field is None if unknown, or if the KL is not active."""

    active: bool | None
    estimator: str | None = None
    beta: float | None = None


@dataclass(frozen=True, slots=True)
class InLoss:
    """The KL in the loss. `straight_through`: k2's gradient whatever the estimator's value.

    `weighted`: the importance ratio to the rollout policy multiplies the gradient.
    """

    active: bool | None
    estimator: str | None = None
    beta: float | None = None
    straight_through: bool = False
    weighted: bool = False


@dataclass(frozen=True, slots=True)
class ReadSetting:
    """One key that was read: given on those lines, or the release's default (no lines)."""

    key: str
    value: str
    lines: tuple[int, ...] = ()
    default_of: tuple[str, ...] = ()
    """Variables that a caller may set (`$X`), whose defaults the value holds."""
    file: str = ""
    """The configuration file that gives it, if it is not the audited one."""


@dataclass(frozen=True, slots=True)
class Inactive:
    """A flag that is set and has no effect, and the rule for it."""

    flag: str
    why: str
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
    `key`: the key whose value changes. `script`: another script that has the words.
    """

    key: str
    text: str | None
    lines: tuple[int, ...] = ()
    script: str = ""


@dataclass(frozen=True, slots=True)
class LaunchChange:
    """Edits of a launch that belong together, and their result in words: `k2 in the loss`.

    `also`: what else the edits change, as a sentence; empty if nothing.
    """

    words: str
    edits: tuple[Edit, ...]
    also: str = ""


@dataclass(frozen=True, slots=True)
class Possibility:
    """One value that an unknown fact of a launch may have. The audit reads the launch with it."""

    when: str
    """The value in words: `init_kl_coef ($KL) is 0`."""
    edits: tuple[Edit, ...] = ()
    """The changes of the launch that put the value in."""
    release: str = ""
    """The release of the library, where that is the unknown fact."""


@dataclass(frozen=True, slots=True)
class BoundNote:
    """Where a bound on the policy does not do what its name says, and what to write instead.

    `wrong`: True if no launch can mean it; it then counts as a contradiction.
    """

    text: str
    instead: str
    lines: tuple[int, ...] = ()
    wrong: bool = False


Decided = tuple[AuditVerdict, str]
"""A verdict and its reason."""
Range = tuple[float, float]
"""The bounds of a clip, as distances from 1."""
Divisor = Literal["nothing", "group_std", "batch_std"]
"""What an advantage is divided by."""
OldOf = Literal["", "batch", "sync"]


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The surroundings of the KL term, as facts of the library and of this launch.

    A reader states facts. orchestrator.audit.surroundings derives the effects on the term. The
    defaults are those of a plain policy gradient. A None is unknown, and makes the answer
    `assumed`.
    """

    advantage_divided_by: Divisor | None = "nothing"
    divisor_n: bool = False
    """True if the group's variance is a sum over n divided by n; False: by n - 1."""
    division_includes_kl: bool = True
    """True if a KL in the reward is divided with the task reward; False if it is added later."""
    divided_because: str = ""
    """The key and value that decide it, for a user."""
    own_rollout_in_mean: bool = False
    """True if the group's mean, which is subtracted, includes the rollout itself."""
    baseline_includes_kl: bool = True
    """True if the baseline is subtracted from a KL in the reward as well."""
    policy_loss: str = "ppo"
    """The policy loss, by its name in orchestrator.losses; the library's own name where that has
    none."""
    ratio: Ratio | None = "token"
    """The importance ratio of the policy loss: of each token, their product or their geometric
    mean over the sequence, or none."""
    clip: Range | None = None
    also_drops: str = ""
    """What the policy loss drops besides, a clause with the key; empty: nothing."""
    old_is_sampler: bool = False
    """True if the ratio is to the engine's probabilities; False: to the trainer's own, computed
    anew before the first update of a batch."""
    old_of: OldOf = ""
    """Of samples that lag: the old probabilities are the trainer's own, computed before a batch, or
    with the weights of the last sync with the engine; `ratio` is then `none` unless it is known how
    the sampler is weighed."""
    one_update: bool | None = False
    """True if the old probabilities are computed anew for every batch (or sync) and it has one
    update, however old its samples are: each ratio is 1. None: that is not known."""
    bound_notes: tuple[BoundNote, ...] = ()
    """Where a bound of this release does not do what its name says."""
    correction: str = ""
    """The importance weights or masks against the rollout engine, in words; empty: none."""
    engine_weight: EngineWeight | None = None
    """The same as the laboratory knows it; None: it has no number for it."""
    rejected: Literal["", "responses", "tokens"] = ""
    """What a rejection by the ratio to the engine takes out of the loss, and leaves in the mean of
    its group."""
    rejected_because: str = ""
    """The key and value that decide it, for a user."""
    length_weighted: bool = False
    """True if each response's tokens are averaged before the responses are."""
    kl_loss_factor: float | None = 1.0
    """The KL in the loss over the policy loss, both per token, from their aggregation alone; None:
    it depends on the responses."""
    aggregation_because: str = ""
    entropy: float = 0.0
    """Coefficient of an entropy bonus."""
    discount: str = ""
    """GAE's λ and γ with their values where they are not 1; empty: the return is not discounted."""
    controller: str = ""
    """The key and value by which a controller moves β while it trains; empty: β stays."""
    moving_reference: str = ""
    """How the reference policy follows the policy, a clause with the key; empty: it stays."""
    own_reference: str = ""
    """The key and value that name another model than the policy's for the reference policy."""
    clamp: Clamp = UNCLAMPED
    """The bounds of a token's KL; its gradient is zero beyond them."""
    clamp_of: tuple[str, ...] = ()
    """The estimators that the bounds hold for; empty: every one."""
    no_reward: str = ""
    """The key and value by which every task reward is 0; empty: rewards count."""
    notes: tuple[str, ...] = ()
    """Further facts of the launch that a user should know, each a sentence."""
    unread: tuple[str, ...] = ()
    """Reasons why a fact could not be read, a sentence for each."""

    @property
    def unweighed(self) -> str:
        """Return a clause if samples are older than the old policy of the ratio."""
        is_weighed = self.correction or self.rejected or not self.old_of
        return "" if is_weighed else ", and nothing weighs a sample that an older policy drew"


@dataclass(frozen=True, slots=True)
class TrainingRegime:
    """The training regime: on-policy if a launch learns from samples of the policy that it updates.

    `on_policy` is None if that is unknown. `why`: the deciding fact, for a user.
    """

    on_policy: bool | None
    why: str
    sizes: str = field(default="", compare=False)
    """The keys that give the number of train steps, with their values: equal regimes may differ."""

    steps: float | None = field(default=None, compare=False)
    """Train steps for each batch of rollouts, where the launch tells them."""
    ahead: bool = field(default=False, compare=False)
    """True if rollouts are sampled while the policy is updated, so by an older policy."""

    @property
    def because(self) -> str:
        """Return the deciding fact with its sizes."""
        return f"{self.why} ({self.sizes})" if self.sizes else self.why

    @classmethod
    def of_steps(cls, steps: float, sizes: str = "") -> "TrainingRegime":
        """Return the regime of so many train steps for each batch of rollouts.

        It is on-policy for one step. `sizes`: the keys that give the number, for a user.
        """
        count = "one train step" if steps <= 1 else f"{steps:g} train steps"
        return cls(steps <= 1, f"{count} for each batch of rollouts", sizes, steps)

    def behind(self, why: str, *, ahead: bool = False) -> "TrainingRegime":
        """Return the regime where an older policy samples, too, for this reason."""
        if (self.steps or 0) <= 1:
            return replace(self, on_policy=False, why=why, sizes="", ahead=ahead)
        return replace(self, on_policy=False, why=f"{self.why}, and {why}", ahead=ahead)

    @classmethod
    def unread(cls, keys: Iterable[str]) -> "TrainingRegime":
        """Return the unknown regime of a launch whose values of these keys cannot be read."""
        return cls(None, f"{', '.join(keys)} cannot be read here")


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
    """True for the table of the launch's release; False for another table, as of every key that
    some release has."""
    others: tuple[ReleaseTable, ...] = ()
    """Tables of other releases."""
    defaults: Mapping[str, str] = field(default_factory=dict)
    in_files: frozenset[str] = frozenset()
    """Keys that stand in configuration files, not on the command line."""
    own: frozenset[str] = frozenset()
    """Keys that a configuration of the launch's own adds, so that a command may change them."""
    ignoring: tuple[str, ...] = ()
    """Prefixes of sections that drop an unknown key instead of refusing it."""
    flag: str = ""
    """The prefix of a key on a command line: `--`."""
    named: str = ""
    """The release that is named and that orch has no table of: the table is that of the next."""
    guessed: bool = False
    """True if nothing names the release and the launch was not compared with other releases."""
    open: bool = False
    """True if a parser of somebody's own, which is not at hand, may take further keys."""
    pinned: bool = False
    """True if the launch's release is named and `table` is that release's: what it refuses does not
    start."""
    checkout: frozenset[str] = frozenset()
    """Keys of the library's own parser in the checkout where the script lies; empty: not found."""
    with_values: frozenset[str] = frozenset()
    """Those of them that have a value, so that Hydra refuses a `+`."""
    lost: tuple[str, ...] = ()
    """Files that the checkout's own configuration names, and that the checkout has not."""
    is_whole: bool = False
    """True if these are all keys that this parser takes."""
    opaque: str = ""
    """Why keys that are not given here may be given all the same; usually empty."""
    fork: str = ""
    """The program with the library's options that trains instead of it, and its own defaults of
    keys that are not given, a clause; usually empty."""


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
    group_size: int | None = None
    own_group: str = ""
    """A fork's key that may multiply the group."""
    rollout_kl: float | None = None
    """Weight of a KL to the policy that sampled, which is no KL to a reference policy."""
    sampler: str = ""
    """Somebody's own function that makes the samples in place of the library's; mostly empty."""
    inactive: tuple[Inactive, ...] = ()
    contradictions: tuple[AuditNote, ...] = ()
    settings: tuple[ReadSetting, ...] = ()
    rules: tuple[Rule, ...] = ()
    changes: tuple[LaunchChange, ...] = ()
    """Changes of the launch to another KL term, the smallest first. The audit reads the changed
    launch again and offers the first one that it would not criticise."""
    change_note: str = ""
    """Advice if no change of the launch is enough."""
    assumes: tuple[str, ...] = ()
    chosen: tuple[tuple[Replaced, str], ...] = ()
    """Policy losses and advantages, by their names, that the launch asks for and no release has."""
    unknown: tuple[str, ...] = ()
    """The reason why the KL cannot be determined; empty if it can."""
    possibilities: tuple[Possibility, ...] = ()
    """Of an unknown KL: every value of the first fact that it depends on, where they are few."""
    no_gradient: str = ""
    """The reason why the term in the loss has no gradient in this release; empty if it has one."""
    regime: TrainingRegime = TrainingRegime(None, "orch does not read it for this library")
    surroundings: Surroundings | None = None
    """None: the reader does not read them, and an answer with a KL is `assumed`."""
    own_release: bool = False
    """True if a file of the project, which the reader read, shows the release or replaces it."""
    held: HeldKeys | None = None
    """None: no table of this library's keys is known."""
    decided: Decided | None = None
    """The verdict and its reason, where an entry point makes something else of the term."""

    @property
    def given(self) -> Mapping[str, Sequence[Given]]:
        """Return what the launch gives each key; nothing where no table of the keys is known."""
        return self.held.given if self.held is not None else {}
