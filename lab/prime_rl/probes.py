"""Prime-RL's own loss and advantages, for lab/probes/runner.py.

A Python with torch runs it on a checkout's src/prime_rl, without an import of orch. compute_loss
and the advantages are the library's, with the hooks that a launch names. Namespaces with the
defaults of the release stand in for its pydantic classes.
"""

import asyncio
import json
import sys
import tomllib
from collections.abc import Mapping, Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

PACKAGE = "prime_rl"
LOSS, ADVANTAGE = "trainer/rl/loss.py", "orchestrator/advantage.py"
GRPO = "orchestrator/algo/grpo.py"
HOOKS = "orch_prime_rl_hooks"
LOSS_DEFAULTS: Mapping[str, Any] = {
    "type": "default",
    "ipo_mask_low": 0.2,
    "ipo_mask_high": 0.2,
    "dppo_mask_low": 0.2,
    "dppo_mask_high": 0.2,
    "adv_tau": 1.0,
    "teacher_tau": 0.0,
    "kl_tau": 1e-3,
}
"""Key of the loss -> its default in 0.5.0 (ipo masks, teacher_tau) and 0.8.0 (dppo masks)."""

STOOD_IN = (
    "configuration classes (namespaces with the release's defaults), run-time type checks, and the "
    "forward pass, which returns the log-probabilities asked about"
)
TYPICAL = {"reward": "k1", "loss": "k3"}
BETA = 0.5


def names(_version: str) -> list[tuple[str, str, tuple[str, ...]]]:
    """Return no names. Prime-RL names no estimator: cells use the hook that orch ships."""
    return []


def _toml(version: str, loss: str, size: int) -> str:
    """Return rl.toml with the default loss, its masks open: only the KL shapes a gradient."""
    masks = (
        ("ipo_mask_low", "ipo_mask_high") if old(version) else ("dppo_mask_low", "dppo_mask_high")
    )
    lines = [
        "[trainer.loss]",
        'type = "default"',
        *(f"{mask} = 1.0" for mask in masks),
        loss,
        "[orchestrator]",
        f"{'rollouts_per_example' if old(version) else 'group_size'} = {size}",
    ]
    if old(version):
        lines += ["[orchestrator.teacher_model.model]", 'name = "org/policy"']
    return "\n".join(lines)


def natives(version: str) -> dict[str, Any]:
    """Return launches of KL terms that no cell reaches, by name.

    They are the terms of the default loss and, since 0.6.0, that of on-policy distillation.
    """
    losses = {"kl_tau": f"kl_tau = {BETA}" + ("\nteacher_tau = 0.0" if old(version) else "")}
    if old(version):
        losses["teacher_tau"] = f"kl_tau = 0.0\nteacher_tau = {BETA}"
    losses_by_name: dict[str, Any] = {}
    for label, loss in losses.items():
        pair, four = (
            {"argv": [], "files": {"rl.toml": _toml(version, loss, size)}} for size in (2, 4)
        )
        losses_by_name[label] = {**pair, "beta": BETA, "groups_of_four": four}
    if not old(version):
        pair, four = (
            {"argv": ["distil"], "files": {"rl.toml": _toml(version, "", size)}} for size in (2, 4)
        )
        losses_by_name["ref_kl (algo opd)"] = {**pair, "beta": 1.0, "groups_of_four": four}
    return losses_by_name


def corrections(version: str) -> dict[str, Any]:
    """Return the default loss: it has no policy but the engine's to correct for.

    Its mask is on the difference of two probabilities. Since 0.6.0 it depends on the advantage's
    sign; the advantages asked about are above 0.
    """
    masks = ("ipo_mask_low", "ipo_mask_high")
    bounds: tuple[float | None, float] = (-0.2, 0.2)
    if not old(version):
        masks, bounds = ("dppo_mask_low", "dppo_mask_high"), (None, 0.2)
    text = "\n".join(
        [
            "[trainer.loss]",
            'type = "default"',
            "kl_tau = 0.0",
            *(f"{mask} = 0.2" for mask in masks),
            "[orchestrator]",
            f"{'rollouts_per_example' if old(version) else 'group_size'} = 2",
        ]
    )
    launch: dict[str, Any] = {
        "argv": [],
        "files": {"rl.toml": text},
        "bounds": bounds,
        "estimator": None,
        "silent": True,
    }
    return {f"default loss, {masks[0]} = {masks[1]} = 0.2": launch}


def ratio_levels(version: str) -> dict[str, Any]:
    """Return the default loss: it has one importance ratio, to the policy that sampled."""
    return dict(corrections(version))


NEUTRAL: Mapping[str, float] = {
    "trainer.loss.kl_tau": 0.0,
    "trainer.loss.dppo_mask_low": 1.0,
    "trainer.loss.dppo_mask_high": 1.0,
    "trainer.loss.ipo_mask_low": 1.0,
    "trainer.loss.ipo_mask_high": 1.0,
}
"""Key of the loss -> the value with which it does nothing. Without the key it has its default."""


def files(given: Mapping[str, object], without: str = "") -> dict[str, str]:
    """Return rl.toml with the keys that these functions read: of the loss, of the advantages and of
    the group. `without` has the value with which it does nothing."""
    kept = {key: value for key, value in given.items() if key.startswith(_READ)}
    if without in NEUTRAL:
        kept[without] = NEUTRAL[without]
    tables: dict[str, list[str]] = {}
    for key, value in kept.items():
        table, _, name = key.rpartition(".")
        tables.setdefault(table, []).append(f"{name} = {json.dumps(value)}")
    lines = [line for table in sorted(tables) for line in (f"[{table}]", *tables[table])]
    return {"rl.toml": "\n".join(lines)}


_READ = (
    "trainer.loss.",
    "orchestrator.advantage.",
    "orchestrator.teacher_model.",
    "orchestrator.group_size",
    "orchestrator.rollouts_per_example",
)


def silent(version: str) -> dict[str, Any]:
    """Return a launch without KL options. It has a reference policy if the loss can use one."""
    size = "rollouts_per_example = 4" if old(version) else "group_size = 4"
    teacher = '\n[orchestrator.teacher_model.model]\nname = "org/policy"' if old(version) else ""
    return {"argv": [], "files": {"rl.toml": f"[orchestrator]\n{size}{teacher}\n"}}


def old(version: str) -> bool:
    """Return True if the loss gets a teacher's log-probabilities: up to 0.5.0."""
    return version.startswith(("0.3", "0.4", "0.5"))


class Default(SimpleNamespace):
    """The stand-in for DefaultLossConfig and DefaultAdvantageConfig."""


class Custom(SimpleNamespace):
    """The stand-in for CustomLossConfig and CustomAdvantageConfig."""


class Other(SimpleNamespace):
    """The stand-in for configurations that no launch here has."""


def load_losses(sources: Any, import_object: Any) -> ModuleType:
    """Return the module of the losses; `import_object` finds the hooks that a launch names."""
    import torch

    # The library decorates functions with torch.compile; the probe runs them as they are.
    own_compile, torch.compile = torch.compile, _decorator
    module: ModuleType = sources.load(
        LOSS,
        CustomLossConfig=Custom,
        DefaultLossConfig=Default,
        SFTLossConfig=Other,
        IPOLossConfig=Other,
        typechecker=lambda function: function,
        jaxtyped=_decorator,
        import_object=import_object,
    )
    torch.compile = own_compile
    return module


class PrimeRlProbes:
    """Prime-RL's functions, and the hooks that a launch ships."""

    def __init__(self, sources: Any, version: str):
        import torch

        self.old = old(version)
        self.losses: ModuleType = load_losses(sources, self._hook)
        for name in ("default_loss_fn", "compute_loss"):
            sources.uses(LOSS, name)
        if self.old:
            self.credit: ModuleType = sources.load(
                ADVANTAGE, CustomAdvantageConfig=Custom, import_object=self._hook
            )
            for name in ("default_advantage_fn", "compute_advantages"):
                sources.uses(ADVANTAGE, name)
        else:
            sources.uses(LOSS, "ref_kl_loss_fn")
            self.credit = sources.load(GRPO, ["GRPOAlgorithm.score_group"], torch=torch)

    def _hook(self, path: str) -> Any:
        module, _, name = path.rpartition(".")
        return getattr(sys.modules[module], name)

    def read(self, argv: Sequence[str], files: Mapping[str, str]) -> Any:
        """Return loss, advantage and group size of rl.toml, over the library's defaults."""
        tree = tomllib.loads(files["rl.toml"])
        if f"{HOOKS}.py" in files:
            module = sys.modules[HOOKS] = ModuleType(HOOKS)
            exec(compile(files[f"{HOOKS}.py"], HOOKS, "exec"), module.__dict__)  # noqa: S102  (our own file, as a launch ships it)
        loss = tree.get("trainer", {}).get("loss", {})
        if loss.get("type", "default") == "custom":
            loss_config: Any = Custom(
                import_path=loss["import_path"], kwargs=loss.get("kwargs", {})
            )
        else:
            loss_config = Default(**{**LOSS_DEFAULTS, **loss})
        orchestrator = tree.get("orchestrator", {})
        advantage = orchestrator.get("advantage", {"type": "default"})
        shaping = advantage.get("length_shaping_alpha")
        return SimpleNamespace(
            loss=loss_config,
            distil="distil" in argv,
            reference="teacher_model" in orchestrator
            or "num_teacher_gpus" in tree.get("deployment", {}),
            group_size=orchestrator.get("rollouts_per_example", orchestrator.get("group_size", 1)),
            advantage=Custom(
                import_path=advantage["import_path"], kwargs=advantage.get("kwargs", {})
            )
            if advantage["type"] == "custom"
            else Default(length_shaping_alpha=shaping),
        )

    def kl(self, config: Any, _place: str, batch: Mapping[str, Any]) -> Any:
        """Return the KL [N, T]: of the hook in a launch, or k1, which Prime-RL's own loss has."""
        if not isinstance(config.loss, Custom):
            return batch["logp"] - batch["ref"]
        name = config.loss.kwargs.get("estimator", "none")
        return self._hook(f"{HOOKS}.token_kl")(name, batch["logp"], batch["ref"], batch["old"])

    def advantages(self, config: Any, batch: Mapping[str, Any]) -> tuple[Any, Any]:
        """Return the library's advantages, and the task's reward at each response's last token.

        A KL enters the advantages later, inside the loss.
        """
        import torch

        mask = batch["mask"]
        lengths = mask.sum(-1).long()
        rewards, size = batch["rewards"].tolist(), config.group_size
        if self.old:
            flat = self.credit.compute_advantages(rewards, lengths.tolist(), size, config.advantage)
        else:
            flat = self._scored(rewards, size)
        task_rewards = torch.zeros_like(mask)
        task_rewards[torch.arange(len(mask)), lengths - 1] = batch["rewards"]
        return task_rewards, torch.tensor(flat).unsqueeze(-1).expand_as(mask) * mask

    def _scored(self, rewards: Sequence[float], size: int) -> list[float]:
        """Return the scores of GRPOAlgorithm.score_group for each group."""
        flat: list[float] = []
        algorithm = SimpleNamespace(length_penalty=None)
        for start in range(0, len(rewards), size):
            group = [
                SimpleNamespace(reward=reward, assign_advantages=flat.append)
                for reward in rewards[start : start + size]
            ]
            asyncio.run(self.credit.score_group(algorithm, group))
        return flat

    def loss(self, config: Any, batch: Mapping[str, Any]) -> Any:
        """Return compute_loss of the batch as one micro-batch of packed sequences."""
        import torch

        mask = batch["mask"].bool()
        tokens = int(mask.sum())
        rows = {
            "trainer_logprobs": batch["logp"],
            "inference_logprobs": batch.get("engine", batch["old"]),
            "advantages": batch["advantages"],
            "loss_mask": mask,
        }
        if self.old:
            rows["teacher_logprobs"] = batch["ref"] if config.reference else None
            more = {"loss_fn": self.losses.setup_loss_fn(config.loss), "loss_scale": tokens}
        else:
            on = torch.ones_like(batch["logp"])
            rows["ref_logprobs"] = batch["ref"] if config.distil else None
            rows |= {"rl_weights": on * (not config.distil), "ce_weights": None}
            rows["ref_kl_weights"] = on * mask if config.distil else None
            more = {
                "rl_loss_fn": self.losses.setup_rl_loss_fn(config.loss),
                "rl_scale": tokens,
                "ce_scale": 1,
                "ref_kl_scale": tokens,
            }
        listed = {name: None if x is None else list(x.unbind(0)) for name, x in rows.items()}
        value, _ = self.losses.compute_loss(**listed, **more)
        return value


def _decorator(*given: Any, **_: Any) -> Any:
    if len(given) == 1 and callable(given[0]):
        return given[0]
    return lambda function: function


def open_library(sources: Any, version: str) -> PrimeRlProbes:
    """Return Prime-RL's functions for runner.py."""
    return PrimeRlProbes(sources, version)
