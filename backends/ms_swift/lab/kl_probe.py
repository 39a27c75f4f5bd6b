"""ms-swift's own KL statements, for orchestrator/lab/probes/runner.py.

Two statements inside a method of its trainer compute the KL of a token. The probe takes them out
and runs them, without an import of orch or ms-swift.
"""

import ast
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

PACKAGE = "."
WHOLE = ("loss",)
"""The places of a KL for which the whole update runs."""
FILES = ("swift/rlhf_trainers/grpo_trainer.py", "swift/trainers/rlhf_trainer/grpo_trainer.py")


def launches(_version: str) -> Sequence[tuple[str, str, Sequence[str]]]:
    """Return the launches to measure: a name, the KL's place, the words of the launch."""
    return [("--beta", "loss", [])]


class MsSwiftKl:
    """The statements under `if self.beta != 0.0` that assign per_token_kl."""

    def __init__(self, sources: Any, _version: str):
        import torch

        self.torch = torch
        file = next(each for each in FILES if (sources.folder / each).is_file())
        tree = ast.parse((sources.folder / file).read_text(encoding="utf-8"))
        for owner in (node for node in tree.body if isinstance(node, ast.ClassDef)):
            for method in (node for node in owner.body if isinstance(node, ast.FunctionDef)):
                for node in ast.walk(method):
                    if isinstance(node, ast.If) and _computes_kl(node):
                        code = ast.Module(body=list(node.body), type_ignores=[])
                        self.code = compile(code, file, "exec")
                        sources.uses(file, f"{owner.name}.{method.name}")
                        return
        raise LookupError(f"{file} has no statements that compute per_token_kl with a clamp")

    def read(self, argv: Sequence[str], _: Mapping[str, str]) -> Sequence[str]:
        """Return the words of a launch."""
        return argv

    def kl(self, _words: Sequence[str], _place: str, batch: Mapping[str, Any]) -> Any:
        """Return the KL of each token, [N, T]."""
        scope: dict[str, Any] = {
            "torch": self.torch,
            "per_token_logps": batch["logp"],
            "ref_per_token_logps": batch["ref"],
            "grpo_batch": SimpleNamespace(ref_per_token_logps=batch["ref"]),
            "inputs": {"ref_per_token_logps": batch["ref"]},
        }
        exec(self.code, scope)  # noqa: S102  (the library's own statements)
        return scope["per_token_kl"]

    def advantages(self, _: Sequence[str], batch: Mapping[str, Any]) -> Any:
        """Return rewards and advantages of a task without a reward: both are zero."""
        return batch["mask"] * 0, batch["mask"] * 0

    def loss(self, words: Sequence[str], batch: Mapping[str, Any]) -> Any:
        """Return the mean over tokens, as the trainer adds it to its policy loss."""
        return (self.kl(words, "loss", batch) * batch["mask"]).sum() / batch["mask"].sum()


def open_library(sources: Any, version: str) -> MsSwiftKl:
    """Return the functions of a release."""
    return MsSwiftKl(sources, version)


def _computes_kl(node: ast.If) -> bool:
    """Return True for the branch whose own statements assign a clamped per_token_kl."""
    return any(
        isinstance(each, ast.Assign)
        and ast.unparse(each.targets[0]) == "per_token_kl"
        and "exp" in ast.unparse(each.value)
        for each in node.body
    )
