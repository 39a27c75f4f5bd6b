"""Settings of tests: RLOO on a small model, in which any section may be another."""

from typing import Any

from orchestrator.identity import fingerprint
from orchestrator.records import Cell
from orchestrator.settings import Settings


def plain(**changed: Any) -> Settings:
    """Return valid settings with some sections changed, each as a mapping or a model."""
    sections = {
        "model": {"name": "tiny", "path": "tiny"},
        "data": {"name": "counting", "path": "counting"},
        "advantage": {"estimator": "rloo"},
        "loss": {},
        "kl": {"estimator": "k1", "placement": "reward", "beta": 0.1},
        "rollout": {"group_size": 4, "max_response_tokens": 8},
        "batch": {"num_prompts": 4},
        "optimizer": {"learning_rate": 1e-3},
        "num_train_steps": 3,
        "backend": {"name": "fake"},
    }
    return Settings.model_validate(sections | changed)


def cell_of(settings: Settings, **more: Any) -> Cell:
    """Return a cell with these settings and its own id."""
    made = {"slug": "a-cell", "studies": ("study",), "axes": {}, "settings": settings}
    return Cell.model_validate({"id": fingerprint(settings)} | made | more)
