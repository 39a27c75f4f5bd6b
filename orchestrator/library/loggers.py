"""The trackers that a library logs to by itself, while it trains: `loggers: [wandb]` in a spec.

They change nothing that is computed, so they are no part of a cell's id. orch reads each library's
own log as before, and MLflow stays the mirror of record. Keys come from the environment: WANDB_*,
MLFLOW_*, SWANLAB_* that a job inherits. Names, group and tags are set here.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path

from orchestrator.errors import UnsupportedSetting
from orchestrator.identity import digest
from orchestrator.records import AttemptPaths, Cell, Logger

TAG_LENGTH = 64
"""W&B's longest tag."""
PROJECT = "orch"
OFFLINE_RUNS = "wandb/offline-run-*"
"""Where W&B keeps a run without a network, below an attempt's folder."""


def refuse(cell: Cell, offered: Iterable[Logger], advice: str) -> None:
    """Raise UnsupportedSetting with `advice` if the cell asks for a logger that is not offered."""
    if lacking := [each for each in cell.loggers if each not in offered]:
        raise UnsupportedSetting(
            cell.settings.backend.name, "loggers", ", ".join(lacking), offered, advice
        )


def variables(cell: Cell, paths: AttemptPaths, *, one_run: bool = True) -> dict[str, str]:
    """Return the environment variables that name a cell's run in its loggers.

    A run has the cell's name, its study as group, and its axes as tags. Its attempts are one run of
    W&B, which each goes on with. one_run: False for a library of which several processes log.
    """
    names: dict[str, str] = {}
    if "wandb" in cell.loggers:
        names |= {
            "WANDB_PROJECT": project(paths),
            "WANDB_NAME": cell.slug,
            "WANDB_RUN_GROUP": group(cell),
            "WANDB_DIR": str(paths.attempt_dir),
        }
        if one_run:
            attempts = str(paths.attempt_dir.parent)
            names |= {"WANDB_RUN_ID": digest(attempts), "WANDB_RESUME": "allow"}
        if cell.axes:  # W&B refuses an empty tag
            tags = (f"{axis}={value}".replace(",", " ") for axis, value in cell.axes.items())
            names["WANDB_TAGS"] = ",".join(tag[:TAG_LENGTH] for tag in tags)
    if "tensorboard" in cell.loggers:
        folder = str(paths.attempt_dir / "tensorboard")
        names |= {"TENSORBOARD_DIR": folder, "TENSORBOARD_LOGGING_DIR": folder}
    if "mlflow" in cell.loggers:
        names |= {"MLFLOW_EXPERIMENT_NAME": project(paths)}
    if "swanlab" in cell.loggers:
        names |= {"SWANLAB_LOG_DIR": str(paths.attempt_dir / "swanlab")}
    return names


def project(paths: AttemptPaths) -> str:
    """Return the experiment's name, which its folder has: <runs>/<experiment>/cells/<cell>/plan."""
    parts = paths.plan_dir.parts[-4:]
    return parts[0] if len(parts) == 4 and parts[1] == "cells" else PROJECT


def group(cell: Cell) -> str:
    """Return the name under which a tracker shows a cell beside those of its study."""
    return cell.studies[0] if cell.studies else PROJECT


def without_key(environment: Mapping[str, str]) -> dict[str, str]:
    """Return what lets W&B work where nobody has logged in: it keeps the run offline.

    environment: that of the launch. W&B would ask for a key, or fail, after the model is loaded.
    """
    has_key = environment.get("WANDB_API_KEY") or "WANDB_MODE" in environment
    netrc = Path(environment.get("NETRC") or Path(environment.get("HOME", "/")) / ".netrc")
    if "WANDB_NAME" not in environment or has_key or netrc.is_file():
        return {}
    return {"WANDB_MODE": "offline"}


def offline_runs(attempt_dir: Path) -> list[Path]:
    """Return the folders of W&B runs that an attempt kept offline."""
    return sorted(attempt_dir.glob(OFFLINE_RUNS))
