"""One attempt as a job's worker makes it: drive.py ORDER.json, {folder, cell, options}."""

import json
import signal
import sys
from pathlib import Path

from orchestrator import plugins
from orchestrator.launch import node
from orchestrator.launch.endings import Stopped
from orchestrator.records import Cell
from orchestrator.rundir import RunFolder


def main() -> None:
    order = json.loads(Path(sys.argv[1]).read_text())
    cell = Cell.model_validate(order["cell"])
    folder = RunFolder(Path(order["folder"]))
    folder.open()
    cell_dir = folder.cell(cell)
    cell_dir.make(cell)
    attempt = cell_dir.new_attempt()
    plan = plugins.load(cell.settings.backend.name).translate(cell, cell_dir.paths(attempt))
    cell_dir.write(cell, plan)

    def stop(_number: int, _frame: object) -> None:
        raise Stopped("preempted")

    signal.signal(signal.SIGUSR1, stop)
    ending = node.run(plan, attempt, cell, order["options"])
    (attempt.path / "ending.json").write_text(json.dumps(ending._asdict()))


if __name__ == "__main__":
    main()
