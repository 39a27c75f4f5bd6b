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
    """Lines of the file that the verdict stands on, ascending."""
    rollout_kl: float | None = None
    settings: tuple[ReadSetting, ...] = ()
    rules: tuple[Rule, ...] = ()
    measured: str = ""
    """The laboratory's gradient of this term."""
    changes: tuple[LaunchChange, ...] = ()
    """Changes of the launch. `orchestrator.audit.audit` leaves the one that was read again and is
    not criticised, if there is a problem."""
    change_note: str = ""
    assumes: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    regime: TrainingRegime = field(default_factory=lambda: TrainingRegime(None, "not known"))
    """Whether it learns from samples of the policy that it updates, and why."""
    term_verdict: AuditVerdict = "undetermined"
    """The verdict on the KL terms alone, on-policy and without what surrounds them."""
    otherwise: AuditVerdict | None = None
    """The verdict off-policy, if the regime is not known and the verdict depends on it."""
    effects: tuple[Effect, ...] = ()
    """What surrounds the KL term and what that does to it."""
    effective_beta: tuple[EffectiveBeta, ...] = ()
    key_findings: tuple[KeyFinding, ...] = ()
    """Keys and values that the release does not take as they were meant."""

    @property
    def confidence(self) -> Literal["certain", "assumed", "none"]:
        """Return `none`, `assumed` or `certain`.

        `none`: the verdict is undetermined. `assumed`: it depends on the assumptions in `assumes`.
        `certain`: it depends only on the file and the release.
        """
        if self.verdict == "undetermined":
            return "none"
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
