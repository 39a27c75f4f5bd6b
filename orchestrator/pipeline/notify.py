"""Notify a command or a webhook that a run has ended (`site.options.on_end`).

A failure to notify is printed and changes nothing else: the run has trained.
"""

import json
import os
import subprocess
import time
from collections import Counter
from collections.abc import Mapping
from http.client import HTTPException
from pathlib import Path
from typing import Any, Literal
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from orchestrator.errors import EnvironmentFault
from orchestrator.pipeline.messages import say
from orchestrator.runs.experiment import Experiment
from orchestrator.runs.state import survey
from orchestrator.spec.redaction import hide_in_text
from orchestrator.spec.site_options import OnEnd, cluster_options
from orchestrator.version import __version__

RunEnd = Literal["finished", "failed", "cancelled", "interrupted"]
COMMAND_SECONDS, WEBHOOK_SECONDS = 60, 10
"""Time limits of a command and of a webhook."""


def notify(experiment: Experiment, ended: RunEnd | None, page: Path | None = None) -> None:
    """Notify the receiver in `site.options.on_end`, if there is one. Never raise.

    ended: the end of the run; None: derive it from the states of the cells. page: the report.
    """
    on_end = cluster_options(experiment.spec.site).on_end
    if on_end is None:
        return
    try:
        message = _message(experiment, ended, page)
        _send(on_end, json.dumps(message))
    except (OSError, HTTPException, ValueError, subprocess.SubprocessError) as error:
        say(f"site.options.on_end: {_why(on_end, error)}; the run is as it was")
    except EnvironmentFault as fault:
        say(f"site.options.on_end: {fault}; the run is as it was")


def _message(experiment: Experiment, ended: RunEnd | None, page: Path | None) -> Mapping[str, Any]:
    ids = {cell.id for cell in experiment.cells}
    states = Counter(s.state for cell_dir, s in survey(experiment.folder) if cell_dir.id in ids)
    absent = len(ids) - states.total()
    # The sum of two Counters leaves out what counts 0.
    cells = dict(sorted((states + Counter(planned=absent)).items()))
    end = ended or ("failed" if states["failed"] else "cancelled" if states["cancelled"] else None)
    end = end or "finished"
    counts = ", ".join(f"{count} {state}" for state, count in cells.items())
    name = experiment.folder.experiment
    return {
        "text": f"orch: {name} {end}: {counts}",
        "run": name,
        "experiment": experiment.spec.name,
        "spec": experiment.spec.source,
        "ended": end,
        "cells": cells,
        "path": str(experiment.folder.path),
        "report": None if page is None else str(page),
        "time": time.time(),
        "orch": __version__,
    }


def _send(on_end: OnEnd, message: str) -> None:
    """Raise OSError, HTTPException, ValueError, SubprocessError or EnvironmentFault."""
    if on_end.command:
        done = subprocess.run(
            on_end.command, input=message, text=True, capture_output=True, timeout=COMMAND_SECONDS
        )
        if done.returncode:
            last = (done.stderr or done.stdout).strip().splitlines()[-1:]
            last_line = f": {hide_in_text(last[0])}" if last else ""
            raise EnvironmentFault(f"{on_end.command[0]} exited with {done.returncode}{last_line}")
        return
    request = Request(  # noqa: S310 - _address takes http and https alone
        _address(on_end), message.encode(), {"Content-Type": "application/json"}
    )
    with urlopen(request, timeout=WEBHOOK_SECONDS):  # noqa: S310 - as above
        pass


def _address(on_end: OnEnd) -> str:
    address = on_end.webhook or os.environ.get(on_end.webhook_variable or "", "")
    if not address:
        raise EnvironmentFault(
            f"the variable {on_end.webhook_variable} is not set here: export the webhook's address"
        )
    if urlsplit(address).scheme not in ("http", "https"):
        raise EnvironmentFault("a webhook's address begins with https:// or http://")
    return address


def _why(on_end: OnEnd, error: Exception) -> str:
    """Return the reason of a failure, without the path of an address, which may be a secret."""
    if on_end.command:
        if isinstance(error, subprocess.TimeoutExpired):
            return f"{on_end.command[0]} took more than {COMMAND_SECONDS} s and was stopped"
        reason = error.strerror if isinstance(error, OSError) else error
        return f"{on_end.command[0]} could not be run: {reason or type(error).__name__}"
    host = urlsplit(on_end.webhook or os.environ.get(on_end.webhook_variable or "", "")).hostname
    if isinstance(error, HTTPError):
        return f"the webhook at {host} answered {error.code} {error.reason}"
    return f"the webhook at {host} cannot be reached ({type(error).__name__})"
