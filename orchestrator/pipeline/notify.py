"""Tell a program that a run has ended (`site.options.on_end`).

A failure to tell is printed and changes nothing else: the run has trained.
"""

import json
import subprocess
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from orchestrator.pipeline.messages import say
from orchestrator.runs.experiment import Experiment
from orchestrator.runs.state import one_look
from orchestrator.spec.redaction import hide_in_text
from orchestrator.spec.site_options import cluster_options
from orchestrator.version import __version__

RunEnd = Literal["finished", "failed", "cancelled", "interrupted"]
SECONDS = 60
"""Time limit of the program."""


def notify(experiment: Experiment, ended: RunEnd | None, page: Path | None = None) -> None:
    """Call the program of `site.options.on_end`, if there is one, with a message. Never raise.

    ended: the end of the run; None: derive it from the states of the cells. page: the report.
    """
    program = cluster_options(experiment.spec.site).on_end
    if not program:
        return
    message = json.dumps(_message(experiment, ended, page))
    why = ""
    try:
        done = subprocess.run(
            program, input=message, text=True, capture_output=True, timeout=SECONDS
        )
        if done.returncode:
            last = (done.stderr or done.stdout).strip().splitlines()[-1:]
            why = ": ".join([f"exited with {done.returncode}", *map(hide_in_text, last)])
    except subprocess.TimeoutExpired:
        why = f"took more than {SECONDS} s and was stopped"
    except (OSError, ValueError) as error:
        why = f"could not be run: {getattr(error, 'strerror', None) or error}"
    if why:
        say(f"site.options.on_end: {program[0]} {why}; the run is as it was")


def _message(experiment: Experiment, ended: RunEnd | None, page: Path | None) -> Mapping[str, Any]:
    folder = experiment.folder
    with one_look(folder) as look:
        states = Counter(look.state_of(folder.cell(cell)).state for cell in experiment.cells)
    end = ended or ("failed" if states["failed"] else "cancelled" if states["cancelled"] else None)
    end = end or "finished"
    cells = {state: count for state, count in sorted(states.items()) if count}
    counts = ", ".join(f"{count} {state}" for state, count in cells.items())
    return {
        "text": f"orch: {folder.experiment} {end}: {counts}",
        "run": folder.experiment,
        "experiment": experiment.spec.name,
        "spec": experiment.spec.source,
        "ended": end,
        "cells": cells,
        "path": str(folder.path),
        "report": None if page is None else str(page),
        "time": time.time(),
        "orch": __version__,
    }
