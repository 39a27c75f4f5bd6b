"""Prime-RL's own loss and advantages, for orchestrator/matrix/inside.py.

Run by a Python with torch beside a checkout's src/prime_rl; nothing of orch is imported.
compute_loss and compute_advantages are the library's, with the hooks that a launch names; its
pydantic classes are stood in for by namespaces with the defaults of release 0.5.0.
"""

import sys
import tomllib
from collections.abc import Mapping, Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

PACKAGE = "prime_rl"
LOSS, ADVANTAGE = "trainer/rl/loss.py", "orchestrator/advantage.py"
HOOKS = "orch_prime_rl_hooks"
LOSS_DEFAULTS: Mapping[str, Any] = {
    "type": "default", "ipo_mask_low": 0.2, "ipo_mask_high": 0.2, "adv_tau": 1.0,
    "teacher_tau": 0.0, "kl_tau": 1e-3,
}  # fmt: skip


STOOD_IN = (
    "configuration classes (namespaces with the defaults of 0.5.0), run-time type checks, and the "
    "forward pass, which returns the log-probabilities asked about"
)
TYPICAL = {"reward": "k1", "loss": "k3"}


def names(_version: str) -> list[tuple[str, str, tuple[str, ...]]]:
    """Prime-RL has no names for estimators: those of cells are the hook's, shipped by orch."""
    return []


_NATIVE = """
[trainer.loss]
type = "default"
ipo_mask_low = 1.0
ipo_mask_high = 1.0
{loss}
[orchestrator]
rollouts_per_example = {size}
[orchestrator.teacher_model.model]
name = "org/policy"
"""


def natives(_version: str) -> dict[str, Any]:
    """Launches that no cell is translated into: its default loss, with each of its two terms. The
    masks are opened, so that nothing but the term shapes a gradient."""
    loss = {
        "teacher_tau = 0.5": "teacher_tau = 0.5\nkl_tau = 0.0",
        "kl_tau = 0.5": "teacher_tau = 0.0\nkl_tau = 0.5",
    }
    return {
        label: {
            "argv": [], "beta": 0.5, "files": {"rl.toml": _NATIVE.format(loss=text, size=2)},
            "groups_of_four": {
                "argv": [], "files": {"rl.toml": _NATIVE.format(loss=text, size=4)}
            },
        }
        for label, text in loss.items()
    }  # fmt: skip


def silent(_version: str) -> dict[str, Any]:
    """A launch that says nothing about KL, beside a reference policy."""
    text = """
[orchestrator]
rollouts_per_example = 4
[orchestrator.teacher_model.model]
name = "org/policy"
"""
    return {"argv": [], "files": {"rl.toml": text}}


class Default(SimpleNamespace):
    """DefaultLossConfig, DefaultAdvantageConfig."""


class Custom(SimpleNamespace):
    """CustomLossConfig, CustomAdvantageConfig."""


class Other(SimpleNamespace):
    """Configurations that no launch asked about here has."""


class PrimeRl:
    """Prime-RL's functions, and whatever hooks a launch ships."""

    def __init__(self, sources: Any):
        import torch

        own_compile, torch.compile = torch.compile, _decorator
        self.loss_module: ModuleType = sources.load(
            LOSS, CustomLossConfig=Custom, DefaultLossConfig=Default, SFTLossConfig=Other,
            typechecker=lambda function: function, jaxtyped=_decorator, import_object=self._hook,
        )  # fmt: skip
        torch.compile = own_compile
        self.advantage_module: ModuleType = sources.load(
            ADVANTAGE, CustomAdvantageConfig=Custom, import_object=self._hook
        )
        for name in ("default_loss_fn", "compute_loss", "setup_loss_fn"):
            sources.uses(LOSS, name)
        for name in ("default_advantage_fn", "compute_advantages"):
            sources.uses(ADVANTAGE, name)

    def _hook(self, path: str) -> Any:
        module, _, name = path.rpartition(".")
        return getattr(sys.modules[module], name)

    def read(self, _argv: Sequence[str], files: Mapping[str, str]) -> Any:
        """rl.toml's loss, advantage and group size, over the library's defaults."""
        told = tomllib.loads(files["rl.toml"])
        if f"{HOOKS}.py" in files:
            module = sys.modules[HOOKS] = ModuleType(HOOKS)
            exec(compile(files[f"{HOOKS}.py"], HOOKS, "exec"), module.__dict__)  # noqa: S102
        loss = told.get("trainer", {}).get("loss", {})
        if loss.get("type", "default") == "custom":
            made: Any = Custom(import_path=loss["import_path"], kwargs=loss.get("kwargs", {}))
        else:
            made = Default(**{**LOSS_DEFAULTS, **loss})
        orchestrator = told.get("orchestrator", {})
        advantage = orchestrator.get("advantage", {"type": "default"})
        return SimpleNamespace(
            loss=made, beta=getattr(made, "kwargs", {}).get("beta", 0.0),
            reference="teacher_model" in orchestrator
            or "num_teacher_gpus" in told.get("deployment", {}),
            group_size=orchestrator.get("rollouts_per_example", 1),
            advantage=Custom(import_path=advantage["import_path"],
                             kwargs=advantage.get("kwargs", {}))
            if advantage["type"] == "custom"
            else Default(length_shaping_alpha=advantage.get("length_shaping_alpha")),
        )  # fmt: skip

    def kl(self, config: Any, _place: str, batch: Mapping[str, Any]) -> Any:
        """[N, T] of the hook a launch ships; the library itself has no estimator but k1, inside its
        loss."""
        if isinstance(config.loss, Custom):
            estimate = self._hook(f"{HOOKS}.token_kl")
            return estimate(
                config.loss.kwargs.get("estimator", "none"),
                batch["logp"],
                batch["ref"],
                batch["old"],
            )
        return batch["logp"] - batch["ref"]

    def advantages(self, config: Any, batch: Mapping[str, Any]) -> tuple[Any, Any]:
        """The library's advantages; a KL enters them later, inside the loss. Token rewards: the
        task's, at the last token."""
        import torch

        mask = batch["mask"]
        lengths = mask.sum(-1).long()
        flat = self.advantage_module.compute_advantages(
            batch["rewards"].tolist(), lengths.tolist(), config.group_size, config.advantage
        )
        rewards = torch.zeros_like(mask)
        rewards[torch.arange(len(mask)), lengths - 1] = batch["rewards"]
        return rewards, torch.tensor(flat).unsqueeze(-1).expand_as(mask) * mask

    def loss(self, config: Any, batch: Mapping[str, Any]) -> Any:
        """compute_loss of the batch as one micro-batch of packed sequences."""
        mask = batch["mask"].bool()
        rows = {
            "trainer_logprobs": batch["logp"], "inference_logprobs": batch["old"],
            "teacher_logprobs": batch["ref"] if config.reference else None,
            "advantages": batch["advantages"], "loss_mask": mask,
        }  # fmt: skip
        value, _ = self.loss_module.compute_loss(
            **{name: None if x is None else list(x.unbind(0)) for name, x in rows.items()},
            loss_fn=self.loss_module.setup_loss_fn(config.loss),
            loss_scale=int(mask.sum()),
        )
        return value


def _decorator(*given: Any, **_: Any) -> Any:
    if len(given) == 1 and callable(given[0]):
        return given[0]
    return lambda function: function


def open_library(sources: Any, _version: str) -> PrimeRl:
    """Prime-RL, to be asked."""
    return PrimeRl(sources)
