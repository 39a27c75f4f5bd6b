"""The report as data and as Markdown."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orchestrator.analysis.compare import compare
from orchestrator.analysis.libraries import LibraryCell, LibrarySide, library_side
from orchestrator.cli.compare import print_review
from orchestrator.evaluate import ScoredBaseline
from orchestrator.metrics.outcome import RULE
from orchestrator.pipeline.stages import Review
from orchestrator.records import (
    Baseline,
    EvaluationSpec,
    Outcome,
    Published,
    PublishedFigure,
    PublishedNumber,
    PublishedPanel,
    PublishedStatement,
)
from orchestrator.report import Context, Origin, Report, answer, laboratory, markdown, report
from orchestrator.report.figures import setting_names, tables
from orchestrator.report.model import Link, Section
from orchestrator.settings import BackendRef
from orchestrator.spec.rehearse import semantics

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


def full(synthetic: Any, *, decided: bool = False) -> Any:
    more = ([0.81, 0.82], [0.72, 0.71]) if decided else ([], [])
    done = synthetic.grid(
        {
            "none": [0.9, 0.9],
            "k1.reward": [0.8, 0.82, *more[0]],
            "k3.loss": [0.7, 0.71, *more[1]],
        },
        metrics={"eval/accuracy_predicted": 0.83},
    )
    done += synthetic.grid({"k1.reward": [0.5, 0.5]}, study="async10", staleness=10)
    done += synthetic.run("k1.loss", outcome=synthetic.collapsed, accuracy=0.02)
    return done + synthetic.run("k3.reward", state="failed", progress=0.3)


def test_the_answer_comes_first(synthetic: Any) -> None:
    found = reported(synthetic, full(synthetic, decided=True))
    assert found.answer == (
        "Stability: k1 in the loss collapsed in 1 of 1 run; none of the other 12 did. "
        "Accuracy: k1 in the reward against k3 in the loss, +0.103 [+0.082, +0.123] in domain."
    )
    assert found.first is not None, "accuracy against KL stands above the claims"
    assert (
        found.missing == "1 claim cannot be tested on these runs; 1 of 14 cells have not finished."
    )
    assert [card.verdict for card in found.cards] == ["holds", "not testable"]
    assert found.sections[0].id == "finals"
    facts = dict(found.facts)
    assert list(facts.values())[:3] == ["13 of 14", "1 of 13", "1 of 2"]
    assert facts["seeds finished, of each configuration"] == "0 to 4 of 4"
    assert found.cards[0].cells, "a verdict names the cells it was judged on"


def test_an_open_claim_is_an_effect_and_what_is_missing(synthetic: Any) -> None:
    done = synthetic.grid({"k1.reward": [0.6, 0.64], "k3.loss": [0.7, 0.71]})
    found = reported(synthetic, done, {"wins": CLAIMS["unbiased_wins"]})
    assert "no difference seen (−0.085 [−0.227, +0.057]) in domain" in found.answer
    equal = synthetic.grid({"k1.reward": [0.7] * 6, "k3.loss": [0.7, 0.7, 0.7, 0.7, 0.7, 0.701]})
    equal = reported(synthetic, equal, {"wins": CLAIMS["unbiased_wins"]})
    assert "no effect larger than 0.05 (" in equal.answer, "the sentence says what the verdict says"
    assert found.missing == "1 of 1 claim is still open."
    (card,) = found.cards
    assert card.effect is not None
    assert card.effect.value == pytest.approx(-0.085)
    assert card.words == "open, contrary"
    turned = CLAIMS["unbiased_wins"].replace(">", "<")
    (card,) = reported(synthetic, done, {"loses": turned}).cards
    assert card.effect is not None
    assert card.effect.value == pytest.approx(0.085), "more is more as claimed"
    assert card.words == "open, as claimed"


@pytest.mark.parametrize("width", [80, 120])
def test_the_end_of_a_run_fits_a_terminal(
    synthetic: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    done = full(synthetic, decided=True)
    claims = {f"unbiased_wins_in_place_{i}": CLAIMS["unbiased_wins"] for i in range(15)}
    spec = synthetic.spec(claims)
    question = "Do KL configurations whose gradient is unbiased train more stably than others? " * 2
    compared = compare(spec, done.records, done.scores)
    print_review(Review(compared, Path("runs/test.micro/report/index.html"), 0), question)
    said = capsys.readouterr()
    lines = (said.out + said.err).splitlines()
    assert len(lines) <= 24, "with the line `Next:`, 25"
    assert max(map(len, lines)) <= width
    assert sum("unbiased_wins_in_place" in line for line in lines) >= 13
    assert "Stability: k1 in the loss collapsed" in said.out
    words = set(f"{question} {answer(compared)}".split())
    assert words <= set(said.out.split()), "no word is broken"


def test_one_seed_promises_no_number_of_seeds(synthetic: Any) -> None:
    done = synthetic.grid({"k1.reward": [0.6], "k3.loss": [0.7]})
    found = reported(synthetic, done, {"wins": CLAIMS["unbiased_wins"]})
    assert found.missing == (
        "1 of 1 claim is still open: one seed shows no spread, so run more of them."
    )
    (card,) = found.cards
    assert card.plain == "One seed shows no spread."


def test_published_figures_stand_beside_ours(synthetic: Any) -> None:
    done = full(synthetic)
    of = {"study": "onpolicy", "where": ("kl=k1.reward,none",)}
    panels = (
        PublishedPanel(title="Qwen", **of),
        PublishedPanel(title="KL", metrics=("eval/kl_forward",), **of),
        PublishedPanel(title="again", metrics=("eval/math/kl_forward", "eval/kl_forward"), **of),
        PublishedPanel(title="after", metrics=("tasks",), **of),
    )
    published = Published(
        statements=(PublishedStatement(claim="unbiased_wins", says="It wins.", where="Fig. 2"),),
        figures=(
            PublishedFigure(figure="Fig. 1", title="Bias", shows="Less.", laboratory=True),
            PublishedFigure(figure="Fig. 2", title="Curves", shows="They rise.", panels=panels),
            PublishedFigure(
                figure="Fig. 3",
                title="None",
                shows="More.",
                panels=(PublishedPanel(title="x", study="async10", where=("kl=k3.loss",)),),
            ),
        ),
    )
    spec = synthetic.spec(CLAIMS, published=published)
    comparison = compare(spec, done.records, done.scores)
    found = report(comparison, done.records, done.scores, spec)
    first, second, third = found.plates
    assert first.figure is not None
    assert second.figure is not None
    shown = [[found.data["configurations"][i]["name"] for i in p.at] for p in second.figure.panels]
    assert shown == [["none", "k1.reward β=0.1"]] * 5
    assert [(p.title, p.metric) for p in second.figure.panels] == [
        ("Qwen (here: exact in-domain accuracy) (micro)", "eval/accuracy_in_domain"),
        ("KL (micro)", "eval/kl_forward"),
        ("micro_sort (micro)", "eval/micro_sort/mean@4"),
        ("micro_copy (micro)", "eval/micro_copy/mean@4"),
        ("micro_reverse (micro)", "eval/micro_reverse/mean@4"),
    ], "what a metric stands in for is drawn once, and the title says which it is"
    assert second.here[0][1].startswith("It wins. +0.105 [")
    assert (third.figure, third.missing) == (
        None,
        "Nothing of this experiment redraws it yet. x: no cell of study async10 was chosen.",
    )
    assert (found.cards[0].says, found.cards[0].where) == ("It wins.", "Fig. 2")
    assert any(title.startswith("Bias for a: k1.reward 0") for _, title in first.here)
    assert "**Fig. 2, Curves.** They rise." in markdown(found)


def test_everything_is_there(synthetic: Any) -> None:
    found = reported(synthetic, full(synthetic))
    assert names(found) == {
        "limits",
        "finals",
        "curves",
        "collapse",
        "reference",
        "gradients",
        "staleness",
        "cost",
        "failures",
        "methods",
        "outcomes",
        "provenance",
    }


def test_the_reason_of_each_run_that_was_not_stable_is_told(synthetic: Any) -> None:
    unclear = Outcome(kind="unclear", reason="too noisy")
    done = synthetic.run("k1.loss", outcome=synthetic.collapsed) + synthetic.run(outcome=unclear)
    found = reported(synthetic, done + synthetic.run("k3.loss"))
    told = section(found, "outcomes")
    assert told.text == RULE
    assert [(row[2], row[5]) for row in told.tables[0].rows] == [
        ("collapsed", "reward fell to 0"),
        ("cannot tell", "too noisy"),
    ]
    facts = dict(found.facts)
    assert facts["runs collapsed"] == "1 of 2, 1 cannot tell"


def test_runs_that_ended_and_tell_nothing_have_ended(synthetic: Any) -> None:
    found = reported(synthetic, synthetic.run(outcome=Outcome(kind="unclear", reason="short")))
    ((_, (field,)),) = section(found, "collapse").maps[0].rows
    assert (str(field), dict(found.facts)["runs collapsed"]) == ("cannot tell", "cannot tell")
    tables = section(found, "finals").tables
    assert (tables[0].rows[0][1], tables[-1].rows[0][-2]) == ("cannot tell", "cannot tell")


def test_micro_scale_is_told_before_anything_else(synthetic: Any) -> None:
    found = reported(synthetic, full(synthetic))
    assert found.banner.startswith("Micro scale: embedded trainer, not the paper's numbers")
    assert "embedded trainer" in section(found, "limits").points[0]
    assert any("declared for verl" in point for point in section(found, "limits").points)
    assert markdown(found).splitlines()[2].startswith("> **Micro scale")
    done = synthetic.grid({"k1.reward": [0.8, 0.8]}, micro=False)
    assert reported(synthetic, done).banner == ""
    assert not any("embedded" in p for p in section(reported(synthetic, done), "limits").points)


def test_numbers_of_the_final_table(synthetic: Any) -> None:
    papers, *_, table = section(reported(synthetic, full(synthetic)), "finals").tables
    assert papers.columns[:3] == ("KL", "trained", "micro_sort")
    assert {row[0]: row[1] for row in papers.rows}["k1.loss β=0.1"] == "0 of 1"
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
    loss, reward = rows["k1.loss"][1], rows["k3.reward"][1]
    assert loss is not None
    assert reward is not None
    assert (loss.collapsed, loss.ended) == (1, 1)
    assert (reward.ended, reward.declared) == (0, 1)
    assert asynchronous.columns == ("β 0.1",)


def test_the_staleness_that_is_allowed_is_set_beside_what_was_observed(synthetic: Any) -> None:
    found = reported(synthetic, full(synthetic))
    (stale,) = [r for r in section(found, "staleness").tables[0].rows if r[0] == "async10"]
    assert stale[3:6] == ("10", "9.000 [9.000, 9.000]", "10")


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
    first = done.records[0]
    origin = Origin(
        job="4711_3",
        orch="0.1.0",
        commit="abcdef0123456789+changes",
        mlflow="f00d",
        mlflow_url="https://mlflow.example/#/experiments/1/runs/f00d",
        library="micro 1",
        versions="python 3.11.7, torch 2.13.0",
    )
    context = Context(origins={first.cell.id: origin}, home="/runs/x.micro/report")
    table, environments = section(reported(synthetic, done, context=context), "provenance").tables
    rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    assert [row["cell"] for row in rows] == [record.cell.id for record in done.records]
    assert table.anchors == tuple(f"cell-{record.cell.id}" for record in done.records)
    collapsed = next(row for row in rows if "collapsed" in row["outcome"])
    assert collapsed["outcome"] == "collapsed (reward at step 60)"
    row = rows[0]
    assert row["scores"] == "6 by lm-eval 0.4.13"
    assert (row["job"], row["environment"]) == ("4711_3", "1")
    assert environments.rows == (
        ("1", "0.1.0", "abcdef012345 (changed)", "python 3.11.7, torch 2.13.0"),
    )
    assert len(table.columns) <= 13, "a table that a screen shows"
    assert row["MLflow run"] == (Link("f00d", origin.mlflow_url),)
    assert row["directory"] == (Link(first.cell.directory, f"../cells/{first.cell.directory}/"),)
    assert (row["trained by"], row["declared for"]) == ("micro 1 on node1", "verl")
    assert (rows[1]["trained by"], rows[1]["environment"]) == ("micro on node1", "")


def test_faults_of_evaluations_are_on_the_page_before_the_numbers(synthetic: Any) -> None:
    told = ("cell-s0 at step 100: micro_sort mean@4 is nan; it is in no mean.", "seed 1 lacks b")
    found = reported(synthetic, full(synthetic), context=Context(faults=told))
    assert found.sections[0].id == "incomplete"
    assert found.sections[0].points == told
    text = markdown(found)
    assert "- seed 1 lacks b" in text
    assert text.index("Evaluations with faults") < text.index("Final accuracy")
    assert "incomplete" not in [s.id for s in reported(synthetic, full(synthetic)).sections]


def test_what_is_not_known_of_any_cell_has_no_column(synthetic: Any) -> None:
    (table,) = section(reported(synthetic, full(synthetic)), "provenance").tables
    assert not {"job", "commit", "MLflow run"} & set(table.columns)


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


def test_everything_collapsed_to_no_number(synthetic: Any) -> None:
    diverged = synthetic.collapsed.model_copy(update={"cause": "nan"})
    nan = dict.fromkeys(
        ("eval/accuracy_in_domain", "eval/kl_forward", "train/reward_mean"), float("nan")
    )
    done = synthetic.none
    for seed in range(2):
        done += synthetic.run(seed=seed, outcome=diverged, metrics=nan, scored=False)
    found = reported(synthetic, done)
    assert dict(found.facts)["runs collapsed"] == "2 of 2"
    assert json.dumps(found.data, allow_nan=False)
    assert "0.000 \\[0.000, 0.000\\]" not in markdown(found), "a collapse is no accuracy"


def test_every_setting_is_on_the_first_screen_the_worst_first(synthetic: Any) -> None:
    """A grid of three learning rates of which one died does not say that nothing collapsed."""
    done = synthetic.none
    for rate, accuracy, outcome in (
        ("1e-6", 0.8, None),
        ("1e-5", 0.02, synthetic.collapsed),
        ("5e-6", 0.7, None),
    ):
        for seed in (0, 1):
            axes = {"optimizer.learning_rate": rate}
            more = {"accuracy": accuracy, "outcome": outcome, "axes": axes, "scored": False}
            done += synthetic.run(seed=seed, **more)
    found = reported(synthetic, done, claims={})
    names = [name.rpartition(" ")[2] for name, _ in found.settings]
    assert names == ["1e-5", "5e-6", "1e-6"]
    assert found.settings[0][1].startswith("2 of 2 runs collapsed")
    assert found.data["worst"][1].endswith("1e-5"), "figures open with it"
    drawn = tables(found.data)["finals eval/accuracy_in_domain"]
    names = {row["name"]: row.get("value") for row in drawn if "name" in row}
    assert names == {"k1.reward β=0.1: all collapsed": None}, "it has its line in the figure"
    assert len(drawn) == 3
    assert "1e-5**: 2 of 2 runs collapsed" in markdown(found)


def test_the_first_figure_is_accuracy_against_distance(synthetic: Any) -> None:
    done = synthetic.grid({})
    for beta, inside, outside in ((0.05, 0.9, 0.2), (1.0, 0.5, 0.5)):
        distant = {"eval/accuracy_out_of_domain": outside, "eval/kl_reverse": 2.0 - beta}
        for seed in range(2):
            done += synthetic.run(
                beta=beta, seed=seed, accuracy=inside, scored=False, metrics=distant
            )
    found = reported(synthetic, done, claims={})
    assert found.first is not None
    rows = [row for row in found.first.views[0]["rows"] if "value" in row]
    assert [row["x"] for row in rows] == [1.95, 1, 1.95, 1]
    assert [row["value"] for row in rows] == pytest.approx([0.9, 0.5, 0.2, 0.5], abs=0.005)


def test_a_share_that_no_run_shows_has_a_bound(synthetic: Any) -> None:
    done = synthetic.grid({"none": [0.8, 0.81, 0.82], "k3.reward": [0.8, 0.81, 0.82]})
    claim = "collapse[kl=k3.reward] > collapse[kl=none]"
    (card,) = reported(synthetic, done, {"collapses": claim}).cards
    assert card.here == "0 of 3 collapsed, against 0 of 3; a share above 0.71 is excluded"


def test_the_sizes_of_tasks_are_those_of_their_answers(synthetic: Any) -> None:
    """Not of divergences, which are measured on the same tasks with one response each."""
    done = synthetic.grid({"k1.reward": [0.8, 0.8]})
    last = done.scores[-1]
    size = f"{last.task} ({last.num_items} × {last.repeats})"
    distant = last.model_copy(update={"metric": "kl_reverse", "num_items": 7, "repeats": 1})
    found = reported(synthetic, done._replace(scores=[*done.scores, distant]))
    (sizes,) = [point for point in section(found, "limits").points if "×" in point]
    assert size in sizes


def test_greedy_decoding_is_called_by_its_name(synthetic: Any) -> None:
    done = synthetic.grid({"k1.reward": [0.8, 0.8]})
    sampling = done.scores[0].sampling.model_copy(update={"min_p": 1.0})
    scores = [score.model_copy(update={"sampling": sampling}) for score in done.scores]
    found = reported(synthetic, done._replace(scores=scores))
    assert any("greedy decoding" in point for point in section(found, "limits").points)
    plain = reported(synthetic, done)
    assert not any("greedy decoding" in point for point in section(plain, "limits").points)


def test_settings_are_called_by_what_tells_them_apart(synthetic: Any) -> None:
    def called(done: Any) -> list[str]:
        return setting_names(compare(synthetic.spec(), done.records, done.scores).configurations)

    assert called(synthetic.run()) == ["qwen2.5-7b"]
    clipped = [
        synthetic.run(axes={"loss.clip": clip}, beta=i) for i, clip in ((1, "none"), (2, "0.2"))
    ]
    assert called(clipped[0] + clipped[1]) == [
        "qwen2.5-7b, loss.clip none",
        "qwen2.5-7b, loss.clip 0.2",
    ]
    releases = [
        synthetic.run(axes={"backend": name, "backend.version": version}, beta=i)
        for i, (name, version) in enumerate(
            (("verl | micro", "0.9.1 | none"), ("skyrl", "0.3.0")), 1
        )
    ]
    assert called(releases[0] + releases[1]) == [
        "qwen2.5-7b, backend verl 0.9.1 | micro",
        "qwen2.5-7b, backend skyrl 0.3.0",
    ]
    tasks = [
        synthetic.run(model=m, axes={"data": d}) for m, d in (("a", "math"), ("b", "countdown"))
    ]
    assert called(tasks[0] + tasks[1]) == ["a on math", "b on countdown"]


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


def test_baselines_stand_beside_what_was_trained_of_them(synthetic: Any) -> None:
    done = full(synthetic)
    scores = [
        s.model_copy(update={"cell_id": "base", "value": 0.25 if s.domain == "in" else 0.5})
        for s in done.scores[:6]
    ]
    declared = [Baseline(model="qwen2.5-7b"), Baseline(model="qwen2.5-7b", chat_template="none")]
    spec = synthetic.spec(CLAIMS, evaluation=EvaluationSpec(baselines=tuple(declared)))
    scored = [
        ScoredBaseline(declared[0], "base", tuple(scores), "stands for it"),
        ScoredBaseline(declared[1], "other", (), ""),
    ]
    found = report(
        compare(spec, done.records, done.scores),
        done.records,
        done.scores,
        spec,
        context=Context(baselines=scored),
    )
    (one,) = found.data["baselines"]
    assert one["finals"]["eval/in_domain/mean"] == pytest.approx(0.25)
    assert one["finals"]["eval/out_of_domain/mean"] == pytest.approx(0.5)
    assert (one["model"], one["name"]) == ("qwen2.5-7b", "base model")
    papers, *_, before, _ = section(found, "finals").tables
    assert papers.rows[0][:3] == ("base model", "", "0.250")
    rows = before.rows
    assert rows[0] == ("qwen2.5-7b", "its own", "0.250", "0.500", "stands for it")
    assert rows[1][2:4] == ("not evaluated", "not evaluated")
    assert any(
        "qwen2.5-7b (chat template: none) is not evaluated" in p
        for p in section(found, "limits").points
    )


def published(synthetic: Any, *, micro: bool) -> Report:
    claim = "eval/in_domain/mean[kl=k1.reward] > eval/in_domain/mean[kl=k3.loss]"
    numbers = (
        PublishedNumber(name="small", claim=claim, relative_improvement=0.1, where="Fig. 5"),
        PublishedNumber(
            name="other", claim=claim.replace("k3.loss", "k2.loss"), relative_improvement=0.2
        ),
    )
    done = synthetic.grid({"k1.reward": [0.8, 0.81], "k3.loss": [0.7, 0.71]}, micro=micro)
    spec = synthetic.spec({}, published=Published(source="A paper", numbers=numbers))
    comparison = compare(spec, done.records, done.scores)
    return report(comparison, done.records, done.scores, spec)


def test_published_numbers_are_never_compared_across_scales(synthetic: Any) -> None:
    part = section(published(synthetic, micro=True), "published")
    assert part.note.startswith("NOT COMPARABLE")
    assert {row[5] for row in part.tables[0].rows} == {"not comparable (micro scale)"}
    full_scale = section(published(synthetic, micro=False), "published")
    assert full_scale.note == ""
    first, second = full_scale.tables[0].rows
    assert first[2] == "+10.00 %"
    assert first[3].startswith("+14.18 % [")
    assert first[5] in ("inside our interval", "outside our interval")
    assert second[3].startswith("none: ")


def test_cost_counts_each_cell_once_in_the_total(synthetic: Any) -> None:
    done = synthetic.run(study=("onpolicy", "async10")) + synthetic.run(seed=1)
    (by_study, by_configuration) = section(reported(synthetic, done), "cost").tables
    assert [row[:2] for row in by_study.rows] == [
        ("onpolicy", "2"),
        ("async10", "1"),
        ("all together", "2"),
    ]
    assert by_study.rows[-1][4] == "10"
    assert len(by_configuration.rows) == 2


def libraries(synthetic: Any) -> tuple[Any, list[LibrarySide]]:
    done = synthetic.none
    for library, accuracy, step in (
        ("verl", 0.8, 0.01),
        ("openrlhf", 0.7, 0.0104),
        ("skyrl", 0.8, 0.01),
    ):
        for seed in (0, 1, 2):
            done += synthetic.run(
                "k1.reward",
                seed=seed,
                accuracy=accuracy + step * seed,
                backend=library,
                micro=False,
            )
    asked = [LibraryCell(record.cell, record.cell.id) for record in done.records]
    return done, [library_side("observed", asked, done.records, done.scores)]


def test_libraries_are_set_against_each_other(synthetic: Any) -> None:
    done, sides = libraries(synthetic)
    found = reported(synthetic, done, context=Context(sides=sides, base="verl"))
    part = section(found, "libraries")
    tables = {table.caption.partition(",")[0].partition(":")[0]: table for table in part.tables}
    differences = {row[1]: row for row in tables["Difference to verl"].rows}
    assert differences["openrlhf"][4] == "differs"
    assert differences["openrlhf"][2].startswith("−0.100")
    assert any("Over all questions" in text for text in part.text)
    for library in ("verl", "openrlhf"):
        part = section(
            reported(synthetic, done, context=Context(sides=sides, base=library)), "libraries"
        )
        told = semantics(BackendRef(name=library)).omits
        assert told
        assert {f"{library}, not imitated: {each}" for each in told} <= set(part.points)
    assert "libraries" not in names(reported(synthetic, done))


def test_intervals_over_items_stand_beside_those_over_seeds(synthetic: Any) -> None:
    done = synthetic.grid({"k1.reward": [0.5, 0.75], "none": [0.5, 0.5]})
    items = {
        record.cell.id: {
            s.task: np.array([s.value] * 64 + [s.value] * 64)
            for s in done.scores
            if s.cell_id == record.cell.id and s.metric == "mean@4"
        }
        for record in done.records
    }
    spec = synthetic.spec()
    found = report(compare(spec, done.records, done.scores, items), done.records, done.scores, spec)
    table = section(found, "finals").tables[-1]
    row = dict(zip(table.columns, table.rows[0], strict=True))
    assert row["... over seeds and items"].startswith("[")
    low, high = found.data["configurations"][0]["finals"]["eval/in_domain/mean"][4:]
    assert low is not None
    assert low < 0.625 < high


def test_the_stored_laboratory_is_what_the_laboratory_derives() -> None:
    """If this fails, write laboratory.json anew, as laboratory.py says."""
    stored, derived = laboratory.laboratory_data(), laboratory.derived_laboratory_data()
    assert {**stored, "rows": None} == {**derived, "rows": None}
    for ours, theirs in zip(stored["rows"], derived["rows"], strict=True):
        assert ours["label"] == theirs["label"]
        for parameter in laboratory.PARAMETERS:
            # The last digit of a rounded number depends on the machine's sums.
            assert ours[parameter] == pytest.approx(theirs[parameter], rel=2e-3, abs=1e-6)


def test_a_new_estimator_has_its_laboratory_derived(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(laboratory, "extended", lambda: ())
    monkeypatch.setattr(laboratory, "derived_laboratory_data", lambda: {"rows": "derived"})
    laboratory.laboratory_data.cache_clear()
    assert laboratory.laboratory_data() == {"rows": "derived"}
    laboratory.laboratory_data.cache_clear()
