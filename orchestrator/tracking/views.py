"""Ready views of an experiment in MLflow: filtered lists of runs with their curves, as links.

MLflow keeps a shared view as a tag of the experiment, and `viewStateShareKey` in an address opens
it (read in the page of MLflow 3.17.2, and seen there). The views sort by a metric: only sorted by
time, MLflow folds runs below their parents, and folded runs have no curves.
"""

import json
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple
from urllib.parse import quote

from orchestrator.records import Record
from orchestrator.spec.fields import text_of
from orchestrator.tracking.names import allowed_name

VIEW_TAG = "mlflow.sharedViewState."
PREFIX = "orch-"
MAX_VIEWS = 60
MAIN_METRICS = ("eval/accuracy_in_domain", "train/reward_mean")
CONFIGURATION_TAG = "configuration"
"""The tag by which the seeds of a configuration are grouped."""
CHARTS = (
    "eval/accuracy_in_domain",
    "eval/accuracy_out_of_domain",
    "train/reward_mean",
    "train/kl_reference",
    "train/entropy",
    "train/grad_norm",
    "rollout/response_tokens",
)
"""Metrics with a chart at the top of a view, in this order. MLflow adds a chart for every other
metric."""

SUMMARY_LINK, REPORT_LINK, RUNS_LINK = "orch:summary", "orch:report", "orch:runs"
MODELS_LINK = "orch:models"
"""Placeholders in notes for addresses that only MLflow knows; see `resolved`."""

_LINK = re.compile(r"\]\((orch:[\w:.+-]+)\)")


class View(NamedTuple):
    """A filtered list of the runs of cells."""

    key: str
    title: str
    search: str
    """The filter, in MLflow's search language."""
    num_runs: int
    """The number of runs in the view."""
    metric: str
    """The metric by which it is sorted, best first."""
    charts: tuple[str, ...] = ()
    """Canonical metrics that have a chart at the top."""
    folded: tuple[str, ...] = ()
    """Names of the sections that MLflow makes of the other metrics; they are folded."""

    @property
    def tag(self) -> tuple[str, str]:
        """Return the name and the value of the experiment's tag that holds the view."""
        state = {
            "searchFilter": self.search,
            "orderByKey": f"metrics.`{self.metric}`",
            "orderByAsc": False,
            "startTime": "ALL",
            "lifecycleFilter": "Active",
            "datasetsFilter": [],
            "runsHiddenMode": "SHOWALL",
            "hideEmptyCharts": True,
            "autoRefreshEnabled": True,
            "useGroupedValuesInCharts": True,
            "groupBy": {
                "aggregateFunction": "average",
                "groupByKeys": [{"mode": "tag", "groupByData": CONFIGURATION_TAG}],
            },
            "selectedColumns": [
                *(f"metrics.`{allowed_name(m)}`" for m in self.charts if "accuracy" in m),
                "tags.`kl`",
                "tags.`kl.beta`",
                "tags.`model`",
                "tags.`study`",
                "tags.`seed`",
                "tags.`outcome`",
            ],
            "compareRunSections": [
                {"uuid": "orch", "name": "What orch compares", "display": True},
                *(_folded(name) for name in self.folded),
            ],
            "isAccordionReordered": True,
            "compareRunCharts": [_chart(metric) for metric in self.charts],
        }
        return VIEW_TAG + self.key, json.dumps(state, separators=(",", ":"))


def _folded(name: str) -> dict[str, object]:
    return {"uuid": f"orch-{name}", "name": name, "display": False, "isReordered": True}


def _chart(metric: str) -> dict[str, object]:
    """Return a line chart in the form that MLflow's page stores (RunsChartsLineCardConfig of
    3.17)."""
    name = allowed_name(metric)
    return {
        "type": "LINE",
        "uuid": f"orch-{name}",
        "metricSectionId": "orch",
        "metricKey": name,
        "selectedMetricKeys": [name],
        "xAxisKey": "step",
        "xAxisScaleType": "linear",
        "scaleType": "linear",
        "yAxisKey": "metric",
        "yAxisExpressions": [],
        "lineSmoothness": 0,
        "range": {},
    }


def views(records: Sequence[Record]) -> list[View]:
    """Return views of the launched cells: only these have runs."""
    begun = [record for record in records if record.attempts]
    last = {name for record in begun for point in record.metrics[-1:] for name in point.values}
    metric = allowed_name(next((name for name in MAIN_METRICS if name in last), MAIN_METRICS[0]))
    sets = {tuple(point.values) for record in begun for point in record.metrics}
    drawn = {name for names in sets for name in names}
    charts = tuple(name for name in CHARTS if name in drawn)
    folded = tuple(sorted({name.rpartition("/")[0] for name in drawn}))
    views_ = [
        View(view_key(key), title, search, num_runs, metric, charts, folded)
        for key, title, search, num_runs in _choices(begun)
        if num_runs
    ]
    return list({view.key: view for view in views_}.values())[:MAX_VIEWS]


def _choices(begun: Sequence[Record]) -> Iterator[tuple[str, str, str, int]]:
    """Yield key, title, search and number of runs of each view."""
    yield "all", "All cells", "tags.`orch.kind` = 'cell'", len(begun)
    collapsed = sum(r.outcome is not None and r.outcome.kind == "collapsed" for r in begun)
    yield "collapsed", "Collapsed runs", "tags.`outcome` = 'collapsed'", collapsed
    failed = sum(r.state in ("failed", "timed_out") for r in begun)
    yield "failed", "Failed runs", "attributes.status = 'FAILED'", failed
    for name in dict.fromkeys(name for r in begun for name in r.cell.studies):
        of = sum(name in r.cell.studies for r in begun)
        yield f"study-{name}", f"Study {name}", _is(study_tag(name), "yes"), of
    labels = [r.cell.settings.kl.label for r in begun]
    for label in dict.fromkeys(labels):
        yield f"kl-{label}", f"KL {label}", _is("kl", label), labels.count(label)
    betas = [r.cell.settings.kl.beta for r in begun]
    for beta in sorted(set(betas)):
        text = text_of(beta)
        yield f"beta-{text}", f"β = {text}", _is("kl.beta", text), betas.count(beta)
    for tag, title in (("backend", "Library"), ("model", "Model")):
        axes = [str(r.cell.axes.get(tag) or getattr(r.cell.settings, tag).name) for r in begun]
        for value in dict.fromkeys(axes) if len(set(axes)) > 1 else ():
            yield f"{tag}-{value}", f"{title} {value}", _is(tag, value), axes.count(value)


def view_key(name: str) -> str:
    """Return a view's name in addresses: `orch-kl-k3.loss`."""
    return PREFIX + re.sub(r"[^\w.+-]", "-", name)


def study_tag(name: str) -> str:
    """Return the name of the tag that a cell of a study has, with the value `yes`."""
    return allowed_name(f"study.{name}")


def _is(tag: str, value: str) -> str:
    quoted = value.replace("'", "\\'")
    return f"tags.`{tag}` = '{quoted}' AND tags.`orch.kind` = 'cell'"


def runs_page(experiment_id: str, key: str = PREFIX + "all") -> str:
    """Return the address of a view below MLflow's."""
    return (
        f"#/experiments/{experiment_id}/runs?workflowType=machine_learning"
        f"&viewStateShareKey={quote(key, safe='')}&compareRunsMode=CHART"
    )


def run_page(experiment_id: str, run_id: str, artifact: str = "") -> str:
    """Return the address of a run, or of one of its artifacts, below MLflow's."""
    page = f"#/experiments/{experiment_id}/runs/{run_id}"
    if artifact:
        page += f"/artifacts/{quote(artifact)}"
    return f"{page}?workflowType=machine_learning"


def models_page(experiment_id: str) -> str:
    """Return the address of the list of models, which are the evaluated checkpoints."""
    return f"#/experiments/{experiment_id}/models?workflowType=machine_learning"


def as_markdown(views_: Sequence[View]) -> str:
    """Return the views as Markdown."""
    lines = [f"- [{view.title}](orch:{view.key}): {view.num_runs} runs" for view in views_]
    return "\n".join(["Ready views (curves and list):", "", *lines]) if lines else ""


def resolved(note: str, experiment_id: str, summary_id: str) -> str:
    """Return a note in which addresses replace the placeholders."""

    def address(hit: re.Match[str]) -> str:
        target = hit[1]
        if target == SUMMARY_LINK:
            page = run_page(experiment_id, summary_id)
        elif target == REPORT_LINK:
            page = run_page(experiment_id, summary_id, "report/index.html")
        elif target == MODELS_LINK:
            page = models_page(experiment_id)
        elif target == RUNS_LINK:
            page = runs_page(experiment_id)
        else:
            page = runs_page(experiment_id, target.removeprefix("orch:"))
        return f"]({page})"

    return _LINK.sub(address, note)
