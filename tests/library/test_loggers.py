"""Trackers that a library logs to by itself: names, group and tags; never part of an id."""

from pathlib import Path

import pytest

from orchestrator import plugins
from orchestrator.library import loggers
from orchestrator.records import AttemptPaths, Cell
from tests import golden

PLACE = AttemptPaths(Path("/plan"), Path("/attempt"), Path("/checkpoints"))
KL = {"kl": {"estimator": "k3", "placement": "loss", "beta": 0.1}}


def cell_of(library: str, *chosen: str) -> Cell:
    cell = golden.cell_of(library, golden.RELEASES[library], {**KL, "loggers": chosen})
    return cell.but(axes={"beta": "0.1"})


def test_a_logger_changes_no_id_and_names_the_run() -> None:
    plain, logged = cell_of("verl"), cell_of("verl", "wandb")
    assert plain.id == logged.id
    before = plugins.load("verl").translate(plain, PLACE)
    after = plugins.load("verl").translate(logged, PLACE)
    assert "trainer.logger=[console,file,wandb]" in " ".join(after.argv).replace("'", "")
    added = {name: after.env[name] for name in after.env.keys() - before.env.keys()}
    assert added["WANDB_NAME"] == logged.slug
    assert added["WANDB_RUN_GROUP"] == "s"
    assert "beta=0.1" in added["WANDB_TAGS"].split(",")
    assert added["WANDB_DIR"] == "/attempt"
    assert not any("KEY" in name for name in added), "the key comes from the environment"


def test_the_attempts_of_a_cell_are_one_run_of_wandb(tmp_path: Path) -> None:
    def run_of(library: str, cell: str, attempt: str) -> tuple[str | None, str | None]:
        place = PLACE._replace(attempt_dir=tmp_path / cell / "attempts" / attempt)
        env = plugins.load(library).translate(cell_of(library, "wandb"), place).env
        return env.get("WANDB_RUN_ID"), env.get("WANDB_RESUME")

    for library in ("verl", "trl", "openrlhf"):
        first, again, other = (run_of(library, c, a) for c, a in (("x", "1"), ("x", "2"), "y1"))
        assert first == again
        assert first[1] == "allow"
        assert other[0] not in (None, first[0])
    assert run_of("prime_rl", "x", "1") == (None, None), "two processes log"


@pytest.mark.parametrize(
    ("environment", "mode"),
    [
        ({"WANDB_NAME": "x", "HOME": "/nowhere"}, {"WANDB_MODE": "offline"}),
        ({"WANDB_NAME": "x", "HOME": "/nowhere", "WANDB_API_KEY": "k"}, {}),
        ({"WANDB_NAME": "x", "HOME": "/nowhere", "WANDB_MODE": "online"}, {}),
        ({"HOME": "/nowhere"}, {}),
    ],
)
def test_without_a_key_wandb_keeps_the_run_offline(
    environment: dict[str, str], mode: dict[str, str]
) -> None:
    assert loggers.without_key(environment) == mode
