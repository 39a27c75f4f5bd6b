"""How right audit is on real scripts by other people, labelled by hand.

wild.jsonl has facts about them (repository, commit, path, what they configure), not their text: 49
that the readers were written with, and `held-*`, drawn later from other paths and mostly other
projects, with the verdict alone. `verdict` and `acceptable_verdicts` are of the KL terms,
on-policy. `regime`, `regime_because` and `verdict_in_regime` are of the launch: its sizes, epochs
and lag were read twice, by this reader and by hand or another program, and they say what becomes
of the term. ORCH_WILD_SCRIPTS names a folder that has the text of each in <id>/<file name>.

    ORCH_WILD_SCRIPTS=folder python tests/audit/wild.py

ORCH_WILD_CHECKOUTS names a folder of their projects, <owner>+<name>@<first 8 of the commit>/: each
is then read where it lies, with the files around it, as its author would.
"""

import json
import os
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from orchestrator.audit import AuditFinding, UnreadableScript, audit
from orchestrator.audit.libraries import NeighbourFiles, Projects

LABELS = Path(__file__).with_name("wild.jsonl")


class Score(NamedTuple):
    """One labelled script.

    `right`: the verdict on the KL terms is one that a reader of the file may give, and the verdict
    of the launch is the label's for its regime.
    """

    name: str
    verdict: str
    """Several, with ` and ` between, where the launches of one file differ."""
    acceptable: tuple[str, ...]
    in_regime: str
    expected_in_regime: str
    why: str
    fields: dict[str, bool]
    seconds: float = 0.0
    """CPU time of reading and judging it."""
    cases: tuple[str, ...] = ()
    """Of an undetermined script: its verdicts and those of its cases, if every launch has them."""
    meant: str = ""
    """The label's own verdict."""

    @property
    def right(self) -> bool:
        regime = self.in_regime in (self.expected_in_regime, "undetermined")
        return {*self.verdict.split(" and ")} <= {*self.acceptable} and regime

    @property
    def confident(self) -> bool:
        return self.verdict != "undetermined"

    @property
    def misled(self) -> bool:
        """True if the verdict is given for each case, and the label's verdict is in none."""
        return bool(self.cases) and self.meant not in (*self.cases, "undetermined")


def labels() -> list[dict[str, Any]]:
    """Every label."""
    return [json.loads(line) for line in LABELS.read_text(encoding="utf-8").splitlines()]


def scores(folder: Path, *, checkouts: bool = False) -> Iterator[Score]:
    """A score for every labelled script that the folder has."""
    for label in labels():
        path = folder / label["id"] / PurePosixPath(label["path"]).name
        if checkouts:
            project = f"{label['repo'].replace('/', '+')}@{label['commit'][:8]}"
            path = folder / project / label["path"]
        if not path.is_file():
            continue
        text, start = path.read_text(encoding="utf-8", errors="replace"), time.process_time()
        try:
            beside, releases = NeighbourFiles(path), label.get("versions", {})
            releases = (Projects().versions(path) if checkouts else {}) | releases
            found = audit(text, path.name, files=beside, versions=releases)
        except UnreadableScript as error:
            none = "undetermined"
            yield Score(label["id"], none, ("unreadable",), none, none, str(error), {})
            continue
        acceptable = {*label["acceptable_verdicts"]}
        # Cases count as a verdict only if the label accepts what is said in each of them.
        settled = all({c.term_verdict for c in each.conditional} <= acceptable for each in found)
        verdict = _only({v for each in found for v in _verdicts(each, cases=settled)})
        in_regime = _only({each.verdict for each in found})
        expected = label.get("verdict_in_regime", in_regime)
        is_open = any("undetermined" in _verdicts(each, cases=True) for each in found)
        cases = {v for each in found for v in _verdicts(each, cases=True)}
        yield Score(
            label["id"],
            verdict,
            tuple(label["acceptable_verdicts"]),
            in_regime,
            expected if verdict == label["verdict"] else in_regime,
            found[0].why,
            dict(_fields(found[0], label)),
            time.process_time() - start,
            () if verdict != "undetermined" or is_open else tuple(sorted(cases)),
            label["verdict"],
        )


def _verdicts(found: AuditFinding, *, cases: bool) -> set[str]:
    """Return the verdict on the terms. `cases`: those of all cases in place of `undetermined`."""
    return {c.term_verdict for c in found.conditional if cases} or {found.term_verdict}


def _only(verdicts: set[str]) -> str:
    return "undetermined" if "undetermined" in verdicts else " and ".join(sorted(verdicts))


def _fields(found: AuditFinding, label: dict[str, Any]) -> Iterator[tuple[str, bool]]:
    for name in ("library", "advantage_estimator", "group_size"):
        if name not in label:
            continue
        yield name, getattr(found, name) == label[name]
    for name in ("kl_in_reward", "kl_in_loss"):
        if name not in label:
            continue
        for part in ("active", "estimator", "beta"):
            yield (
                f"{name}.{part}",
                getattr(getattr(found, name.removeprefix("kl_")), part) == label[name][part],
            )


def main() -> int:
    """Print every miss and the shares."""
    folder, projects = map(os.environ.get, ("ORCH_WILD_SCRIPTS", "ORCH_WILD_CHECKOUTS"))
    if not folder and not projects:
        print("ORCH_WILD_SCRIPTS and ORCH_WILD_CHECKOUTS name no folder: nothing to score")
        return 2
    found = list(scores(Path(projects or folder or ""), checkouts=bool(projects)))
    for each in found:
        wrong = [name for name, right in each.fields.items() if not right]
        if not each.right or wrong:
            print(
                f"{each.name}: {each.verdict} of {'/'.join(each.acceptable)}, {each.in_regime} of "
                f"{each.expected_in_regime}; differs: "
                f"{', '.join(wrong) or 'nothing'}; {each.why}"
            )
    right = sum(each.right for each in found)
    unsure = sum(not each.confident for each in found)
    print(
        f"{len(found)} scripts: {right} right, "
        f"{sum(not e.right and e.confident for e in found)} wrong and confident, "
        f"{unsure} undetermined ({sum(e.acceptable == ('undetermined',) for e in found)} of them "
        f"must be; {sum(bool(e.cases) for e in found)} have a verdict for each case, "
        f"{sum(e.misled for e in found)} of them without the label's), "
        f"{1000 * statistics.median(e.seconds for e in found):.1f} ms of CPU (median)"
    )
    return int(right < 0.99 * len(found))


if __name__ == "__main__":
    sys.exit(main())
