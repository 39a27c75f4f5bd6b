"""Prime-RL's losses, of any release, with the thresholds that the release has by default.

runner.py loads this file and asks it once (`functions`). The thresholds are read from the release's
configuration class. compute_loss, which every release has, is called with what the release's own
signature takes. What a release lacks, it has no entry for.
"""

import ast
import inspect
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from .probes import LOSS, PACKAGE, Default, Other, load_losses

__all__ = ["PACKAGE", "open_library"]

CONFIGS = (
    "trainer/rl/config.py",
    "configs/trainer.py",
    "../../packages/prime-rl-configs/src/prime_rl/configs/trainer.py",
)
"""Where a release has the class of its loss, from the folder of the package."""


class PrimeRlFunctions:
    """The losses of one release."""

    file = LOSS

    def __init__(self, sources: Any):
        self.sources = sources
        self.losses = load_losses(sources, lambda path: path)
        (file, *_) = [each for each in CONFIGS if (sources.folder / each).is_file()]
        self.classes = _defaults(sources.folder / file)

    def read(self, *_: object) -> dict[str, Any]:
        """Return no configuration: every function has its own."""
        return {}

    def functions(self, batch: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
        """Yield name, the function's name in the file, and a call without arguments.

        The call returns the value; its gradient is taken in `batch["logp"]`.
        """
        own = self.classes.get("DefaultLossConfig") or self.classes["LossConfig"]
        name = "default_loss_fn" if hasattr(self.losses, "default_loss_fn") else "compute_loss"
        yield "default loss", name, self._loss(batch, Default(**own))
        if "teacher_tau" in own:
            taught = Default(**{**own, "teacher_tau": 0.5})
            yield "default loss, with a teacher", name, self._loss(batch, taught, teacher=True)
        if "IPOLossConfig" in self.classes:
            ipo = Other(**self.classes["IPOLossConfig"])
            yield "ipo loss", "ipo_loss_fn", self._loss(batch, ipo)
        for distils in ("opd_loss_fn", "ref_kl_loss_fn"):
            if hasattr(self.losses, distils):
                yield (
                    "on-policy distillation",
                    distils,
                    self._loss(batch, Default(**own), teacher=True, mode="opd"),
                )

    def _loss(
        self, batch: Mapping[str, Any], config: Any, *, teacher: bool = False, mode: str = "rl"
    ) -> Callable[[], Any]:
        """Return the loss of the batch as one micro-batch of packed sequences."""
        import torch

        mask = batch["mask"].bool()
        tokens, on = int(mask.sum()), torch.ones_like(batch["logp"])
        rows = {
            "trainer_logprobs": batch["logp"],
            "inference_logprobs": batch["engine"],
            "teacher_logprobs": batch["ref"] if teacher else None,
            "ref_logprobs": batch["ref"] if teacher else None,
            "advantages": batch["advantages"],
            "loss_mask": mask,
            "rl_weights": on * (mode == "rl"),
            "ce_weights": None,
            "ref_kl_weights": on * mask if mode == "opd" else None,
        }
        takes = inspect.signature(self.losses.compute_loss).parameters
        given: dict[str, Any] = {
            name: None if each is None else list(each.unbind(0))
            for name, each in rows.items()
            if name in takes
        }
        plain = {
            "loss_config": config,
            "loss_scale": tokens,
            "training_mode": mode,
            "rl_scale": tokens,
            "ce_scale": 1,
            "ref_kl_scale": tokens,
        }
        given |= {name: each for name, each in plain.items() if name in takes}
        for name, setup in (
            ("loss_fn", "setup_loss_fn"),
            ("loss_fns", "setup_loss_fns"),
            ("rl_loss_fn", "setup_rl_loss_fn"),
        ):
            if name in takes:
                given[name] = getattr(self.losses, setup)(config)
        return lambda: self.losses.compute_loss(**given)[0]


def _defaults(file: Path) -> dict[str, dict[str, Any]]:
    """Return class -> field -> default, of the classes of a loss in a file."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return {
        node.name: {
            each.target.id: value
            for each in node.body
            if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
            for value in _constants(each.value)
        }
        for node in tree.body
        if isinstance(node, ast.ClassDef) and node.name.endswith("LossConfig")
    }


def _constants(value: ast.expr | None) -> Iterator[Any]:
    """Yield the default that a field is given: a value, or the first argument of Field."""
    if isinstance(value, ast.Call) and value.args:
        value = value.args[0]
    if isinstance(value, ast.Constant):
        yield value.value


def open_library(sources: Any, _version: str) -> PrimeRlFunctions:
    """Return the losses of a release for runner.py."""
    return PrimeRlFunctions(sources)
