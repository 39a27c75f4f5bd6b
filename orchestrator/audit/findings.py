"""The findings of an audit."""

from dataclasses import dataclass, field
from typing import Literal

from orchestrator.audit.key_check import KeyFinding
from orchestrator.audit.surroundings import Effect, EffectiveBeta
from orchestrator.library.launches import (
    AuditNote,
    AuditVerdict,
    Inactive,
    InLoss,
    InReward,
    LaunchChange,
    ReadSetting,
    Rule,
    TrainingRegime,
)


@dataclass(frozen=True, slots=True)
class ConditionalVerdict:
    """The verdict on a launch under a condition, where one unknown fact decides."""

    when: str
    """The condition in words: `init_kl_coef ($KL) is 0`."""
    verdict: AuditVerdict
    term_verdict: AuditVerdict
    terms: str
    """The active KL terms: `k3 in the loss`; empty without one."""


@dataclass(frozen=True, slots=True)
class AuditFinding:
    """The finding for one launch of a file, in one case it can take."""

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
    contradictions: tuple[AuditNote, ...]
    verdict: AuditVerdict
    why: str
    lines: tuple[int, ...]
    """Lines of the file that the verdict depends on, ascending."""
    rollout_kl: float | None = None
    settings: tuple[ReadSetting, ...] = ()
    rules: tuple[Rule, ...] = ()
    measured: str = ""
    """A sentence with the numbers that the KL laboratory computed for this term, or empty."""
    changes: tuple[LaunchChange, ...] = ()
    """Possible changes of the launch. `orchestrator.audit.audit` keeps at most one: the first
    change after which the launch, read again, is not criticised."""
    change_note: str = ""
    assumes: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    regime: TrainingRegime = field(default_factory=lambda: TrainingRegime(None, "not known"))
    """On-policy, off-policy or not known, with the reason."""
    term_verdict: AuditVerdict = "undetermined"
    """The on-policy verdict on the KL terms alone, without the effects of the rest of the loss."""
    otherwise: AuditVerdict | None = None
    """The verdict off-policy, if the regime is not known and the verdict depends on it."""
    effects: tuple[Effect, ...] = ()
    """Effects of the rest of the loss on the KL term."""
    effective_beta: tuple[EffectiveBeta, ...] = ()
    conditional: tuple[ConditionalVerdict, ...] = ()
    """For an undetermined launch: its verdict for every value of the unknown facts, if these are
    few. Empty if the verdict is known, or if some value leaves it unknown."""
    key_findings: tuple[KeyFinding, ...] = ()
    """Keys and values that the release does not accept in the intended way."""

    @property
    def confidence(self) -> Literal["certain", "assumed", "conditional", "none"]:
        """Return `none`, `conditional`, `assumed` or `certain`.

        `none`: the verdict is undetermined. `conditional`: it is undetermined, and known for every
        value of the facts that decide. `assumed`: the verdict depends on the assumptions in
        `assumes`. `certain`: the verdict depends only on the file and the release.
        """
        if self.verdict == "undetermined":
            return "conditional" if self.conditional else "none"
        return "assumed" if self.assumes else "certain"

    @property
    def problem(self) -> bool:
        """Return True if the KL term does not do what its name says, or the file has a mistake."""
        return (
            self.verdict in PROBLEMS
            or bool(self.contradictions)
            or any(each.mistake for each in self.key_findings)
        )


PROBLEMS = frozenset(
    {
        "zero_mean_noise",
        "unlikelihood_of_old_samples",
        "biased_reward",
        "rescaled_reverse_kl",
        "token_forward_kl",
        "k3_of_old_samples",
        "both",
        "other_objective",
    }
)
