"""Pictures beside the page: their data, and what is drawn of it, read back from the SVG."""

import io
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from dashboards import picture_names, pictures
from dashboards.pictures import draw_figure
from orchestrator.analysis.compare import compare
from orchestrator.charts.files import converted
from orchestrator.pipeline import stages
from orchestrator.records import Published, PublishedNumber
from orchestrator.report import Report, report
from orchestrator.report.figures import every_figure
from tests.test_report import reported

pytestmark = pytest.mark.slow
CLAIM = "eval/in_domain/mean[kl=k1.reward] > eval/in_domain/mean[kl=k3.loss]"


@pytest.fixture(scope="module")
def told(synthetic: Any) -> Report:
    done = synthetic.grid({"none": [0.9, 0.92]})
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
    return report(compare(spec, done.records, done.scores), done.records, done.scores, spec)


def drawn(told: Report, name: str) -> dict[str, str]:
    """The pictures of one figure as SVG, by file name."""
    (figure,) = [f for s in told.sections for f in s.figures if f.id == name]
    return dict(draw_figure(figure, told))


def test_every_figure_of_the_page_has_its_pictures(told: Report, tmp_path: Path) -> None:
    folder = tmp_path / "figures"
    folder.mkdir()
    (folder / "old.png").write_bytes(b"of an earlier report")
    (folder / "notes.txt").write_text("mine")
    found = picture_names(told)
    pictures(told, folder)
    figures = {f.id for f in every_figure(told)}
    assert set(found) == figures >= {"finals", "curves", "gradients"}
    assert all(found.values())
    every = [name for names in found.values() for name in names]
    wanted = {f"{name}.{ending}" for name in every for ending in ("png", "pdf")}
    assert {path.name for path in folder.iterdir()} == wanted | {"notes.txt"}
    assert (folder / f"{every[0]}.png").read_bytes().startswith(b"\x89PNG")
    assert (folder / f"{every[0]}.pdf").read_bytes().startswith(b"%PDF")
    pictures(None, folder)
    assert [path.name for path in folder.iterdir()] == ["notes.txt"]
    pictures(None, folder / "of nothing")


def test_the_page_can_be_read_before_its_pictures_are_drawn(
    told: Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stages, "build_report", lambda *_, **__: told)
    module = sys.modules["dashboards.pictures"]  # the package has its function under that name
    monkeypatch.setattr(module, "converted", lambda svg, ending: b"drawn")
    before: list[tuple[set[str], list[Path]]] = []

    def look(page: Path) -> None:
        links = set(re.findall(r'href="figures/([^"]+)"', page.read_text(encoding="utf-8")))
        before.append((links, list(tmp_path.glob("figures/*"))))

    nothing: Any = None
    stages.write_report(nothing, tmp_path, figures=True, on_page=look)
    ((links, drawn),) = before
    assert drawn == []
    assert links == {path.name for path in tmp_path.glob("figures/*")}


def test_a_picture_is_the_same_whenever_it_is_drawn(told: Report) -> None:
    first, second = (drawn(told, "curves")["curves-zoo-qwen2.5-7b"] for _ in range(2))
    assert first == second
    image = converted(first, "png")
    assert image == converted(second, "png")
    with Image.open(io.BytesIO(image)) as opened:
        opened.load()
        assert opened.width > 1000
        assert len(opened.convert("RGB").getcolors(1 << 24) or ()) > 20, "it is painted"


def test_pictures_of_nothing_are_none(synthetic: Any, tmp_path: Path) -> None:
    done = synthetic.run(state="running", progress=0.0)
    found = picture_names(reported(synthetic, done, {}))
    assert {name for name, written in found.items() if written} == {"gradients"}
