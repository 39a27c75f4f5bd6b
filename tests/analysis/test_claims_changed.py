"""Claims that are changed after a result are told, on the page and in `--json`."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from orchestrator.analysis.compare import comparison_data
from orchestrator.pipeline import stages
from orchestrator.pipeline.training import keep_spec
from orchestrator.records import ExitRecord
from orchestrator.report.front import missing
from orchestrator.rundir import RunFolder
from orchestrator.runs.experiment import Experiment

HIGHER = "eval/in_domain/mean[kl=k1.reward] > eval/in_domain/mean[kl=k3.loss]"


def test_claims_that_changed_after_a_result_are_told(synthetic: Any, tmp_path: Path) -> None:
    done = synthetic.grid({"k1.reward": [0.8, 0.81], "k3.loss": [0.7, 0.72]})
    cells = tuple(record.cell for record in done.records)
    folder = RunFolder.of(tmp_path, "made", "micro")

    def said(claims: dict[str, str]) -> str:
        experiment = Experiment(synthetic.spec(claims), (), cells, "local", folder, "micro")
        compared = stages.compare_records(experiment, records, done.scores, {})
        assert json.loads(json.dumps(comparison_data(compared)))["claims_changed"] == (
            compared.claims_changed
        )
        assert compared.claims_changed.removesuffix(".") in missing(compared, records)
        return compared.claims_changed

    keep_spec(Experiment(synthetic.spec({"a": HIGHER}), (), cells, "local", folder, "micro"))
    declared = {"a": HIGHER, "b": f"{HIGHER} in study onpolicy"}
    keep_spec(Experiment(synthetic.spec(declared), (), cells, "local", folder, "micro"))
    ended = folder.events()[-1]["time"]
    end = ExitRecord(state="succeeded", started=0, ended=ended)
    records = [replace(record, attempts=(end,)) for record in done.records]
    assert said(declared) == said({"a": f" {HIGHER}", "b": declared["b"]}) == ""
    other = {"a": HIGHER.replace(">", "<"), "c": HIGHER}
    told = "Claims changed after the first result: 1 added (c), 1 removed (b), 1 altered (a)."
    assert said(other) == told
    keep_spec(Experiment(synthetic.spec(other), (), cells, "local", folder, "micro"))
    assert said(other) == told, "another launch declares nothing that was seen"
