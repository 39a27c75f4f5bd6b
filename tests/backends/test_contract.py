"""Every backend keeps its contract: a library with the logs and checkpoints recorded of it."""

import json
import re
import shutil
import tomllib
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import ClassVar

from backends import openrlhf, prime_rl, skyrl, trl, verl
from backends.micro import BACKEND, disk
from backends.micro.shipped import POLICIES
from backends.prime_rl import config
from backends.prime_rl.manifest import MANIFEST
from backends.prime_rl.translate import sent
from backends.skyrl.launch.orch_skyrl import OPTIONS
from backends.skyrl.manifest import NEEDS
from backends.trl.options import SCRIPTS, options
from backends.verl.manifest import TABLES
from orchestrator.identity import flatten
from orchestrator.library.key_tables import load_options
from orchestrator.library.launches import Launch
from orchestrator.library.protocol import EmbeddedTrainer
from orchestrator.records import Cell, LaunchPlan
from orchestrator.settings import Kl
from orchestrator.spec.rehearse import rehearse
from orchestrator.testing.backend_contract import UNKNOWN_ESTIMATOR, BackendContract
from tests import golden
from tests.backends.specs import every
from tests.backends.trl.cells import BY_SEQUENCES, cell
from tests.replay import recorded


class _OfRecords(BackendContract):
    """The golden cells of a library, and what was recorded of it."""

    names: ClassVar[bytes] = rb"[a-z]+/[a-z_/]+"
    """A pattern of the names in its log."""

    def cells(self) -> tuple[Cell, ...]:
        return golden.cells(self.backend.name)

    def write_log(self, attempt_dir: Path) -> Path:
        recorded.attempt(self.backend.name, attempt_dir, {n: {"reward": 0.5} for n in (1, 2, 3)})
        return recorded.logs_of(self.backend.name, attempt_dir)[-1]

    def write_unknown_log(self, attempt_dir: Path) -> None:
        self.write_log(attempt_dir)
        for path in recorded.logs_of(self.backend.name, attempt_dir):
            changed = re.sub(self.names, lambda name: name[0].swapcase(), path.read_bytes())
            path.write_bytes(changed)

    def write_checkpoint(self, checkpoints_dir: Path, step: int) -> None:
        recorded.checkpoint(self.backend.name, checkpoints_dir, step, 1)


class TestVerl(_OfRecords):
    backend = verl.BACKEND

    def release_keys(self, version: str) -> Collection[str]:
        return {*TABLES[version].keys, *(f"{prefix}*" for prefix in TABLES[version].added)}

    def cut_checkpoint(self, checkpoints_dir: Path, step: int) -> None:
        """As verl is killed: it names a checkpoint after all of its files are there."""
        super().cut_checkpoint(checkpoints_dir, step)
        (checkpoints_dir / "x1" / "latest_checkpointed_iteration.txt").write_text(str(step - 5))


class TestOpenRLHF(_OfRecords):
    backend = openrlhf.BACKEND

    def release_keys(self, version: str) -> Collection[str]:
        keys = load_options(Path(openrlhf.__file__).with_name("options.json"))[version]
        return {*keys, *(f"--{key}" for key in keys)}

    def write_checkpoint(self, checkpoints_dir: Path, step: int) -> None:
        """In the middle of a run: at its end the last policy is there twice."""
        super().write_checkpoint(checkpoints_dir, step)
        shutil.rmtree(checkpoints_dir / f"step-{step}")


class TestSkyRL(_OfRecords):
    backend = skyrl.BACKEND

    def release_keys(self, version: str) -> Collection[str]:
        keys = load_options(Path(skyrl.__file__).with_name("options.json"))[version].keys()
        return {*keys, NEEDS, *(f"orch.{option}" for option in OPTIONS)}


class TestTRL(_OfRecords):
    backend = trl.BACKEND
    names = rb'"(?!step|time|script|values)[a-z_/]+":'

    def cells(self) -> tuple[Cell, ...]:
        """With the ratio of the response in RLOOTrainer, without a GPU."""
        k1 = Kl(estimator="k1", placement="reward", beta=0.1)
        loss = BY_SEQUENCES.but(ratio_level="sequence")
        own = (cell(k1, version=v, loss=loss, minibatches=2) for v in trl.BACKEND.versions)
        return (*own, *super().cells())

    def release_keys(self, version: str) -> Collection[str]:
        return {name for script in SCRIPTS for name in options(script, version)}

    def own_launch(self, plan: LaunchPlan) -> Launch:
        launch = super().own_launch(plan)
        (config,) = (each for each in launch.documents if each.name.endswith(".yaml"))
        return Launch(launch.words, (config,), versions=launch.versions)


class TestPrimeRl(_OfRecords):
    backend = prime_rl.BACKEND
    names = rb"[A-Z][A-Za-z. ]+(?=:)"

    def release_keys(self, version: str) -> Collection[str]:
        table = MANIFEST.tables[version]
        return {*table.keys, *(f"{prefix}*" for prefix in table.added)}

    def emitted(self, plan: LaunchPlan) -> Mapping[str, Sequence[str]]:
        """With the server's file as the table [inference], which it is on one node."""
        server = sent({"rl.toml": tomllib.loads(plan.files.get("inference.toml", ""))})
        keys = {f"inference.{key}": value for key, value in server.items()}
        files = {**plan.files, "server.toml": config.dumps(keys)}
        return super().emitted(plan.model_copy(update={"files": files}))


class TestMicro(BackendContract):
    backend = BACKEND

    def cells(self) -> list[Cell]:
        own = [each for each in every() if each.settings.backend.name == "micro"]
        return own + rehearse(every(), "micro")

    def release_keys(self, version: str) -> Collection[str]:
        """The fields of cell.json, which the trainer reads with all others forbidden."""
        settings = [each.settings.model_dump() for each in rehearse(every()[:50], "micro")]
        return {f"settings.{name}" for each in settings for name, _ in flatten(each)}

    def test_an_unknown_estimator_is_refused(self) -> None:
        """Check a name in no table. The trainer has every entry of the table: test_passes.py."""
        for one in self._one_of_each("kl.placement"):
            kl = one.settings.kl.but(placement=one.settings.kl.placement or "loss")
            placed = one.but(settings=one.settings.but(kl=kl))
            self._is_refused("kl.estimator", UNKNOWN_ESTIMATOR, placed)

    def test_its_tasks_and_policies_are_folders(self) -> None:
        assert isinstance(self.backend, EmbeddedTrainer)
        for folder in (self.backend.tasks_dir, self.backend.policies_dir):
            assert folder is None or folder.is_dir(), folder

    def write_log(self, attempt_dir: Path) -> Path:
        with closing(disk.Journal(attempt_dir)) as journal:
            for step in (1, 2, 3):
                journal.write(step, {"train/reward_mean": 0.1 * step, "train/entropy": 1.0 / step})
        return attempt_dir / disk.METRICS

    def write_unknown_log(self, attempt_dir: Path) -> None:
        row = {"step": 1, "time": 1.0, "values": {"critic/score/mean": 0.5}}
        (attempt_dir / disk.METRICS).write_text(json.dumps(row) + "\n")

    def write_checkpoint(self, checkpoints_dir: Path, step: int) -> None:
        (policy,) = [path for path in POLICIES.iterdir() if path.name == "elder"]
        folder = disk.step_dir(checkpoints_dir, step)
        folder.mkdir(parents=True)
        for path in policy.iterdir():
            if path.name != "manifest.json":
                (folder / path.name).write_bytes(path.read_bytes())
