"""The addresses of an experiment's pages in MLflow, and the links to them in notes."""

import re

from orchestrator.tracking.names import allowed_name

CONFIGURATION_TAG = "configuration"
"""The tag by which the seeds of a configuration are grouped."""


def study_tag(name: str) -> str:
    """Return the name of the tag that a cell of a study has, with the value `yes`."""
    return allowed_name(f"study.{name}")


def runs_page(experiment_id: str) -> str:
    """Return the address of an experiment's runs below MLflow's, with their curves."""
    where = f"#/experiments/{experiment_id}/runs"
    return f"{where}?workflowType=machine_learning&compareRunsMode=CHART"


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
