"""Settings of tests: RLOO on a small model, in which any section may be another; and a spec."""

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


SPEC = """\
defaults: [recipe: onpolicy_math, site: slurm_a100, evaluation: comedy, _self_]
name: mine
seeds: [0]
model: {name: m-7b, path: org/m-7b}
backend: verl@0.9.1
base: {kl.beta: 0.1}
studies:
  s: {axes: {kl: [none, k1.reward]}}
claims: {a: "eval/in_domain/mean[kl=k1.reward] > eval/in_domain/mean[kl=none]"}
"""
"""A spec of a cluster without a fault. Tests replace a part of it."""
