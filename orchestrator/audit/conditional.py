"""The verdicts of an undetermined launch, for every value of the facts that decide it.

The library's reader lists the values of a fact. Each is put into the launch, which is then read and
judged again: a case has the reader's own rules and no others.
"""

from collections.abc import Iterator
from dataclasses import replace

from orchestrator import plugins
from orchestrator.audit.findings import AuditFinding, ConditionalVerdict
from orchestrator.audit.fix import applied
from orchestrator.audit.judge import judge
from orchestrator.library.launches import Launch, LaunchReading

MOST = 6
"""Maximum number of cases. Where more are left, too many facts are missing for an answer."""
DEEPEST = 3
"""Maximum number of unknown facts in one condition."""


def conditional(
    reading: LaunchReading, launch: Launch, file: str
) -> tuple[ConditionalVerdict, ...]:
    """Return the verdict of each case, or nothing if a case has none or all have the same reason.

    The cases are exhaustive: if the verdict of one case is not known, none is returned.
    """
    cases: list[ConditionalVerdict] = []
    for case in _cases(reading, launch, file, ()):
        if case is None or len(cases) == MOST:
            return ()
        cases.append(case)
    return tuple(cases)


def _cases(
    reading: LaunchReading, launch: Launch, file: str, conditions: tuple[str, ...]
) -> Iterator[ConditionalVerdict | None]:
    """Yield each case of a launch; None for a case without a verdict."""
    if not reading.possibilities or len(conditions) == DEEPEST:
        yield None
    for each in reading.possibilities:
        changed = applied(launch, each.edits)
        if each.release:
            released = {reading.library: f"{each.release} if it is the release"}
            changed = replace(changed, versions={**launch.versions, **released})
        again = plugins.load_reader(reading.library).audit(changed)
        if again is None:
            yield None
            return
        named = (*conditions, each.when)
        if again.unknown:
            yield from _cases(again, changed, file, named)
            continue
        finding = judge(again, changed, file)
        when = " and ".join(named)
        yield ConditionalVerdict(when, finding.verdict, finding.term_verdict, _terms(finding))


def _terms(finding: AuditFinding) -> str:
    """Return the active KL terms without their weights, which may be those of a case."""
    places = (("reward", finding.kl_in_reward), ("loss", finding.kl_in_loss))
    return " and ".join(f"{term.estimator} in the {place}" for place, term in places if term.active)
