"""The view of an experiment in MLflow: its runs with their curves, as one link.

MLflow keeps a shared view as a tag of the experiment, and `viewStateShareKey` in an address opens
it (read in the page of MLflow 3.17.2, and seen there).
"""

import json
import re
from collections.abc import Sequence

from orchestrator.records import Record
from orchestrator.tracking.names import allowed_name

VIEW = "orch-all"
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
"""Metrics with a chart at the top of the view, in this order. MLflow adds a chart for every other
metric."""
SHOWN_TAGS = ("kl", "kl.beta", "model", "study", "seed", "outcome")


def view_tag(records: Sequence[Record]) -> tuple[str, str]:
    """Return the name and the value of the experiment's tag that holds the view."""
    last = {name for r in records for point in r.metrics[-1:] for name in point.values}
    metric = next((name for name in MAIN_METRICS if name in last), MAIN_METRICS[0])
    # Most points of a run have the same names.
    logged = {tuple(point.values) for r in records for point in r.metrics}
    drawn = {name for names in logged for name in names}
    charts = [name for name in CHARTS if name in drawn]
    folded = sorted({name.rpartition("/")[0] for name in drawn})
    state = {
        "searchFilter": "tags.`orch.kind` = 'cell'",
        "orderByKey": f"metrics.`{allowed_name(metric)}`",
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
            *(f"metrics.`{allowed_name(m)}`" for m in charts if "accuracy" in m),
            *(f"tags.`{name}`" for name in SHOWN_TAGS),
        ],
        "compareRunSections": [
            {"uuid": "orch", "name": "What orch compares", "display": True},
            *(
                {"uuid": f"orch-{name}", "name": name, "display": False, "isReordered": True}
                for name in folded
            ),
        ],
        "isAccordionReordered": True,
        "compareRunCharts": [_chart(name) for name in charts],
    }
    return f"mlflow.sharedViewState.{VIEW}", json.dumps(state, separators=(",", ":"))


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


def study_tag(name: str) -> str:
    """Return the name of the tag that a cell of a study has, with the value `yes`."""
    return allowed_name(f"study.{name}")


def runs_page(experiment_id: str) -> str:
    """Return the address of the view below MLflow's."""
    return (
        f"#/experiments/{experiment_id}/runs?workflowType=machine_learning"
        f"&viewStateShareKey={VIEW}&compareRunsMode=CHART"
    )


def resolved(note: str, experiment_id: str, summary_id: str) -> str:
    """Return a note in which addresses replace the placeholders that only MLflow knows."""
    summary = f"#/experiments/{experiment_id}/runs/{summary_id}"
    machine_learning = "?workflowType=machine_learning"
    addresses = {
        "orch:summary": summary + machine_learning,
        "orch:report": f"{summary}/artifacts/report/index.html{machine_learning}",
        "orch:runs": runs_page(experiment_id),
    }
    return re.sub(r"\]\((orch:\w+)\)", lambda hit: f"]({addresses[hit[1]]})", note)
