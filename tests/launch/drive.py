"""`launch` as the command line would call it: drive.py FOLDER CELLS.json WORKERS.

Prints each event as it comes, then a summary as JSON. Exits 1 with the sentence of an OrchError.
"""

import json
import signal
import sys
from collections import Counter
from pathlib import Path

from orchestrator.errors import OrchError
from orchestrator.launch import LaunchEvent
from orchestrator.launch.local import launch
from orchestrator.records import Cell
from orchestrator.rundir import RunFolder


def tell(event: LaunchEvent) -> None:
    if event.kind != "tick" and event.cell is not None:
        print(event.kind, event.cell.id, flush=True)


def main() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # also where the tests ignore it
    plain = json.loads(Path(sys.argv[2]).read_text())
    cells = [Cell.model_validate_json(json.dumps(c)) for c in plain]
    folder = RunFolder(Path(sys.argv[1]))
    try:
        done = launch(cells, folder, workers=int(sys.argv[3]), on_event=tell)
    except OrchError as error:
        sys.exit(str(error))
    states = Counter(seen.state for _, seen in done.states)
    print(json.dumps({"interrupted": done.interrupted, **states}))


main()
