"""The report as data and as Markdown; tests/golden/report.txt is one with every section."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orchestrator.analysis.compare import compare
from orchestrator.cli.compare import print_review
from orchestrator.pipeline.stages import Review
from orchestrator.records import Outcome, Published, Record, Spec
from orchestrator.report import Report, answer, laboratory, markdown, report
from orchestrator.report.figures import setting_names, tables
from orchestrator.report.libraries import gradients_section
from orchestrator.report.model import Link, Section
from orchestrator.spec import load
from orchestrator.spec.expand import expand
from tests.golden.report import CLAIMS, NUMBERS, ORIGIN, runs, whole
from tests.spec.spec_files import ROOT

HOSTILE = "<script>alert(1)</script> [x](javascript:y) | `z`\n# head"


def reported(synthetic: Any, done: Any, claims: Any = CLAIMS, **more: Any) -> Report:
    spec = synthetic.spec(claims, question=more.pop("question", "Does it hold?"))
    comparison = compare(spec, done.records, done.scores)
    return report(comparison, done.records, done.scores, spec, **more)


def section(found: Report, name: str) -> Section:
    return next(s for s in found.sections if s.id == name)


def test_what_the_page_draws_and_markdown_does_not_tell(synthetic: Any) -> None:
    """All that can be read of such a report is tests/golden/report.txt."""
    found = whole(synthetic)
    assert found.first is not None, "accuracy against KL stands above the claims"
    assert found.cards[0].cells, "a verdict names the cells it was judged on"
    first, second, third = found.plates
    assert first.figure is not None
    assert third.figure is None
    shown = [[found.data["configurations"][i]["name"] for i in p.at] for p in second.figure.panels]
    assert shown == [["none", "k1.reward β=0.1", "k1.reward β=0.3"]] * 5
    assert [(p.title, p.metric) for p in second.figure.panels] == [
        ("Qwen (here: exact in-domain accuracy)", "eval/accuracy_in_domain"),
        ("KL", "eval/kl_forward"),
        ("micro_sort", "eval/micro_sort/mean@4"),
        ("micro_copy", "eval/micro_copy/mean@4"),
        ("micro_reverse", "eval/micro_reverse/mean@4"),
    ], "what a metric stands in for is drawn once, and the title says which it is"
    (one,) = found.data["baselines"]
    assert one["finals"]["eval/in_domain/mean"] == pytest.approx(0.25)
    table = section(found, "provenance").tables[0]
    row = dict(zip(table.columns, table.rows[0], strict=True))
    assert table.anchors[0] == f"cell-{row['cell']}"
    (directory,) = row["directory"]
    assert row["MLflow run"] == (Link("f00d", ORIGIN.mlflow_url),)
    assert directory == Link(directory.text, f"../cells/{directory.text}/")


def test_what_is_not_known_has_no_section_and_no_column(synthetic: Any) -> None:
    found = reported(synthetic, synthetic.grid({"k1.reward": [0.8, 0.8]}, micro=False))
    assert not {"incomplete", "libraries", "published", "failures"} & {s.id for s in found.sections}
    (table,) = section(found, "provenance").tables
    assert not {"job", "commit", "MLflow run"} & set(table.columns)
    assert found.banner == ""
    assert not any("embedded" in point for point in section(found, "limits").points)


def test_published_numbers_are_compared_at_their_own_scale(synthetic: Any) -> None:
    done = synthetic.grid({"k1.reward": [0.8, 0.81], "k3.loss": [0.7, 0.71]}, micro=False)
    spec = synthetic.spec({}, published=Published(source="A paper", numbers=NUMBERS))
    found = report(compare(spec, done.records, done.scores), done.records, done.scores, spec)
    part = section(found, "published")
    assert part.note == ""
    first, second = part.tables[0].rows
    assert first[2] == "+10.00 %"
    assert first[3].startswith("+14.18 % [")
    assert first[5] in ("inside our interval", "outside our interval")
    assert second[3].startswith("none: ")


def test_an_open_claim_is_an_effect_and_what_is_missing(synthetic: Any) -> None:
    done = synthetic.grid({"k1.reward": [0.6, 0.64], "k3.loss": [0.7, 0.71]})
    found = reported(synthetic, done, {"wins": CLAIMS["unbiased_wins"]})
    assert "no difference seen (−0.085 [−0.227, +0.057]) in domain" in found.answer
    equal = synthetic.grid({"k1.reward": [0.7] * 6, "k3.loss": [0.7, 0.7, 0.7, 0.7, 0.7, 0.701]})
    equal = reported(synthetic, equal, {"wins": CLAIMS["unbiased_wins"]})
    assert "no effect larger than 0.05 (" in equal.answer, "the sentence says what the verdict says"
    assert found.missing == "1 of 1 claim is still open."
    (card,) = found.cards
    assert card.effect.value == pytest.approx(-0.085)
    assert card.words == "open, contrary"
    turned = CLAIMS["unbiased_wins"].replace(">", "<")
    (card,) = reported(synthetic, done, {"loses": turned}).cards
    assert card.effect.value == pytest.approx(0.085), "more is more as claimed"
    assert card.words == "open, as claimed"


@pytest.mark.parametrize("width", [80, 120])
def test_the_end_of_a_run_fits_a_terminal(
    synthetic: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    done = runs(synthetic)
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


def test_runs_that_ended_and_tell_nothing_have_ended(synthetic: Any) -> None:
    found = reported(synthetic, synthetic.run(outcome=Outcome(kind="unclear", reason="short")))
    ((_, field),) = section(found, "collapse").maps[0].rows
    assert (str(field), dict(found.facts)["runs collapsed"]) == ("cannot tell", "cannot tell")
    tables = section(found, "finals").tables
    assert (tables[0].rows[0][1], tables[-1].rows[0][-2]) == ("cannot tell", "cannot tell")


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
    done = runs(synthetic)
    failed = next(r for r in done.records if r.state == "failed")
    text = markdown(
        reported(synthetic, done, question=HOSTILE, last_lines={failed.cell.id: HOSTILE})
    )
    outside_code = "\n".join(line for line in text.splitlines() if not line.startswith("    "))
    assert "<script" not in outside_code
    assert "[x](" not in outside_code
    assert "\n# head" not in text


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


@pytest.fixture(scope="module")
def published() -> Spec:
    return load(ROOT / "experiments" / "comedy_full.yaml", ["seeds=[0,1]", "site=slurm_a100"])


def test_every_statement_is_a_claim(published: Spec) -> None:
    assert [each.claim for each in published.published.statements] == list(published.claims)
    assert "v1 of 26 December 2025" in published.published.source


def test_table_1_stands_beside_what_holds_here(published: Spec) -> None:
    planned = compare(published, [Record(cell, "planned") for cell in expand(published)], [])
    found = gradients_section(planned, laboratory.laboratory_data(), published.published.terms)
    assert [row[1] for row in found.tables[0].rows] == ["unbiased", "biased", "biased", "biased"]
