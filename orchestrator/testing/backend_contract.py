"""The contract of a backend, as a pytest class that its author inherits.

    from orchestrator.testing.backend_contract import BackendContract

    class TestToy(BackendContract):
        backend = BACKEND

        def cells(self): ...                             # cells that it trains
        def release_keys(self, version): ...             # the keys of the library's own parser
        def write_log(self, attempt_dir): ...            # a recorded log
        def write_unknown_log(self, attempt_dir): ...    # the same, with other names
        def write_checkpoint(self, checkpoints_dir, step): ...

Every test checks a rule of orchestrator.library.protocol. The tests need neither the library nor a
GPU: `release_keys` is a table that the author's script has read from the library, and logs and
checkpoints are those of a real run.
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from itertools import takewhile
from pathlib import Path
from typing import Any, ClassVar

import pytest
import yaml
from pydantic import ValidationError

from orchestrator import estimators
from orchestrator.errors import LogFault, UnsupportedSetting
from orchestrator.identity import fingerprint, flatten
from orchestrator.kl.library_semantics import parse as parse_dialect
from orchestrator.library.launches import CommandWord, ConfigDocument, Given, Launch
from orchestrator.library.protocol import Backend
from orchestrator.metrics.names import is_canonical
from orchestrator.records import AttemptPaths, Cell, LaunchPlan, LedgerEntry
from orchestrator.settings import Settings
from orchestrator.spec.fields import FIELDS

HEAVY = ("torch", "transformers", "vllm", "ray", "hydra", "pandas")
"""Modules that importing a backend and translating a cell must not import."""
UNKNOWN_ESTIMATOR = "contract_k9"
_ROOT = Path("/orch contract/it's")
_PLACE = AttemptPaths(_ROOT / "plan", _ROOT / "attempts/1", _ROOT / "checkpoints")


class BackendContract:
    """The tests that every backend must pass.

    Inherit this class, and define what has no default.
    """

    backend: ClassVar[Backend]
    """The backend under test."""

    def cells(self) -> Iterable[Cell]:
        """Return cells that the backend translates, of every release that it drives.

        Include at least one cell without a KL, and one with a KL in each placement that it offers.
        """
        raise NotImplementedError

    def release_keys(self, version: str) -> Collection[str]:
        """Return the dotted keys or flags that a release's own parser accepts.

        Read them from the library and store them as data. Leave out a key that the library never
        reads. A key that ends in `.*` stands for everything below it (a table of the user's).
        """
        raise NotImplementedError

    def write_log(self, attempt_dir: Path) -> Path:
        """Write a recorded log of at least two train steps. Return the file of the last line."""
        raise NotImplementedError

    def write_unknown_log(self, attempt_dir: Path) -> None:
        """Write a log of the same layout with names that the backend does not know."""
        raise NotImplementedError

    def write_checkpoint(self, checkpoints_dir: Path, step: int) -> None:
        """Write a complete checkpoint, as the library does."""
        raise NotImplementedError

    def cut_checkpoint(self, checkpoints_dir: Path, step: int) -> None:
        """Write a checkpoint as it is after a kill in the middle of saving.

        The default cuts each file of `write_checkpoint` in half, and removes files of less than two
        bytes.
        """
        self.write_checkpoint(checkpoints_dir, step)
        for folder in self.backend.begun_checkpoints(checkpoints_dir):
            if _step_of(folder, checkpoints_dir) == step:
                for file in [path for path in folder.rglob("*") if path.is_file()]:
                    size = file.stat().st_size // 2
                    os.truncate(file, size) if size else file.unlink()

    def emitted(self, plan: LaunchPlan) -> Mapping[str, Sequence[str]]:
        """Return what a launch sends: key -> values, from argv, environment and files.

        The default reads `key=value` (without Hydra's marks), `--flag value`, `--flag=value`,
        `--flag`, and the TOML, YAML and JSON files of the plan. Entries of a list of tables have
        the key of the list.
        """
        return _emitted(plan)

    def own_launch(self, plan: LaunchPlan) -> Launch:
        """Return a plan's launch in the form that the audit reads."""
        version = {plan.backend: f"{plan.version} the test says so"}
        documents = [_document(name, text) for name, text in plan.files.items()]
        return Launch(
            words=tuple(CommandWord(word, (1,)) for word in plan.argv),
            documents=tuple(each for each in documents if each is not None),
            versions=version,
        )

    # ------------------------------------------------------------------ the backend itself

    def test_it_keeps_the_protocol(self) -> None:
        assert isinstance(self.backend, Backend)
        assert re.fullmatch(r"[a-z][a-z0-9_]*", self.backend.name), "a module's name"
        assert self.backend.title
        assert self.backend.versions
        assert len(set(self.backend.versions)) == len(self.backend.versions)
        assert set(self.backend.capabilities) <= FIELDS.keys()
        assert all(self.backend.capabilities.values()), "a field that offers nothing"

    def test_nothing_heavy_is_imported_and_other_processes_translate_alike(self) -> None:
        """Check two processes with other hash seeds: the same plan, and no heavy import."""
        module = type(self.backend).__module__
        cell = self._cells[0]
        program = (
            "import hashlib, importlib, pathlib, sys\n"
            "from orchestrator.records import AttemptPaths, Cell\n"
            f"module = importlib.import_module({module!r})\n"
            "cell = Cell.model_validate_json(sys.stdin.read())\n"
            f"place = AttemptPaths(*map(pathlib.Path, {[str(p) for p in _PLACE]!r}))\n"
            "text = module.BACKEND.translate(cell, place).model_dump_json()\n"
            f"print(sorted(set({HEAVY!r}) & set(sys.modules)))\n"
            "print(hashlib.sha256(text.encode()).hexdigest())\n"
        )
        plan = self.backend.translate(cell, _PLACE).model_dump_json()
        for seed in ("1", "2"):
            done = subprocess.run(
                [sys.executable, "-c", program],
                input=cell.model_dump_json(),
                capture_output=True,
                text=True,
                check=False,
                env={
                    **os.environ,
                    "PYTHONHASHSEED": seed,
                    "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
                },
            )
            assert done.returncode == 0, done.stderr[-2000:]
            heavy, digest = done.stdout.split("\n")[:2]
            assert heavy == "[]", f"imports {heavy}"
            assert digest == hashlib.sha256(plan.encode()).hexdigest()

    # ------------------------------------------------------------------ translate

    def test_every_release_translates(self) -> None:
        translated = {_release(plan.version) for _, plan in self._plans}
        assert translated == set(self.backend.versions)
        for cell, plan in self._plans:
            assert plan.cell_id == cell.id
            assert plan.backend == self.backend.name
            assert plan.version == (cell.settings.backend.version or self.backend.versions[0])
            assert plan.argv

    def test_translation_is_pure(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Check that `translate` repeats its plan, writes nothing, and reads no clock."""
        place = _place(tmp_path / "cell")
        first = [self.backend.translate(cell, place) for cell in self._cells[:20]]
        monkeypatch.chdir(tmp_path)
        for name in list(os.environ):
            if name not in ("PATH", "PYTEST_CURRENT_TEST"):
                monkeypatch.delenv(name)
        monkeypatch.setattr(time, "time", lambda: 0.0)
        second = [self.backend.translate(cell, place) for cell in self._cells[:20]]
        assert first == second
        assert not list(tmp_path.iterdir()), "translate wrote something"

    def test_only_the_seed_of_a_launch_depends_on_the_seed(self) -> None:
        """Check the rule that lets `plan` translate one seed for all."""
        for cell, plan in self._plans[:5]:
            seed = cell.settings.seed + 1
            settings = cell.settings.but(seed=seed)
            other = cell.but(id=fingerprint(settings), settings=settings)
            moved = self.backend.translate(other, _PLACE)
            assert {e.field for e in moved.ledger} == {e.field for e in plan.ledger}
            assert (moved.entry, moved.bring_up, moved.ray_cpus) == (
                plan.entry,
                plan.bring_up,
                plan.ray_cpus,
            )

    def test_what_was_translated_reads_back_as_the_same_cell(self) -> None:
        for cell, plan in self._plans:
            back = self.backend.parse(plan.argv, plan.files)
            assert fingerprint(back) == cell.id, _difference(cell.settings, back)

    def test_no_name_leads_out_of_the_folders(self) -> None:
        """Check that no name of a cell, model or data set puts a file outside orch's folders."""
        for cell in self._cells[:5]:
            nasty = cell.model_copy(update={"slug": "../../out", "id": "../../out"})
            for settings in (cell.settings, _replaced(cell.settings, "data.path", "../../out")):
                if settings is None:
                    continue
                changed = nasty.model_copy(update={"settings": settings})
                try:
                    plan = self.backend.translate(changed, _PLACE)
                except UnsupportedSetting:
                    continue
                for name in plan.files:
                    resolved = os.path.normpath(_PLACE.plan_dir / name)
                    assert Path(resolved).is_relative_to(_PLACE.plan_dir), name
                for text in (*plan.argv, *plan.files.values()):
                    self._stays_inside(text)

    def _stays_inside(self, text: str) -> None:
        for path in re.findall(re.escape(str(_ROOT)) + r"[^\s\"',;]*", text):
            whole = Path(os.path.normpath(path))
            assert any(whole.is_relative_to(folder) for folder in _PLACE), path

    # ------------------------------------------------------------------ refusal

    def test_an_unknown_release_is_refused(self) -> None:
        self._is_refused("backend.version", "0.0.1", self._cells[0])
        with pytest.raises(UnsupportedSetting) as caught:
            self.backend.semantics("0.0.1")
        assert caught.value.field == "backend.version"

    def test_an_unknown_estimator_is_refused(self) -> None:
        """Check that an estimator is refused that another package registers and no table has."""
        k1 = estimators.entry("k1")
        estimators.register(
            estimators.EstimatorEntry(
                name=UNKNOWN_ESTIMATOR,
                formula="of a test",
                value=k1.value,
                slope=k1.slope,
                is_reverse_kl=False,
                source="orchestrator.testing",
            )
        )
        try:
            for cell in self._one_of_each("kl.placement", "backend.version"):
                kl = cell.settings.kl.model_copy(
                    update={"placement": cell.settings.kl.placement or "loss"}
                )
                settings = cell.settings.model_copy(update={"kl": kl})
                placed = cell.model_copy(update={"settings": settings})
                self._is_refused("kl.estimator", UNKNOWN_ESTIMATOR, placed)
        finally:
            estimators.unregister(UNKNOWN_ESTIMATOR)

    @pytest.mark.parametrize(
        "name", ["kl.placement", "advantage.estimator", "loss.aggregation", "optimizer.schedule"]
    )
    def test_an_unknown_word_is_refused(self, name: str) -> None:
        """Check that a value is refused that Settings may offer in a later release of orch."""
        for cell in self._one_of_each("backend.version", "kl.placement"):
            if name != "kl.placement" or cell.settings.kl.placement is not None:
                self._is_refused(name, "contract_word", cell)

    def _is_refused(self, name: str, value: object, cell: Cell) -> None:
        settings = _forced(cell.settings, name, value)
        changed = cell.model_copy(update={"settings": settings})
        with pytest.raises(UnsupportedSetting) as caught:
            self.backend.translate(changed, _PLACE)
        assert caught.value.field == name
        assert caught.value.value == value
        assert caught.value.offered, "what is offered instead"
        assert value not in caught.value.offered
        assert caught.value.advice, "what to do"

    def test_every_value_of_the_capabilities_translates_and_reads_back(self) -> None:
        """Check that each listed value is read back, and is not refused in every cell.

        A refusal of another field does not count: the value may need a change of that field too.
        """
        suite: Any = type(self)
        for name, values in self.backend.capabilities.items():
            for value in values:
                had = any(leaves.get(name, self) == value for leaves in _settings_of(suite))
                refused = set(self._outcomes(name, value)) == {name}
                assert had or not refused, f"{name}={value} is listed, and refused in every cell"

    def _outcomes(self, name: str, value: object) -> Iterator[str]:
        """Yield the field that is refused, or an empty text, of each cell that can have a value."""
        for cell in self._one_of_each("backend.version", "kl.placement", "loss.aggregation"):
            settings = _replaced(cell.settings, name, value)
            if settings is None:
                continue
            changed = cell.model_copy(update={"settings": settings, "id": fingerprint(settings)})
            try:
                plan = self.backend.translate(changed, _PLACE)
            except UnsupportedSetting as refused:
                yield refused.field
                continue
            back = self.backend.parse(plan.argv, plan.files)
            assert fingerprint(back) == changed.id, f"{name}={value}: {_difference(settings, back)}"
            yield ""

    # ------------------------------------------------------------------ the ledger

    def test_the_ledger_accounts_for_every_setting(self) -> None:
        for cell, plan in self._plans:
            fields = [entry.field for entry in plan.ledger]
            for name, _ in flatten(cell.settings.model_dump()):
                covered = any(f"{name}.".startswith(f"{field}.") for field in fields)
                assert covered, f"{name} of {cell.slug}"
            for entry in plan.ledger:
                assert entry.status == "exact" or entry.note, f"{entry.field} does not say why"

    def test_every_key_of_the_ledger_is_one_of_the_release(self) -> None:
        """Check that `exact` and `approximated` entries name keys of the library's parser."""
        releases = {_release(plan.version) for _, plan in self._plans}
        known = {release: self.release_keys(release) for release in releases}
        for _, plan in self._plans:
            for entry in plan.ledger:
                passed_on = entry.field.startswith("backend.extra.")
                for key in () if passed_on or entry.status == "extension" else _keys(entry):
                    assert _is_known(key, known[_release(plan.version)]), (
                        f"{plan.backend} {plan.version} has no key {key} ({entry.field})"
                    )

    def test_the_launch_holds_what_the_ledger_says(self) -> None:
        for _, plan in self._plans:
            emitted = self.emitted(plan)
            for entry in plan.ledger:
                if entry.key and entry.status != "extension":
                    self._is_emitted(entry, emitted)

    def _is_emitted(self, entry: LedgerEntry, emitted: Mapping[str, Sequence[str]]) -> None:
        for key in _keys(entry):
            if not _below(key, emitted):
                # a key that is left out: its own default is the value, as the note says
                assert entry.note or entry.value in ("None", "none", ""), (
                    f"{key} ({entry.field}) is nowhere in the launch"
                )
            elif entry.status == "exact" and not entry.note and entry.key in emitted:
                assert any(_equal(entry.value, value) for value in emitted[key]), (
                    f"{entry.field} is {entry.value} in the ledger, and {key} is "
                    f"{emitted[key]} in the launch"
                )

    # ------------------------------------------------------------------ semantics, audit

    def test_every_release_has_semantics(self) -> None:
        for version in (None, *self.backend.versions):
            dialect = self.backend.semantics(version).dialect
            assert parse_dialect(dialect.text) == dialect
        assert self.backend.semantics(None) == self.backend.semantics(self.backend.versions[0])

    def test_its_own_launch_is_audited_as_the_cell(self) -> None:
        """Check that `audit` reads a cell's KL, regime and division in its launch, or none of them.

        A reading may say that it cannot tell one of them.
        """
        if self.backend.release_marks is None:
            pytest.skip("it reads no launches")
        for cell, plan in self._plans:
            reading, settings = self.backend.audit(self.own_launch(plan)), cell.settings
            assert reading is not None, "it does not recognise its own launch"
            assert reading.library == self.backend.name
            on_policy = settings.batch.num_minibatches == 1 and settings.max_staleness_steps == 0
            assert reading.regime.on_policy in (None, on_policy), (cell.slug, reading.regime.why)
            if reading.unknown:
                continue
            kl, around = settings.kl, reading.surroundings
            for term, placed in (
                (reading.in_reward, ("reward", "reward_and_loss")),
                (reading.in_loss, ("loss", "reward_and_loss")),
            ):
                active = kl.beta > 0 and kl.placement in placed
                assert bool(term.active) == active, (cell.slug, term)
                assert not active or term.beta == pytest.approx(kl.beta), (cell.slug, term)
            if around is not None and around.advantage_divided_by is not None:
                divided = around.advantage_divided_by == "group_std"
                is_grpo = settings.advantage.estimator == "grpo"
                assert divided == is_grpo, (cell.slug, around.divided_because)

    def test_a_launch_of_nobody_is_not_its_own(self) -> None:
        words = tuple(CommandWord(word, (1,)) for word in ("python", "-m", "http.server"))
        assert self.backend.audit(Launch(words=words)) is None

    # ------------------------------------------------------------------ metrics

    def test_metrics_of_a_recorded_log(self, tmp_path: Path) -> None:
        attempt = _place(tmp_path).attempt_dir
        assert list(self.backend.read_metrics(attempt)) == [], "no log yet is no fault"
        attempt.mkdir(parents=True)
        assert list(self.backend.read_metrics(attempt)) == []
        self.write_log(attempt)
        points = list(self.backend.read_metrics(attempt))
        steps = [point.step for point in points]
        assert len(points) > 1, "a log of two train steps or more"
        assert steps == sorted(set(steps)), "one point a train step, in order"
        assert [p.time for p in points] == sorted(p.time for p in points)
        for point in points:
            assert point.values
            assert all(map(is_canonical, point.values)), sorted(point.values)
        assert list(self.backend.read_metrics(attempt)) == points, "reading leaves the log as it is"

    def test_a_torn_last_line_ends_the_metrics(self, tmp_path: Path) -> None:
        attempt = _place(tmp_path).attempt_dir
        attempt.mkdir(parents=True)
        log = self.write_log(attempt)
        points, whole = list(self.backend.read_metrics(attempt)), log.read_bytes()
        last = whole.rstrip(b"\n").rfind(b"\n") + 1
        for end in sorted({last, *range(last + 1, len(whole), max((len(whole) - last) // 25, 1))}):
            log.write_bytes(whole[:end])
            torn = list(self.backend.read_metrics(attempt))
            assert [p.step for p in torn] == [p.step for p in points[: len(torn)]]
            whole_points = [(p.step, p.values) for p in points[: max(len(torn) - 1, 0)]]
            assert [(p.step, p.values) for p in torn[:-1]] == whole_points

    def test_names_that_are_not_known_are_a_fault(self, tmp_path: Path) -> None:
        attempt = _place(tmp_path).attempt_dir
        attempt.mkdir(parents=True)
        self.write_unknown_log(attempt)
        with pytest.raises(LogFault):
            list(self.backend.read_metrics(attempt))

    # ------------------------------------------------------------------ checkpoints

    def test_whole_checkpoints_are_found_oldest_first(self, tmp_path: Path) -> None:
        home = _place(tmp_path).checkpoints_dir
        assert self.backend.find_checkpoints(home) == [], "no folder yet is no fault"
        assert self.backend.begun_checkpoints(home) == []
        for step in (20, 5, 100):
            self.write_checkpoint(home, step)
        checkpoints = self.backend.find_checkpoints(home)
        begun = self.backend.begun_checkpoints(home)
        assert [each.step for each in checkpoints] == [5, 20, 100]
        assert len(begun) == 3
        for each in checkpoints:
            assert each.path.is_dir()
            assert any(each.path.is_relative_to(folder) for folder in begun)
        beside = [
            path for each in checkpoints for path in self.backend.checkpoint_companions(home, each)
        ]
        assert len(set(beside)) == len(beside), "a companion belongs to one checkpoint"
        for path in (*begun, *beside):
            assert path.is_relative_to(home)

    def test_a_checkpoint_that_is_cut_off_is_not_found(self, tmp_path: Path) -> None:
        """Check a checkpoint without each of its files, with each cut in half, and with none."""
        home = _place(tmp_path).checkpoints_dir
        self.write_checkpoint(home, 5)
        self.write_checkpoint(home, 10)
        (folder,) = (p for p in self.backend.begun_checkpoints(home) if _step_of(p, home) == 10)
        kept = tmp_path / "kept"
        shutil.copytree(folder, kept)
        cut = 0
        for name in [p.relative_to(kept) for p in sorted(kept.rglob("*")) if p.is_file()]:
            for size in (None, (kept / name).stat().st_size // 2):
                shutil.rmtree(folder)
                shutil.copytree(kept, folder)
                if size is None:
                    (folder / name).unlink()
                else:
                    os.truncate(folder / name, size)
                steps = [each.step for each in self.backend.find_checkpoints(home)]
                assert steps in ([5], [5, 10]), name
                cut += steps == [5]
        assert cut, "no file of a checkpoint is needed"
        for path in sorted(folder.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        assert [each.step for each in self.backend.find_checkpoints(home)] == [5]

    def test_a_checkpoint_is_a_hugging_face_directory_or_can_be_made_one(
        self, tmp_path: Path
    ) -> None:
        home = _place(tmp_path).checkpoints_dir
        self.write_checkpoint(home, 5)
        (checkpoint,) = self.backend.find_checkpoints(home)
        if checkpoint.needs_export:
            command = self.backend.export_command(checkpoint, tmp_path / "exported")
            assert command
            assert any(str(tmp_path / "exported") in word for word in command)
        else:
            assert (checkpoint.path / "config.json").is_file()

    def test_a_killed_attempt_goes_on_from_its_last_whole_checkpoint(self, tmp_path: Path) -> None:
        """Check that the next attempt has a new log and the same checkpoints."""
        place = _place(tmp_path)
        again = place._replace(attempt_dir=place.attempt_dir.with_name("2"))
        cell = self._cells[0]
        before = self.backend.translate(cell, again)
        place.attempt_dir.mkdir(parents=True)
        log = self.write_log(place.attempt_dir)
        os.truncate(log, log.stat().st_size - 3)
        self.write_checkpoint(place.checkpoints_dir, 5)
        self.cut_checkpoint(place.checkpoints_dir, 10)
        assert self.backend.translate(cell, again) == before, "a plan does not look at the disk"
        assert str(place.checkpoints_dir) in "\n".join((*before.argv, *before.files.values()))
        assert str(place.attempt_dir) not in "\n".join((*before.argv, *before.files.values()))
        assert [each.step for each in self.backend.find_checkpoints(place.checkpoints_dir)] == [5]
        assert list(self.backend.read_metrics(again.attempt_dir)) == []

    # ------------------------------------------------------------------ cells

    @property
    def _cells(self) -> tuple[Cell, ...]:
        suite: Any = type(self)
        return _cells_of(suite)

    @property
    def _plans(self) -> tuple[tuple[Cell, LaunchPlan], ...]:
        suite: Any = type(self)
        return _plans_of(suite)

    def _one_of_each(self, *names: str) -> list[Cell]:
        """Return one cell for each combination of the cells' values in these fields."""
        chosen: dict[tuple[object, ...], Cell] = {}
        suite: Any = type(self)
        for cell, leaves in zip(self._cells, _settings_of(suite), strict=True):
            chosen.setdefault(tuple(leaves.get(name) for name in names), cell)
        return list(chosen.values())


@cache
def _cells_of(suite: Any) -> tuple[Cell, ...]:
    cells = tuple(suite().cells())
    assert cells, "cells() returns none"
    return cells


@cache
def _settings_of(suite: Any) -> tuple[dict[str, object], ...]:
    """Return the leaves of each cell's settings."""
    return tuple(dict(flatten(cell.settings.model_dump())) for cell in _cells_of(suite))


@cache
def _plans_of(suite: Any) -> tuple[tuple[Cell, LaunchPlan], ...]:
    return tuple((cell, suite.backend.translate(cell, _PLACE)) for cell in _cells_of(suite))


def _release(version: str) -> str:
    """Return the release in a version. The text after a + says how the release is used."""
    return version.partition("+")[0]


def _place(root: Path) -> AttemptPaths:
    return AttemptPaths(root / "plan", root / "attempts" / "1", root / "checkpoints")


def _step_of(folder: Path, home: Path) -> int | None:
    """Return the number in a checkpoint's path below its home."""
    numbers = re.findall(r"\d+", str(folder.relative_to(home)))
    return int(numbers[-1]) if numbers else None


_SMALLEST: Mapping[str, Mapping[str, object]] = {
    "loss.correction": {"kind": "tis_token", "most": 2.0},
    "kl.reference": {"kind": "sampler"},
    "kl.controller": {"target": 0.1, "horizon": 10_000},
}
"""Fields that a section requires as soon as one of its fields is set."""


def _replaced(settings: Settings, name: str, value: object) -> Settings | None:
    """Return the settings with another value of a field, or None if they are not valid."""
    plain: dict[str, Any] = settings.model_dump()
    *sections, leaf = name.split(".")
    at = plain
    for depth, section in enumerate(sections, 1):
        if at[section] is None:  # a section that may be left out
            at[section] = dict(_SMALLEST.get(".".join(sections[:depth]), {}))
        at = at[section]
    at[leaf] = value
    try:
        return Settings.model_validate(plain)
    except ValidationError:
        return None


def _forced(settings: Settings, name: str, value: object) -> Settings:
    """Return the settings with a value that Settings itself may refuse."""
    section, _, leaf = name.partition(".")
    if leaf:
        part = getattr(settings, section).model_copy(update={leaf: value})
        return settings.model_copy(update={section: part})
    return settings.model_copy(update={section: value})


def _difference(ours: Settings, back: Settings) -> str:
    before, after = (dict(flatten(each.model_dump())) for each in (ours, back))
    changed = [name for name, value in before.items() if after.get(name, ours) != value]
    sections = {n: {k: v for k, v in after.items() if k.startswith(f"{n}.")} for n in changed}
    return ", ".join(f"{n}: {before[n]} came back as {after.get(n, sections[n])}" for n in changed)


def _keys(entry: LedgerEntry) -> list[str]:
    """Return the keys that an entry names: one, or several with commas or spaces between them."""
    return [key for key in re.split(r"[,\s]+", entry.key) if key]


def _is_known(key: str, known: Collection[str]) -> bool:
    if key in known or any(each.startswith(f"{key}.") for each in known):
        return True
    parts = key.split(".")
    return any(".".join(parts[:n]) + ".*" in known for n in range(len(parts)))


def _below(key: str, emitted: Mapping[str, Sequence[str]]) -> dict[str, Sequence[str]]:
    """Return what is sent under a key, and under the keys of its table."""
    return {k: v for k, v in emitted.items() if k == key or k.startswith(f"{key}.")}


def _equal(ours: str, theirs: str) -> bool:
    """Return True if two texts mean one value in a launch.

    `True` is `true`, 1.0 is 1, and a bare flag is `given`.
    """
    ours, theirs = (re.sub(r"[\s'\"]", "", text).lower() for text in (ours, theirs))
    if ours == theirs or {ours, theirs} <= {"none", "null", ""}:
        return True
    if not theirs:
        return ours in ("given", "true")
    try:
        return float(ours) == float(theirs)
    except ValueError:
        return False


_YAML = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_OVERRIDE = re.compile(r"^(?:\+\+|\+|~)?([A-Za-z_][\w@/.-]*)=(.*)$", re.DOTALL)


def _emitted(plan: LaunchPlan) -> dict[str, list[str]]:
    sent: dict[str, list[str]] = {}
    for key, text in (*_of_argv(plan.argv), *plan.env.items()):
        sent.setdefault(key, []).append(text)
    for name, content in plan.files.items():
        for key, value in _leaves(_loaded(name, content), ""):
            sent.setdefault(key, []).append(str(value))
    return sent


def _of_argv(argv: Sequence[str]) -> Iterator[tuple[str, str]]:
    for i, word in enumerate(argv):
        flag, _, value = word.partition("=")
        if flag.startswith("--"):  # a flag takes every word up to the next one
            value = value or " ".join(takewhile(lambda w: not w.startswith("--"), argv[i + 1 :]))
            yield flag, value
            yield flag.removeprefix("--"), value
        elif match := _OVERRIDE.match(word):
            yield match[1], match[2]


@lru_cache(4096)
def _loaded(name: str, text: str) -> object:
    """Return a file's data, which nobody changes: launches of many cells have equal files."""
    suffix = name.rpartition(".")[2]
    if suffix == "toml":
        return tomllib.loads(text)
    if suffix == "json":
        return json.loads(text)
    return yaml.load(text, _YAML) if suffix in ("yaml", "yml") else None  # noqa: S506  (safe)


def _leaves(value: object, prefix: str) -> Iterator[tuple[str, object]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _leaves(inner, f"{prefix}.{key}" if prefix else str(key))
    elif isinstance(value, list) and value and isinstance(value[0], Mapping):
        for inner in value:
            yield from _leaves(inner, prefix)
    else:
        yield prefix, value


def _document(name: str, text: str) -> ConfigDocument | None:
    if not name.endswith((".toml", ".yaml", ".yml")):
        return None
    values = {key: Given(str(value), (1,)) for key, value in _leaves(_loaded(name, text), "")}
    return ConfigDocument(name, values, kind="toml" if name.endswith(".toml") else "yaml")
