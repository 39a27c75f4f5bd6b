"""What this experiment's KL terms are in its libraries, as measured in their own code."""

from collections.abc import Sequence

from orchestrator.compare import Comparison
from orchestrator.matrix.capability import RANK, Release, Row, matrix, releases, words
from orchestrator.report.model import Section, Table

TEXT = (
    "Measured in each library's own functions, on every sequence of a model whose gradients are "
    "known exactly, with rloo and a mean over tokens: the objective whose gradient the KL term has "
    "in expectation. The same estimator, place and β are different regularisers in different "
    "columns. `orch matrix --format json` gives the evidence."
)
LEGEND = (
    "≈ approximated, † through an extension of orch's, – refused, ! the verdict of `orch explain` "
    "says otherwise."
)
OWN = "The KL terms of this experiment, on samples of the policy itself"
OLDER = "... and on samples of an older policy (minibatches, staleness)"
MARKS = dict(zip(RANK, ("", " ≈", " †"), strict=True))


def capability(comparison: Comparison) -> Section | None:
    """The terms of this experiment first, then every other one; nothing where none of its
    libraries was measured."""
    chosen = _releases(comparison)
    if not chosen:
        return None
    rows = matrix(chosen)
    if not any(row.on_policy for row in rows):
        return None
    own = {c.kl for c in comparison.configurations}
    labels = list(dict.fromkeys(row.label for row in rows))
    off = any(run.asked.batch.num_minibatches > 1 or run.asked.max_staleness_steps
              for run in comparison.runs)  # fmt: skip
    mine = [label for label in labels if label in own]
    rest = [label for label in labels if label not in own]
    tables = (
        _table(OWN, rows, chosen, mine, False),
        _table(OLDER, rows, chosen, mine if off else [], True),
        _table("Every other KL term", rows, chosen, rest, False, searchable=True),
    )
    return Section("capability", "What each library makes of it", (TEXT, LEGEND),
                   tables=tuple(table for table in tables if table.rows))  # fmt: skip


def _releases(comparison: Comparison) -> list[Release]:
    """The releases the cells were declared for; one without a version stands for the newest."""
    known = releases()
    found: dict[Release, None] = {}
    for run in comparison.runs:
        backend = run.asked.backend
        match = [r for r in known if r[0] == backend.name and backend.version in (None, "", r[1])]
        if match:
            found[match[0]] = None
    return list(found)


def _table(
    caption: str, rows: Sequence[Row], chosen: Sequence[Release], labels: Sequence[str],
    off_policy: bool, *, searchable: bool = False,
) -> Table:  # fmt: skip
    by = {(row.label, row.library, row.version): row for row in rows}
    body = tuple(
        (label, *(_told(by[label, library, version], off_policy) for library, version in chosen))
        for label in labels
    )
    columns = ("KL term", *(f"{library} {version}" for library, version in chosen))
    return Table(caption, columns, body, searchable=searchable)


def _told(row: Row, off_policy: bool) -> str:
    found = row.off_policy if off_policy else row.on_policy
    if row.status == "refused" or (found is not None and "refused" in found):
        return "–"
    mark = MARKS[row.status]
    return words(found) + mark + ("" if found is None or found.get("agrees") else " !")
