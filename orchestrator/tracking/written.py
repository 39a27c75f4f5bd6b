"""What a person wrote in MLflow over a text of orch. It stays.

Beside each note and each name that orch writes, a tag states what it wrote. A text that is neither
that one nor the new one is a person's.
"""

from collections.abc import Collection, Mapping

from orchestrator.identity import digest

KEY = "orch.key"
NOTE = "mlflow.note.content"
OUR_NOTE = "orch.note"
"""Tag: the hash of the note that orch wrote."""
OUR_NAME = "orch.name"
"""Tag: the name that orch gave to a run."""


def kept_note(wanted: Mapping[str, str], before: Mapping[str, str]) -> dict[str, str]:
    """Return the wanted tags, with the mark of their note; or with the note that a person wrote.

    before: the tags that are there.
    """
    ours = {**wanted, OUR_NOTE: digest(wanted[NOTE])}
    note, mark = before.get(NOTE), before.get(OUR_NOTE)
    if note is None or mark is None or note == wanted[NOTE] or digest(note) == mark:
        return ours
    return {**ours, NOTE: note, OUR_NOTE: mark}


def persons_tags(before: Mapping[str, str], ours: Collection[str] = ()) -> dict[str, str]:
    """Return the tags of a run or a model that neither orch nor MLflow has set.

    ours: names of tags that orch has set, besides those that begin with `orch.`.
    """
    return {
        name: value
        for name, value in before.items()
        if name not in ours and not name.startswith(("orch.", "mlflow."))
    }


def kept_name(wanted: str, now: str, before: Mapping[str, str]) -> str:
    """Return the name that a run should have: the wanted one, or a person's. now: the one it has.

    before: the tags of the run.
    """
    ours = before.get(OUR_NAME)
    return now if ours is not None and now not in (ours, wanted) else wanted
