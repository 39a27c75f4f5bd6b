"""A report that has every section: what is in it as Markdown is `report.txt`."""

from typing import Any

from orchestrator.analysis.compare import compare
from orchestrator.analysis.libraries import LibraryCell, LibrarySide, library_side
from orchestrator.evaluate import ScoredBaseline
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
from orchestrator.report import Context, Origin, Report, report

WINS = "eval/in_domain/mean[kl=k1.reward] > eval/in_domain/mean[kl=k3.loss]"
CLAIMS = {"unbiased_wins": WINS, "math500": "eval/math500/mean@32[kl=k1.reward] > 0.5"}
ORIGIN = Origin(
    job="4711_3",
    orch="0.1.0",
    commit="abcdef0123456789+changes",
    mlflow="f00d",
    mlflow_url="https://mlflow.example/#/experiments/1/runs/f00d",
    library="micro 1",
    versions="python 3.11.7, torch 2.13.0",
)
NUMBERS = (
    PublishedNumber(name="small", claim=WINS, relative_improvement=0.1, where="Fig. 5"),
    PublishedNumber(
        name="other", claim=WINS.replace("k3.loss", "k2.loss"), relative_improvement=0.2
    ),
)
FAULTS = ("cell-s0 at step 100: micro_sort mean@4 is nan; it is in no mean.", "seed 1 lacks b")


def runs(synthetic: Any) -> Any:
    """Return runs that hold one claim, collapsed, failed, stale, too noisy, and of two studies."""
    done = synthetic.grid(
        {
            "none": [0.9, 0.9],
            "k1.reward": [0.8, 0.82, 0.81, 0.82],
            "k3.loss": [0.7, 0.71, 0.72, 0.71],
        },
        metrics={"eval/accuracy_predicted": 0.83},
    )
    done += synthetic.grid({"k1.reward": [0.5, 0.5]}, study="async10", staleness=10)
    done += synthetic.run("k1.loss", outcome=synthetic.collapsed, accuracy=0.02)
    done += synthetic.run("k3.reward", state="failed", progress=0.3)
    done += synthetic.run("k1.both", study=("onpolicy", "async10"))
    return done + synthetic.run(beta=0.3, outcome=Outcome(kind="unclear", reason="too noisy"))


def figures() -> tuple[PublishedFigure, ...]:
    """Return one of the laboratory, one of curves, and one that nothing here redraws."""
    of = {"study": "onpolicy", "where": ("kl=k1.reward,none",)}
    panels = (
        PublishedPanel(title="Qwen", **of),
        PublishedPanel(title="KL", metrics=("eval/kl_forward",), **of),
        PublishedPanel(title="again", metrics=("eval/math/kl_forward", "eval/kl_forward"), **of),
        PublishedPanel(title="after", metrics=("tasks",), **of),
    )
    absent = PublishedPanel(title="x", study="async10", where=("kl=k3.loss",))
    return (
        PublishedFigure(figure="Fig. 1", title="Bias", shows="Less.", laboratory=True),
        PublishedFigure(figure="Fig. 2", title="Curves", shows="They rise.", panels=panels),
        PublishedFigure(figure="Fig. 3", title="None", shows="More.", panels=(absent,)),
    )


def libraries(synthetic: Any) -> LibrarySide:
    """Return one configuration in three libraries, of which one differs."""
    done = synthetic.none
    for library, values in (("verl", (0.8, 0.81, 0.82)), ("openrlhf", (0.7, 0.7104, 0.7208))):
        done += synthetic.grid({"k1.reward": values}, backend=library, micro=False)
    done += synthetic.grid({"k1.reward": (0.8, 0.81, 0.82)}, backend="skyrl", micro=False)
    asked = [LibraryCell(record.cell, record.cell.id) for record in done.records]
    return library_side("observed", asked, done.records, done.scores)


def whole(synthetic: Any) -> Report:
    """Return the report: with baselines, faults of evaluations, an origin, libraries, a paper."""
    done = runs(synthetic)
    failed = next(record for record in done.records if record.state == "failed")
    before = [
        score.model_copy(update={"cell_id": "base", "value": 0.25 if score.domain == "in" else 0.5})
        for score in done.scores[:6]
    ]
    declared = (Baseline(model="qwen2.5-7b"), Baseline(model="qwen2.5-7b", chat_template="none"))
    scored = [
        ScoredBaseline(declared[0], "base", tuple(before), "stands for it"),
        ScoredBaseline(declared[1], "other", (), ""),
    ]
    published = Published(
        source="A paper",
        numbers=NUMBERS,
        statements=(PublishedStatement(claim="unbiased_wins", says="It wins.", where="Fig. 2"),),
        figures=figures(),
    )
    spec = synthetic.spec(
        CLAIMS, evaluation=EvaluationSpec(baselines=declared), published=published
    )
    return report(
        compare(spec, done.records, done.scores),
        done.records,
        done.scores,
        spec,
        context=Context(
            origins={done.records[0].cell.id: ORIGIN},
            home="/runs/x.micro/report",
            baselines=scored,
            faults=FAULTS,
            sides=[libraries(synthetic)],
        ),
        last_lines={failed.cell.id: "".join(f"line {n}\n" for n in range(1000)) + "x" * 10_000},
    )
