"""What the audit says of small scripts stays as answers.jsonl has it."""

from tests.audit.answers import answers, said


def test_every_answer_is_the_one_that_was_read_and_kept() -> None:
    """After a change that is meant: `python -m tests.audit.answers --write`, and read its diff."""
    changed = [
        (row["name"], row["says"], now) for row in answers() if (now := said(row)) != row["says"]
    ]
    assert not changed, f"{len(changed)} answers differ; the first: {changed[0]}"
