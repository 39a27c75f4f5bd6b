"""How right audit is on real scripts by other people, labelled by hand.

wild.jsonl has facts about them (repository, commit, path, what they configure), not their text: 49
that the readers were written with, and `held-*`, drawn later from other paths and mostly other
projects, with the verdict alone. ORCH_WILD_SCRIPTS names a folder that has the text of each in
<id>/<file name>.

    ORCH_WILD_SCRIPTS=folder python tests/audit/wild.py
"""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from orchestrator.audit import AuditFinding, UnreadableScript, audit

LABELS = Path(__file__).with_name("wild.jsonl")


class Score(NamedTuple):
    """One labelled script. `right`: the verdict is one that a reader of the file may give."""

    name: str
    verdict: str
    acceptable: tuple[str, ...]
    why: str
    fields: dict[str, bool]

    @property
    def right(self) -> bool:
        return self.verdict in self.acceptable

    @property
    def confident(self) -> bool:
        return self.verdict != "undetermined"


def labels() -> list[dict[str, Any]]:
    """Every label."""
    return [json.loads(line) for line in LABELS.read_text(encoding="utf-8").splitlines()]


def scores(folder: Path) -> Iterator[Score]:
    """A score for every labelled script that the folder has."""
    for label in labels():
        path = folder / label["id"] / PurePosixPath(label["path"]).name
        if not path.is_file():
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        try:
            found = audit(text, path.name)
        except UnreadableScript as error:
            yield Score(label["id"], "undetermined", ("unreadable",), str(error), {})
            continue
        usual = [each for each in found if each.usual] or found
        told = {each.verdict for each in usual}
        verdict = told.pop() if len(told) == 1 else "undetermined"
        yield Score(
            label["id"],
            verdict,
            tuple(label["acceptable_verdicts"]),
            usual[0].why,
            dict(_fields(usual[0], label)),
        )


def _fields(found: AuditFinding, label: dict[str, Any]) -> Iterator[tuple[str, bool]]:
    for name in ("library", "advantage_estimator", "group_size"):
        if name not in label:
            continue
        yield name, getattr(found, name) == label[name]
    for name in ("kl_in_reward", "kl_in_loss"):
        if name not in label:
            continue
        for part in ("active", "estimator", "beta"):
            yield f"{name}.{part}", getattr(getattr(found, name), part) == label[name][part]


def main() -> int:
    """Print every miss and the shares."""
    folder = os.environ.get("ORCH_WILD_SCRIPTS")
    if not folder:
        print("ORCH_WILD_SCRIPTS names no folder: nothing to score")
        return 2
    found = list(scores(Path(folder)))
    for each in found:
        wrong = [name for name, right in each.fields.items() if not right]
        if not each.right or wrong:
            print(
                f"{each.name}: {each.verdict} of {'/'.join(each.acceptable)}; differs: "
                f"{', '.join(wrong) or 'nothing'}; {each.why}"
            )
    right = sum(each.right for each in found)
    unsure = sum(not each.confident for each in found)
    print(
        f"{len(found)} scripts: {right} right, "
        f"{sum(not e.right and e.confident for e in found)} wrong and confident, "
        f"{unsure} undetermined"
    )
    return int(right < 0.97 * len(found))


if __name__ == "__main__":
    sys.exit(main())
