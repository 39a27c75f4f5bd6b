"""The page as text: complete, self-contained, inert."""

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dashboards import html
from dashboards.page import axis_bound, effect_scales, level_of, place_of
from orchestrator.report.model import ClaimEffect, MapCell
from tests.test_report import reported

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&"


class Seen(HTMLParser):
    """Elements, attributes and text of a page, as a browser would see them."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.scripts: list[str] = []
        self.open: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "input", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, "elements nest"

    def handle_data(self, data: str) -> None:
        (self.scripts if self.open[-1:] == ["script"] else self.text).append(data)

    def with_tag(self, name: str) -> list[dict[str, str | None]]:
        return [attributes for tag, attributes in self.tags if tag == name]


def page(synthetic: Any, done: Any, claims: Any = None, **more: Any) -> str:
    return html(reported(synthetic, done, claims, **more))


@pytest.fixture(scope="module")
def whole(synthetic: Any) -> str:
    done = synthetic.grid({"none": [0.9, 0.9], "k1.reward": [0.8, 0.82]})
    done += synthetic.run("k3.reward", state="failed", progress=0.3)
    return page(synthetic, done, {"wins": "eval/in_domain/mean[kl=k1.reward] > 0.5"})


@pytest.fixture(scope="module")
def many(synthetic: Any) -> str:
    """The page of more cells than are drawn."""
    done = synthetic.grid({"none": [0.9, 0.9], "k1.reward": [0.8, 0.82]})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("orchestrator.report.MOST_CELLS", 3)
        return page(synthetic, done, {"wins": "eval/in_domain/mean[kl=k1.reward] > 0.5"})


def test_a_page_of_too_many_cells_has_the_claims_and_says_how_to_choose(many: str) -> None:
    seen = Seen(many)
    text = "".join(seen.text)
    assert "up to 3 cells, and 4 were chosen" in text
    assert "-w study=NAME" in text
    assert "--format parquet" in text
    assert [a["id"] for a in seen.with_tag("div") if "id" in a] == ["claims"]
    assert "wins" in text
    ids = {f"#{a['id']}" for _, a in seen.tags if "id" in a}
    assert {a["href"] for a in seen.with_tag("a")} <= ids
    assert seen.with_tag("figure") == []
    assert not json.loads(
        re.findall(r'<script type="application/json" id="data">(.*?)</script>', many)[0]
    )["configurations"]


def test_the_page_is_well_formed_and_names_everything_once(whole: str) -> None:
    seen = Seen(whole)
    assert seen.open == []
    ids = [a["id"] for _, a in seen.tags if "id" in a]
    assert len(ids) == len(set(ids))
    links = {a["href"] for a in seen.with_tag("a")}
    assert links <= {f"#{name}" for name in ids}, "every link leads somewhere on the page"
    assert len([link for link in links if str(link).startswith("#cell-")]) == 5


def test_nothing_is_fetched_and_only_our_scripts_run(whole: str) -> None:
    seen = Seen(whole)
    assert not [a for _, a in seen.tags if {"src", "srcset", "action", "data"} & a.keys()]
    assert not seen.with_tag("link")
    policy = next(a["content"] for a in seen.with_tag("meta") if a.get("http-equiv"))
    assert "default-src 'none'" in policy
    allowed = set(re.findall(r"'sha256-([^']+)'", policy))
    scripts = re.findall(r"<script>(.*?)</script>", whole, re.DOTALL)
    hashes = {base64.b64encode(hashlib.sha256(s.encode()).digest()).decode() for s in scripts}
    assert len(scripts) == 3
    assert hashes == allowed


def test_data_is_json_and_cannot_end_its_element(whole: str) -> None:
    (text,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', whole)
    assert "<" not in text
    assert len(json.loads(text)["configurations"]) == 3


def test_what_did_not_finish_is_not_painted_as_stable() -> None:
    levels = [
        level_of(MapCell(collapsed, ended, declared))
        for collapsed, ended, declared in ((0, 1, 3), (0, 1, 1), (0, 3, 3), (1, 3, 3), (0, 0, 3))
    ]
    assert levels == ["few", "few", "none", "some", "open"]


def test_an_effect_is_drawn_on_its_axis(synthetic: Any) -> None:
    done = synthetic.grid({"k1.reward": [0.6, 0.9], "k3.loss": [0.7, 0.4]})
    claim = "eval/in_domain/mean[kl=k1.reward] > eval/in_domain/mean[kl=k3.loss]"
    told = reported(synthetic, done, {"wins": claim})
    effect = told.cards[0].effect
    end = axis_bound([effect])
    assert effect.low < -end, "the interval is wider than its axis"
    drawn = html(told).partition('<svg class="effect')[2].partition("</svg>")[0]
    assert f'<circle cx="{place_of(effect.value, end)}"' in drawn
    assert drawn.count("<path") == 2, "both ends of the interval lie outside"
    assert '<rect class="region" x="90.0" y="0" width="90.0"' in drawn
    assert axis_bound([ClaimEffect(0.13, None, None, (0.0, None), "reward")]) == 0.2


def test_what_comes_from_outside_is_inert(synthetic: Any) -> None:
    done = synthetic.run("k1.reward", axes={"note": HOSTILE}) + synthetic.run(
        "k1.loss", state="failed", axes={"note": "other"}
    )
    failed = next(r for r in done.records if r.state == "failed")
    text = page(
        synthetic, done, question=HOSTILE, last_lines={failed.cell.id: HOSTILE}, created=HOSTILE
    )
    seen = Seen(text)
    assert not seen.with_tag("img")
    assert len(seen.with_tag("script")) == 4
    assert not [a for _, a in seen.tags if any(name.startswith("on") for name in a)]
    assert HOSTILE in "".join(seen.text)


def test_a_large_experiment_stays_small(synthetic: Any, whole: str) -> None:
    done = synthetic.none
    for beta in range(1, 21):
        done += synthetic.grid(
            {kl: [0.8, 0.81, 0.79] for kl in ("k1.reward", "k3.loss", "k1.loss")}, beta=beta / 20
        )
    grown = len(page(synthetic, done)) - len(whole)
    assert grown < 180 * 4500, "under 4.5 kB a cell"


def test_accuracies_in_and_out_of_domain_have_one_axis() -> None:
    """A narrow interval of one measure is not drawn wider than a broad one of the other."""
    effects = {"eval/in_domain/mean": 0.464, "eval/out_of_domain/mean": 0.004, "reward": 0.004}
    cards = [
        SimpleNamespace(effect=ClaimEffect(value, None, None, (0.0, None), metric))
        for metric, value in effects.items()
    ]
    ends = effect_scales(cast("Any", cards))
    assert ends["eval/in_domain/mean"] == ends["eval/out_of_domain/mean"] == 0.75
    assert ends["reward"] == 0.02


def test_the_answer_is_short_and_a_claim_is_one_line(synthetic: Any) -> None:
    done = synthetic.grid({"k1.reward": [0.8, 0.81, 0.79], "k3.loss": [0.7, 0.71, 0.69]})
    claim = "eval/in_domain/mean[kl=k1.reward] > eval/in_domain/mean[kl=k3.loss]"
    told = reported(synthetic, done, {"wins": claim, "also": claim})
    page = html(told)
    head = page[page.index("<main>") : page.index('<div id="claims">')]
    assert len(told.answer.split()) <= 60
    assert head.index("Stability") < head.index("Accuracy") < head.index('id="figure-distance"')
    assert page.count('<details class="claim ') == 2
    assert page.index('id="finals"') < page.index('id="details"') < page.index('id="provenance"')
