"""Train one cell and print its outcome: `python -m backends.micro CELL.json ...`."""

import argparse
import sys
from pathlib import Path

from backends.micro.plan import CELL, parse_cell
from orchestrator.errors import OrchError, RunFolderError
from orchestrator.records import AttemptPaths


def main() -> None:
    """Run the launch that `translate` writes.

    Exit with code 1 and a sentence on a user's mistake.
    """
    parser = argparse.ArgumentParser(prog="python -m backends.micro")
    parser.add_argument("cell", type=Path, help="cell.json of the launch")
    for name in ("plan", "attempt", "checkpoints"):
        parser.add_argument(f"--{name}-dir", type=Path, required=True)
    given = parser.parse_args()
    try:
        cell = parse_cell(given.cell.name, _read(given.cell))
        from backends.micro.train import run

        place = AttemptPaths(given.plan_dir, given.attempt_dir, given.checkpoints_dir)
        outcome = run(cell, AttemptPaths(*(path.absolute() for path in place)))
    except OrchError as error:
        sys.exit(f"error: {error}")
    sys.stdout.write(outcome.model_dump_json() + "\n")


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RunFolderError(f"{path} cannot be read as {CELL}: {error}") from error


if __name__ == "__main__":
    main()
