"""Prime-RL's own loss and advantages, for lab/probes/runner.py.

It runs on a checkout's src/prime_rl. compute_loss and the advantages are the library's, with the
hooks that a launch names. Namespaces with the defaults of the release stand in for its pydantic
classes.
"""

import asyncio
import sys
import tomllib
from collections.abc import Mapping, Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

from lab.probes.protocol import NativeTerm, OwnLaunch
from lab.probes.shared import at_last_token

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


def _launch(version: str, size: int, *loss: str, argv: Sequence[str] = ()) -> OwnLaunch:
    """Return a launch with the default loss, its masks open: only the KL shapes a gradient."""
    masks = [f"{mask} = 1.0" for mask in _masks(version)]
    lines = ["[trainer.loss]", 'type = "default"', *masks, *loss, *_orchestrator(version, size)]
    return OwnLaunch(argv, {"rl.toml": "\n".join(lines)})


def _masks(version: str) -> tuple[str, str]:
    kind = "ipo" if old(version) else "dppo"
    return f"{kind}_mask_low", f"{kind}_mask_high"


def _orchestrator(version: str, size: int) -> list[str]:
    """Return the lines with a size of groups, and a reference policy if the loss can use one."""
    if not old(version):
        return ["[orchestrator]", f"group_size = {size}"]
    teacher = ["[orchestrator.teacher_model.model]", 'name = "org/policy"']
    return ["[orchestrator]", f"rollouts_per_example = {size}", *teacher]


def natives(version: str) -> dict[str, NativeTerm]:
    """Return launches of KL terms that no cell reaches, by name.

    They are the terms of the default loss and, since 0.6.0, that of on-policy distillation.
    """
    losses: dict[str, tuple[str, ...]] = {"kl_tau": (f"kl_tau = {BETA}",)}
    if old(version):
        losses = {
            "kl_tau": (f"kl_tau = {BETA}", "teacher_tau = 0.0"),
            "teacher_tau": ("kl_tau = 0.0", f"teacher_tau = {BETA}"),
        }
    terms = {
        label: NativeTerm(_launch(version, 2, *loss), _launch(version, 4, *loss), BETA)
        for label, loss in losses.items()
    }
    if not old(version):
        pair, four = (_launch(version, size, argv=["distil"]) for size in (2, 4))
        terms["ref_kl (algo opd)"] = NativeTerm(pair, four, 1.0)
    return terms


def corrections(version: str) -> dict[str, OwnLaunch]:
    """Return the default loss: it has no policy but the engine's to correct for.

    Its mask is on the difference of two probabilities. Since 0.6.0 it depends on the advantage's
    sign; the advantages asked about are above 0.
    """
    low, high = _masks(version)
    loss = ['type = "default"', "kl_tau = 0.0", f"{low} = 0.2", f"{high} = 0.2"]
    lines = ["[trainer.loss]", *loss, *_orchestrator(version, 2)]
    bounds = (-0.2 if old(version) else None, 0.2)
    launch = OwnLaunch([], {"rl.toml": "\n".join(lines)}, bounds, is_silent=True)
    return {f"default loss, {low} = {high} = 0.2": launch}


def ratio_levels(version: str) -> dict[str, OwnLaunch]:
    """Return the default loss: it has one importance ratio, to the policy that sampled."""
    return corrections(version)


def silent(version: str) -> OwnLaunch:
    """Return a launch without KL options. It has a reference policy if the loss can use one."""
    return OwnLaunch([], {"rl.toml": "\n".join(_orchestrator(version, 4))})


def old(version: str) -> bool:
    """Return True if the loss gets a teacher's log-probabilities: up to 0.5.0."""
    return version.startswith(("0.3", "0.4", "0.5"))


class Default(SimpleNamespace):
    """The stand-in for DefaultLossConfig and DefaultAdvantageConfig."""


class Custom(SimpleNamespace):
    """The stand-in for CustomLossConfig and CustomAdvantageConfig."""


class Other(SimpleNamespace):
    """The stand-in for configurations that no launch here has."""


class PrimeRlProbes:
    """Prime-RL's functions, and the hooks that a launch ships."""

    def __init__(self, sources: Any, version: str):
        import torch

        self.old = old(version)
        # The library decorates functions with torch.compile; the probe runs them as they are.
        own_compile, torch.compile = torch.compile, _decorator
        self.losses: ModuleType = sources.load(
            LOSS,
            CustomLossConfig=Custom,
            DefaultLossConfig=Default,
            SFTLossConfig=Other,
            IPOLossConfig=Other,
            typechecker=lambda function: function,
            jaxtyped=_decorator,
            import_object=self._hook,
        )
        torch.compile = own_compile
        sources.uses(LOSS, "default_loss_fn", "compute_loss")
        if self.old:
            self.credit: ModuleType = sources.load(
                ADVANTAGE, CustomAdvantageConfig=Custom, import_object=self._hook
            )
            sources.uses(ADVANTAGE, "default_advantage_fn", "compute_advantages")
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
        gains = torch.tensor(flat).unsqueeze(-1).expand_as(mask) * mask
        return at_last_token(batch["rewards"], mask), gains

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


PROBES = PrimeRlProbes
