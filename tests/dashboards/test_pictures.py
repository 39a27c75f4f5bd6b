"""Pictures beside the page: their data, read back from matplotlib's own objects."""

from pathlib import Path
from typing import Any

import pytest

from dashboards import pictures
from dashboards.pictures import PAGE, draw_figure, one_page
from orchestrator.analysis.compare import compare
from orchestrator.analysis.libraries import LibraryCell, library_side
from orchestrator.records import (
    Published,
    PublishedFigure,
    PublishedNumber,
    PublishedPanel,
)
from orchestrator.report import Context, Report, report

pytestmark = pytest.mark.slow
CLAIM = "eval/in_domain/mean[kl=k1.reward] > eval/in_domain/mean[kl=k3.loss]"


@pytest.fixture(scope="module")
def told(synthetic: Any) -> Report:
    done = synthetic.grid({"none": [0.9, 0.92]}, metrics={"eval/accuracy_predicted": 0.9})
    for beta in (0.1, 1.0):
        done += synthetic.grid({"k1.reward": [0.8, 0.82], "k3.loss": [0.7, 0.71]}, beta=beta)
    for note in ("a $x$ b", "plain"):
        done += synthetic.grid(
            {"k1.reward": [0.5]},
            study="async10",
            staleness=10,
            axes={"note": note},
            steps=90 + len(note),
        )
    done += synthetic.grid({"k1.reward": [0.6, 0.62]}, backend="skyrl", study="zoo")
    numbers = (PublishedNumber(name="one", claim=CLAIM, relative_improvement=0.1),)
    spec = synthetic.spec({}, published=Published(numbers=numbers))
    asked = [LibraryCell(r.cell, r.cell.id) for r in done.records if r.cell.axes["async"] == "0"]
    asked = [
        LibraryCell(a.cell.model_copy(update={"settings": a.cell.declared}), a.id) for a in asked
    ]
    sides = [library_side("predicted", asked, done.records, done.scores)]
    comparison = compare(spec, done.records, done.scores)
    return report(
        comparison, done.records, done.scores, spec, context=Context(sides=sides, base="verl")
    )


def drawn(told: Report, name: str) -> dict[str, Any]:
    """The matplotlib figures of one figure, by file name."""
    (figure,) = [f for s in told.sections for f in s.figures if f.id == name]
    return dict(draw_figure(figure, told))


def named(axes: Any) -> dict[str, list[float]]:
    return {line.get_label(): list(line.get_ydata()) for line in axes.get_lines()}


def test_curves_hold_the_data(told: Report) -> None:
    found = drawn(told, "curves")
    assert list(found) == [
        "curves-onpolicy-qwen2.5-7b",
        "curves-async10-qwen2.5-7b-note-a-x-b",
        "curves-async10-qwen2.5-7b-note-plain",
        "curves-zoo-qwen2.5-7b",
    ]
    first, second = found["curves-onpolicy-qwen2.5-7b"].axes
    assert (first.get_title(), second.get_title()) == ("k1.reward", "k3.loss")
    lines = named(first)
    assert list(lines) == ["no KL", "β=0.1", "β=1"]
    metric = "eval/accuracy_in_domain"
    for c in told.data["configurations"][:3]:
        if c["kl"] in ("none", "k1.reward"):
            name = "no KL" if c["kl"] == "none" else f"β={c['beta']:g}"
            assert lines[name] == c["curves"][metric]["m"]
    assert len(first.collections) == 3, "a band for each line of two seeds"
    assert not found["curves-async10-qwen2.5-7b-note-plain"].axes[0].collections, "one seed"


def test_dots_hold_the_data(told: Report) -> None:
    inside, _ = drawn(told, "finals")["finals-onpolicy-qwen2.5-7b"].axes
    names = [label.get_text() for label in inside.get_yticklabels()]
    at = {
        names[round(line.get_ydata()[0])]: line.get_xdata()[0]
        for line in inside.get_lines()
        if line.get_marker() not in ("|", "None")
    }
    wanted = {
        c["name"]: c["finals"]["eval/in_domain/mean"][0]
        for c in told.data["configurations"]
        if c["study"] == "onpolicy"
    }
    assert at == wanted
    assert names[-1] == "none", "the first configuration is on top"


def test_every_figure_of_the_page_has_its_pictures(told: Report, tmp_path: Path) -> None:
    folder = tmp_path / "figures"
    folder.mkdir()
    (folder / "old.png").write_bytes(b"of an earlier report")
    (folder / "notes.txt").write_text("mine")
    found = pictures(told, folder)
    figures = {f.id for s in told.sections for f in s.figures}
    assert (
        set(found)
        == figures
        >= {"finals", "curves", "stability", "published", "predicted", "gradients", "libraries"}
    )
    assert all(found.values())
    every = [name for names in found.values() for name in names]
    wanted = {f"{name}.{ending}" for name in every for ending in ("png", "pdf")}
    assert {path.name for path in folder.iterdir()} == wanted | {"notes.txt"}
    assert (folder / f"{every[0]}.png").read_bytes().startswith(b"\x89PNG")
    assert (folder / f"{every[0]}.pdf").read_bytes().startswith(b"%PDF")
    assert pictures(None, folder) == {}
    assert [path.name for path in folder.iterdir()] == ["notes.txt"]
    assert pictures(None, folder / "of nothing") == {}


def test_published_numbers_and_libraries_are_drawn_as_they_are(told: Report) -> None:
    (axes,) = drawn(told, "published")["published"].axes
    theirs = [line for line in axes.get_lines() if line.get_marker() == "D"]
    assert [list(line.get_xdata()) for line in theirs] == [[pytest.approx(10)]]
    found = drawn(told, "libraries")["libraries"]
    for axes, panel in zip(found.axes, told.data["libraries"], strict=True):
        assert named(axes) == panel["libraries"]


def test_one_page_holds_every_claim_and_redrawn_figure(synthetic: Any, tmp_path: Path) -> None:
    done = synthetic.grid({"none": [0.9, 0.92], "k1.reward": [0.8, 0.82], "k3.loss": [0.7, 0.71]})
    panels = tuple(
        PublishedPanel(title=draws, study="onpolicy", draws=draws) for draws in ("curves", "finals")
    )
    published = Published(
        figures=(PublishedFigure(figure="Fig. 4", title="a", shows="b", panels=panels),)
    )
    spec = synthetic.spec({"wins": CLAIM}, published=published)
    told = report(compare(spec, done.records, done.scores), done.records, done.scores, spec)
    canvas = one_page(told)
    assert tuple(canvas.get_size_inches()) == PAGE
    texts = " ".join(text.get_text() for text in canvas.texts)
    assert told.answer[:40] in texts
    assert "In-domain accuracy is higher" in texts
    effect, plate = canvas.axes
    (dot,) = [line for line in effect.get_lines() if line.get_marker() == "o"]
    assert dot.get_xdata()[0] == pytest.approx(0.105)
    assert plate.get_title() == "Fig. 4: curves"
    assert pictures(told, tmp_path)["claims"] == ("one-page",)
    assert (tmp_path / "one-page.pdf").read_bytes().startswith(b"%PDF")


def test_pictures_of_nothing_are_none(synthetic: Any, tmp_path: Path) -> None:
    done = synthetic.run(state="running", progress=0.0)
    spec = synthetic.spec()
    told = report(compare(spec, done.records, done.scores), done.records, done.scores, spec)
    assert set(pictures(told, tmp_path)) == {"gradients"}
