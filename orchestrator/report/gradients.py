"""What the KL terms of this experiment optimise, and the paper's Fig. 1 from the laboratory."""

from collections.abc import Mapping
from functools import cache
from typing import Any

from orchestrator.compare import Comparison
from orchestrator.report.data import rounded
from orchestrator.report.model import Figure, Section, Table
from orchestrator.scale import verdict_on

TITLE = "What the KL terms optimise"
PARAMETERS = ("a", "b")


@cache
def laboratory() -> Mapping[str, Any]:
    """Fig. 1 as the page draws it: per configuration and parameter, exact and sampled. The same in
    every report, and a second of work: made once a process."""
    from orchestrator.semantics.figure import figure1

    found = figure1()
    keys = ("bias", "sampled_bias", "variance", "sampled_variance")
    rows = [
        {"label": row["label"], "paper": row["in_paper"]}
        | {p: {key: rounded(row[p][key]) for key in keys} for p in PARAMETERS}
        for row in found["configurations"]
        if row["ratio"] == "token"
    ]
    return {key: found[key] for key in ("caveat", "setting", "trials", "sequences", "seed")} | {
        "rows": rows
    }


def gradients(comparison: Comparison, lab: Mapping[str, Any]) -> Section:
    """The verdict on every configuration, and bias and variance of the gradients (Fig. 1)."""
    setting = lab["setting"]
    policy, reference = setting["policy"], setting["reference"]
    figure = Figure(
        "gradients", "gradients", "Bias and variance of the gradient (Fig. 1)",
        "On the paper's autoregressive model (eq. 17, 18), not on a language model: the expected "
        "gradient's distance from that of the sequence-level reverse KL, and its variance. Filled: "
        f"exact. Open: {lab['trials']} trials of {lab['sequences']} sequences, seed {lab['seed']}. "
        f"Policy a={policy['a']}, b={policy['b']}; reference a={reference['a']}, "
        f"b={reference['b']}; T={setting['num_tokens']}. A bias of exactly zero has no filled mark "
        f"on a log axis. {lab['caveat']}",
        "Dots on a log axis: bias and variance of each KL configuration's gradient; the table "
        "holds the numbers.",
    )  # fmt: skip
    return Section(
        "gradients", TITLE,
        ("Derived from exact gradients of the paper's autoregressive model (orch explain).",),
        figures=(figure,),
        tables=(_verdicts(comparison), _numbers(lab)),
    )  # fmt: skip


def _verdicts(comparison: Comparison) -> Table:
    rows: dict[tuple[str, ...], None] = {}
    for found in comparison.configurations:
        told = verdict_on(found.runs[0].asked)
        rows[found.study, found.kl, told.summary, told.advice.text] = None
    return Table("The KL terms of this experiment", ("study", "KL", "its gradient", "advice"),
                 tuple(rows))  # fmt: skip


def _numbers(lab: Mapping[str, Any]) -> Table:
    columns = ("configuration", *(
        f"{name} d/d{p}" for p in PARAMETERS for name in ("bias", "sampled bias", "variance")
    ))  # fmt: skip
    rows = [
        (row["label"], *(
            f"{row[p][key]:.3g}"
            for p in PARAMETERS for key in ("bias", "sampled_bias", "variance")
        ))
        for row in lab["rows"]
    ]  # fmt: skip
    return Table("Gradients on the autoregressive model", columns, tuple(rows), searchable=True)
