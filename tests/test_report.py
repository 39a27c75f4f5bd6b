"""The report as data and as Markdown."""

import dataclasses
import json
from typing import Any

import pytest

from orchestrator.compare import compare
from orchestrator.report import Report, markdown, report
from orchestrator.report.data import setting_names
from orchestrator.report.model import Section

CLAIMS = {
    "unbiased_wins": "eval/in_domain/mean[kl=k1.reward] > eval/in_domain/mean[kl=k3.loss]",
    "math500": "eval/math500/mean@32[kl=k1.reward] > 0.5",
}
HOSTILE = "<script>alert(1)</script> [x](javascript:y) | `z`\n# head"


def reported(synthetic: Any, done: Any, claims: Any = CLAIMS, **more: Any) -> Report:
    spec = synthetic.spec(claims, question=more.pop("question", "Does it hold?"))
    comparison = compare(spec, done.records, done.scores)
    return report(comparison, done.records, done.scores, spec, **more)


def section(found: Report, name: str) -> Section:
    return next(s for s in found.sections if s.id == name)


def names(found: Report) -> set[str]:
    return {s.id for s in found.sections}


def full(synthetic: Any) -> Any:
    done = synthetic.grid({"none": [0.9, 0.9], "k1.reward": [0.8, 0.82], "k3.loss": [0.7, 0.71]},
                          metrics={"eval/accuracy_predicted": 0.83})  # fmt: skip
    done += synthetic.grid({"k1.reward": [0.5, 0.5]}, study="async10", staleness=10)
    done += synthetic.run("k1.loss", outcome=synthetic.collapsed, accuracy=0.02)
    return done + synthetic.run("k3.reward", state="failed", progress=0.3)


def test_the_answer_comes_first(synthetic: Any) -> None:
    found = reported(synthetic, full(synthetic))
    assert found.answer == "Of 2 claims, 1 is supported and 1 is not testable."
    assert [card.verdict for card in found.cards] == ["supported", "not testable"]
    assert found.sections[0].id == "limits"
    facts = dict(found.facts)
    assert facts["cells finished"] == "9 of 10"
    assert (facts["collapsed"], facts["failed"]) == ("1", "1")
    assert found.cards[0].cells, "a verdict names the cells it was judged on"


def test_everything_is_there(synthetic: Any) -> None:
    found = reported(synthetic, full(synthetic))
    assert names(found) == {
        "limits", "finals", "curves", "collapse", "reference", "predicted", "gradients",
        "staleness", "failures", "methods", "provenance",
    }  # fmt: skip


def test_micro_scale_is_told_before_anything_else(synthetic: Any) -> None:
    found = reported(synthetic, full(synthetic))
    assert found.banner.startswith("Micro scale: embedded trainer, not the paper's numbers")
    assert "embedded trainer" in found.sections[0].points[0]
    assert any("declared for verl" in point for point in found.sections[0].points)
    assert markdown(found).splitlines()[2].startswith("> **Micro scale")
    done = synthetic.grid({"k1.reward": [0.8, 0.8]}, micro=False)
    assert reported(synthetic, done).banner == ""
    assert not any("embedded" in p for p in reported(synthetic, done).sections[0].points)


def test_numbers_of_the_final_table(synthetic: Any) -> None:
    (table,) = section(reported(synthetic, full(synthetic)), "finals").tables
    row = next(r for r in table.rows if r[2] == "k1.reward β=0.1" and r[0] == "onpolicy")
    by_column = dict(zip(table.columns, row, strict=True))
    assert by_column["seeds finished"] == "2 of 2"
    assert by_column["in-domain accuracy"] == "0.810 [0.683, 0.937]"
    assert by_column["difference to no KL, same seeds"] == "−0.090 [−0.217, +0.037]"
    assert by_column["collapsed"] == "0 of 2"


def test_the_collapse_map_holds_the_whole_grid(synthetic: Any) -> None:
    maps = section(reported(synthetic, full(synthetic)), "collapse").maps
    onpolicy, asynchronous = maps
    assert onpolicy.title == "onpolicy · qwen2.5-7b"
    assert onpolicy.columns == ("no KL", "β 0.1")
    rows = dict(onpolicy.rows)
    assert rows["none"][1] is None
    assert (rows["k1.loss"][1].collapsed, rows["k1.loss"][1].ended) == (1, 1)  # type: ignore[union-attr]
    assert (rows["k3.reward"][1].ended, rows["k3.reward"][1].declared) == (0, 1)  # type: ignore[union-attr]
    assert asynchronous.columns == ("β 0.1",)


def test_prediction_and_staleness_are_set_beside_what_was_observed(synthetic: Any) -> None:
    found = reported(synthetic, full(synthetic))
    rows = section(found, "predicted").tables[0].rows
    assert {row[3] for row in rows} == {"0.830"}
    (stale,) = [r for r in section(found, "staleness").tables[0].rows if r[0] == "async10"]
    assert stale[3:] == ("10", "9.000 [9.000, 9.000]", "10")


def test_a_failure_shows_its_last_lines_and_no_more(synthetic: Any) -> None:
    done = full(synthetic)
    failed = next(r for r in done.records if r.state == "failed")
    lines = "\n".join(f"line {i}" for i in range(1000)) + "\n" + "x" * 10_000
    (entry,) = section(
        reported(synthetic, done, last_lines={failed.cell.id: lines}), "failures"
    ).entries
    assert failed.cell.id in entry.title
    assert "error: ValueError: boom" in entry.lines
    assert "line 1\n" not in entry.lines
    assert len(entry.lines) < 5000


def test_every_cell_can_be_traced(synthetic: Any) -> None:
    done = full(synthetic)
    (table,) = section(reported(synthetic, done), "provenance").tables
    assert [row[0] for row in table.rows] == [record.cell.id for record in done.records]
    collapsed = next(row for row in table.rows if "collapsed" in row[3])
    assert collapsed[3] == "collapsed (reward at step 60)"
    assert table.rows[0][6] == done.records[0].cell.directory
    assert table.rows[0][8:] == ("lm-eval 0.4.13", "6")


@pytest.mark.parametrize("states", [[], ["planned"], ["running"], ["failed", "cancelled"]])
def test_nothing_finished(synthetic: Any, states: list[str]) -> None:
    done = synthetic.none
    for seed, state in enumerate(states):
        done += synthetic.run(seed=seed, state=state, progress=0.2)
    found = reported(synthetic, done)
    assert found.answer == "No cell has finished yet: there is nothing to say."
    assert all(card.verdict == "not testable" for card in found.cards)
    assert json.dumps(found.data, allow_nan=False)
    assert "No cell has finished yet" in markdown(found)


def test_one_seed_has_no_intervals_and_is_told_so(synthetic: Any) -> None:
    found = reported(synthetic, synthetic.grid({"none": [0.9], "k1.reward": [0.8]}))
    assert any(
        "1 seed a configuration there are no intervals" in p for p in found.sections[0].points
    )
    assert "0.800 (one seed: no interval)" in markdown(found)


def test_everything_collapsed_to_no_number(synthetic: Any) -> None:
    diverged = synthetic.collapsed.model_copy(update={"cause": "nan"})
    nan = dict.fromkeys(
        ("eval/accuracy_in_domain", "eval/kl_forward", "train/reward_mean"), float("nan")
    )
    done = synthetic.none
    for seed in range(2):
        done += synthetic.run(seed=seed, outcome=diverged, metrics=nan, scored=False)
    found = reported(synthetic, done)
    assert dict(found.facts)["collapsed"] == "2"
    assert json.dumps(found.data, allow_nan=False)
    assert "0.000 \\[0.000, 0.000\\]" in markdown(found)


def test_no_claims(synthetic: Any) -> None:
    assert "states no claims" in reported(synthetic, full(synthetic), claims={}).answer


def test_greedy_decoding_is_called_by_its_name(synthetic: Any) -> None:
    done = synthetic.grid({"k1.reward": [0.8, 0.8]})
    sampling = done.scores[0].sampling.model_copy(update={"min_p": 1.0})
    scores = [score.model_copy(update={"sampling": sampling}) for score in done.scores]
    found = reported(synthetic, done._replace(scores=scores))
    assert any("greedy decoding" in point for point in found.sections[0].points)
    plain = reported(synthetic, done)
    assert not any("greedy decoding" in point for point in plain.sections[0].points)


def test_settings_are_called_by_what_tells_them_apart(synthetic: Any) -> None:
    def called(done: Any) -> list[str]:
        return setting_names(compare(synthetic.spec(), done.records, done.scores).configurations)

    assert called(synthetic.run()) == ["qwen2.5-7b"]
    clipped = [
        synthetic.run(axes={"loss.clip": clip}, beta=i) for i, clip in ((1, "none"), (2, "0.2"))
    ]
    assert called(clipped[0] + clipped[1]) == [
        "qwen2.5-7b, loss.clip none", "qwen2.5-7b, loss.clip 0.2",
    ]  # fmt: skip
    tasks = [
        synthetic.run(model=m, axes={"data": d}) for m, d in (("a", "math"), ("b", "countdown"))
    ]
    assert called(tasks[0] + tasks[1]) == ["a on math", "b on countdown"]


def test_markdown_says_what_the_page_says(synthetic: Any) -> None:
    text = markdown(reported(synthetic, full(synthetic)))
    assert "✓ **supported** (unbiased\\_wins): In-domain accuracy is higher with k1.reward" in text
    assert "| k1.loss |  | 1 of 1 |" in text
    assert "## Provenance" in text


def test_markup_in_names_is_inert_in_markdown(synthetic: Any) -> None:
    done = full(synthetic)
    failed = next(r for r in done.records if r.state == "failed")
    text = markdown(
        reported(synthetic, done, question=HOSTILE, last_lines={failed.cell.id: HOSTILE})
    )
    outside_code = "\n".join(line for line in text.splitlines() if not line.startswith("    "))
    assert "<script" not in outside_code
    assert "[x](" not in outside_code
    assert "\n# head" not in text


def test_data_is_small(synthetic: Any) -> None:
    done = synthetic.grid({kl: [0.8, 0.81, 0.79] for kl in ("k1.reward", "k3.loss", "none")})
    found = reported(synthetic, done)
    assert len(found.data["grids"]) == 2, "step grids are stored once"
    assert len(json.dumps(found.data | {"laboratory": []})) < 2000 * 9
    assert len(json.dumps(found.data["laboratory"])) < 6000


def test_a_report_is_plain_data(synthetic: Any) -> None:
    found = reported(synthetic, full(synthetic))
    assert json.loads(json.dumps(dataclasses.asdict(found), allow_nan=False))
