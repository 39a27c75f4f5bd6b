"""Jobs that wait and will not start by waiting: the scheduler's reason as a sentence."""

import time
from collections import Counter
from collections.abc import Mapping

from orchestrator.launch.slurm import poll, words
from orchestrator.rundir import RunFolder

PATIENCE_SECONDS = 30.0
"""How long a job may wait before its reason is looked at."""


def stuck(folder: RunFolder, options: Mapping[str, object]) -> list[str]:
    """One sentence a reason, with the number of jobs. options: `site.options`, for their values.

    Accounting keeps the last reason that was neither priority nor resources, also when it is over:
    only where that is a reason not to start, the queue is asked whether it holds. That is a call
    more.
    """
    from orchestrator.site.messages import stuck as meaning

    taken = poll.snapshot(folder)
    mine = {s.job for s in taken.jobs.values() if s.job and not s.drained}
    since = time.time() - PATIENCE_SECONDS
    late = {e.reason for e in taken.accounted().values()
            if e.word in words.WAITING and e.submitted < since}  # fmt: skip
    if not mine or not (taken.fault or any(meaning(reason, options) for reason in late)):
        return []
    queue = taken.queued() or {}
    reasons = Counter(
        e.reason for (job, _), e in queue.items() if job in mine and e.word in words.WAITING
    )
    told: Counter[str] = Counter()
    for reason, count in reasons.items():
        if (found := meaning(reason, options)) is not None:
            told[found.sentence] += count
    return [f"{count} job{'s wait' if count > 1 else ' waits'}: {what}"
            for what, count in told.items()]  # fmt: skip
