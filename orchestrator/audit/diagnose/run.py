"""One run as the rules see it, and what a rule may find in it."""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from orchestrator.audit.diagnose.causes import CAUSES
from orchestrator.audit.diagnose.course import REWARD, Course
from orchestrator.audit.diagnose.facts import TrainingFacts
from orchestrator.audit.diagnose.term import LoggedTerm
from orchestrator.audit.diagnose.trace import LENGTH as LENGTH
from orchestrator.audit.diagnose.trace import Trace, noise

Certainty = Literal["sure", "likely", "possible"]
CERTAINTIES: tuple[Certainty, ...] = ("sure", "likely", "possible")

ENTROPY, GRADIENT = "train/entropy", "train/grad_norm"
CLIP, RATIO = "train/clip_fraction", "train/ratio_max"
MISMATCH, ESS, STALENESS = "rollout/mismatch_kl", "rollout/mismatch_ess", "rollout/staleness_mean"
SILENT = "train/groups_without_signal"

ENGINE_NATS = 1e-3
"""KL(engine || trainer) of a token above which rounding is no longer small: bf16 has 1e-5 to 1e-4,
fp8 2e-3 to 5e-3 in the embedded trainer."""


@dataclass(frozen=True)
class Evidence:
    """One thing that a log shows."""

    step: int
    metric: str
    text: str
    """A sentence without its full stop."""


@dataclass(frozen=True)
class CauseFound:
    """A cause for which a log has evidence."""

    cause: str
    """A key of CAUSES."""
    certainty: Certainty
    evidence: tuple[Evidence, ...]
    own_change: str = ""
    """What to change in this launch; empty: what the cause's entry says."""

    @property
    def change(self) -> str:
        """Return what to change, as one sentence."""
        return self.own_change or CAUSES[self.cause].change

    @property
    def first(self) -> int:
        """Return the earliest step of the evidence."""
        return min(each.step for each in self.evidence)


@dataclass(frozen=True)
class Diagnosis:
    """What went wrong in a run, the best answer first."""

    candidates: tuple[CauseFound, ...]
    notes: tuple[str, ...] = ()
    """What is often taken for a fault and is none."""
    untold: tuple[str, ...] = ()
    """What this log cannot tell, and the metric that would."""
    unit: str = "step"
    """Of the numbers in evidence: `row` where a log has no steps."""

    @property
    def first(self) -> CauseFound | None:
        """Return the answer; None: it cannot be told from this log."""
        return self.candidates[0] if self.candidates else None


@dataclass(frozen=True)
class Run:
    """All that a rule looks at."""

    trace: Trace
    facts: TrainingFacts
    """Of the launch; what it does not say, by the log."""
    course: Course
    logged: LoggedTerm
    """The KL term by the log alone."""

    @property
    def beta_in_words(self) -> str:
        """Return beta in words, with its source."""
        if self.facts.beta is None:
            return "beta"
        value = f"beta {self.facts.beta:.3g}"
        return f"{value} (by the log)" if self.facts.beta == self.logged.beta else value

    def shown(self, index: int, metric: str, text: str) -> Evidence:
        """Return what a metric shows at an index."""
        return Evidence(self.trace.at(index), metric, text)

    def mean(self, name: str, part: slice) -> float | None:
        """Return the mean of the logged values of a part; None without one."""
        values = self.trace.values(name)[part]
        return None if np.isnan(values).all() else float(np.nanmean(values))

    @property
    def hurt(self) -> bool:
        """Return True if the reward fell, or never rose."""
        return self.course.fell or not self.course.rose

    @property
    def ends(self) -> tuple[slice, slice]:
        """Return the first and the last steps, of which a mean is taken."""
        few = max(3, self.trace.window // 3)
        return slice(0, few), slice(-self.trace.window, None)

    def error(self, name: str) -> float:
        """Return four standard errors of a difference of two means over the first steps."""
        return 4 * noise(self.trace.values(name)) * math.sqrt(2 / self.ends[0].stop)

    @property
    def fall(self) -> tuple[Evidence, ...]:
        """The evidence that the reward fell; empty if it did not."""
        course = self.course
        if course.at_fall is None:
            return ()
        text = f"the reward falls, from {course.best:.3g} to {course.end:.3g} at the end"
        return (self.shown(course.at_fall, REWARD, text),)
