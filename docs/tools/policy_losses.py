"""The page docs/policy_losses.md: which library trains which policy loss, with which gate.

`python -m docs.tools.policy_losses` prints it, from the ledgers of launches that orch translates. A
test compares the page with the output.
"""

import sys
from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any, get_args

from orchestrator import plugins
from orchestrator.errors import UnsupportedSetting
from orchestrator.lab.prove.scaled_down import NOWHERE, cell_of, on_few_gpus
from orchestrator.losses.table import POLICY_LOSSES, choices
from orchestrator.settings import CorrectionKind

LIBRARIES = ("verl", "skyrl", "openrlhf", "trl", "prime_rl")
GATES: tuple[str, ...] = get_args(CorrectionKind)
AGGREGATIONS: tuple[Mapping[str, Any], ...] = (
    {"aggregation": "token_mean"},
    {"aggregation": "sequence_mean"},
    {"aggregation": "constant", "constant_tokens": 1},
)
HEAD = """# Policy losses in the libraries

This page is made by `python -m docs.tools.policy_losses` from the launches that orch writes;
nothing on it was typed in. A cell says how the newest release of a library carries `loss.policy`:
*exact*, *approximated* (its ledger says how), an *extension* of orch, or `-` where it is refused.
The numbers are the weights and masks against the engine (`loss.correction`) that it takes with that
loss: {gates}. `async`: also where the engine lags (`max_staleness_steps`). `orch explain NAME` says
what a loss does; `tests/losses/test_libraries.py` runs the libraries' own functions.
"""


def page() -> str:
    """Return the page as Markdown."""
    gates = ", ".join(f"{number} `{name}`" for number, name in enumerate(GATES, 1))
    releases = [(name, plugins.load(name).versions[0]) for name in LIBRARIES]
    titles = ("loss", *(f"{plugins.load(name).title} {version}" for name, version in releases))
    lines = [f"| {' | '.join(titles)} |", f"|{' --- |' * len(titles)}"]
    for policy in choices():
        texts = [_text(name, version, policy) for name, version in releases]
        label = f"`{policy}`: {POLICY_LOSSES[policy].title.partition(':')[0].partition(' (')[0]}"
        lines.append(f"| {' | '.join((label, *texts))} |")
    return HEAD.format(gates=gates) + "\n" + "\n".join(lines) + "\n"


def _text(library: str, version: str, policy: str) -> str:
    status = _status(library, version, {"policy": policy})
    if not status:
        return "-"
    taken = [
        str(number)
        for number, kind in enumerate(GATES, 1)
        if _status(library, version, {"policy": policy, "correction": _bounded(kind)})
    ]
    stale = _status(library, version, {"policy": policy}, max_staleness_steps=2)
    return "; ".join(
        [status, *([", ".join(taken)] if taken else []), *(["async"] if stale else [])]
    )


def _bounded(kind: str) -> Mapping[str, object]:
    return {"kind": kind, "least": 0.0 if kind.startswith("tis") else 0.5, "most": 2.0}


def _status(library: str, version: str, loss: Mapping[str, Any], **more: object) -> str:
    """Return how a release carries a policy loss; empty if it refuses every launch with it."""
    for settings in _tried(loss):
        try:
            cell = on_few_gpus(cell_of(library, version, {**settings, **more}))
            plan = plugins.load(library).translate(cell, NOWHERE)
        except UnsupportedSetting:
            continue
        return next((e.status for e in plan.ledger if e.field == "loss.policy"), "exact")
    return ""


def _tried(loss: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    kls = ({"estimator": "none"}, {"estimator": "k1", "placement": "reward", "beta": 0.1})
    clips: tuple[Mapping[str, Any], ...] = ({}, {"clip": {"low": 1.0, "high": 4.0}})
    if not POLICY_LOSSES[loss["policy"]].measure:
        clips = ({},)
    for kl, aggregation, clip in product(kls, AGGREGATIONS, clips):
        yield {"kl": kl, "loss": {**loss, **aggregation, **clip}}


if __name__ == "__main__":
    sys.stdout.write(page())
