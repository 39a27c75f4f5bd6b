"""A backend whose cells count to num_train_steps, a unit of work each.

What a cell does besides is written in its data.instruction: see backends/fake/entry.py.
"""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from orchestrator.errors import UnsupportedSetting
from orchestrator.kl.library_semantics import PLAIN, Semantics
from orchestrator.library.protocol import Backend
from orchestrator.records import AttemptPaths, Cell, Checkpoint, LaunchPlan, MetricPoint
from orchestrator.settings import Settings


class Fake(Backend):
    name = "fake"
    versions = ("1",)
    capabilities: Mapping[str, Sequence[object]] = {}

    def translate(self, cell: Cell, place: AttemptPaths) -> LaunchPlan:
        instruction = cell.settings.data.instruction
        if instruction == "refuse":
            raise UnsupportedSetting("fake", "kl.estimator", "k1", ["k3"], "Choose k3.")
        kind, _, code = instruction.partition(":")
        program = kind in ("program", "ray")
        ranks = program and cell.resources.num_nodes > 1
        return LaunchPlan(
            cell_id=cell.id,
            backend="fake",
            version="1",
            argv=("python" if kind == "ray" else sys.executable, "-c", code if program else "pass"),
            files={"settings.json": cell.settings.model_dump_json()},
            env={"FAKE_ATTEMPT": str(place.attempt_dir)},
            entry=None if program else "backends.fake.entry:train",
            bring_up="ray" if kind == "ray" else "ranks" if ranks else "program",
            alone_on_ray="# alone" in code,
        )

    def read_metrics(self, attempt_dir: Path) -> Iterator[MetricPoint]:
        for line in (attempt_dir / "metrics.jsonl").read_text().splitlines():
            yield MetricPoint(**json.loads(line))

    def find_checkpoints(self, checkpoints_dir: Path) -> list[Checkpoint]:
        units = checkpoints_dir / "units"
        count = len(units.read_text().splitlines()) if units.exists() else 0
        return [Checkpoint(count, units)] if count else []

    def begun_checkpoints(self, checkpoints_dir: Path) -> list[Path]:
        return []

    def parse(self, argv: Sequence[str], files: Mapping[str, str]) -> Settings:
        return Settings.model_validate_json(files["settings.json"])

    def semantics(self, version: str | None) -> Semantics:
        return Semantics(PLAIN)


BACKEND = Fake()
