"""Spec files: `load` reads one, `schema` describes them all.

A spec is composed once by Hydra (its `defaults` name entries of the config groups beside it:
recipe/, model/, data/, site/, evaluation/, sampling/, published/), resolved by OmegaConf and
checked into the frozen types. orchestrator/spec/expand.py describes the language of its studies,
with examples in experiments/README.md.
"""

from orchestrator.spec.load import load as load
from orchestrator.spec.schema import schema as schema

__all__ = ["load", "schema"]
