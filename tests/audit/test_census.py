"""docs/census.md shows the stored rows and the labels made by hand, and nothing else."""

from pathlib import Path

import pytest

from docs.tools import census
from orchestrator.audit import audit
from orchestrator.audit.counts import REFERENCE, UNDETERMINED

ROOT = Path(__file__).parents[2]


def test_the_page_is_what_the_rows_say() -> None:
    assert (ROOT / "docs/census.md").read_text(encoding="utf-8") == census.page(), (
        "python -m docs.tools.census > docs/census.md"
    )


def test_a_row_has_no_text_of_a_launch() -> None:
    rows = census.read(census.ROWS)
    assert len(rows) > 1000
    assert len({(each.repository, each.path) for each in rows}) == len(rows)
    for each in rows:
        assert len(each.commit) == 40
        assert not each.path.startswith("/")


def test_each_label_is_of_a_row_and_answers_every_question() -> None:
    rows = {(each.repository, each.path) for each in census.read(census.ROWS)}
    labels = census.read_labels()
    assert len(labels) >= 140
    assert all({*census.QUESTIONS} < each.keys() for each in labels)
    assert {(each["repository"], each["path"]) for each in labels} <= rows


def test_the_interval_widens_as_repositories_disagree() -> None:
    alike = census.interval([(5, 10)] * 20)
    apart = census.interval([(10, 10), (0, 10)] * 10)
    assert alike == (0.5, 0.5)
    assert apart[0] < 0.4 < 0.6 < apart[1]


def test_a_file_has_the_answer_of_most_of_its_commands() -> None:
    kl = "actor_rollout_ref.actor.use_kl_loss=True"
    every = audit(
        "".join(f"python3 -m verl.trainer.main_ppo {each}\n" for each in ("a=1", kl, f"{kl} b=1")),
        "x.sh",
    )
    assert census.facts(every[0]).anchor != REFERENCE
    chosen = census.usual(".sh", every)
    assert chosen is not None
    assert census.facts(chosen).anchor == REFERENCE
    assert census.usual(".py", every) is None


@pytest.mark.parametrize("is_known", [True, False])
def test_a_launch_that_is_not_determined_is_in_no_share(is_known: bool) -> None:
    row = census.read(census.ROWS)[0]
    counted = row.facts._replace(anchor=REFERENCE if is_known else UNDETERMINED)
    assert census.without_reference([row._replace(facts=counted)]) == (0, int(is_known))
