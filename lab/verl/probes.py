"""verl's own KL, rewards, advantages and policy loss, for lab/probes/runner.py.

The functions are verl's, run from its installed source. Only the containers of tensors between them
(DataProto, TensorDict, metrics) are stand-ins.
"""

from collections.abc import Mapping, Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

from lab.probes.protocol import LEAST, MOST, Bounds, OwnLaunch
from lab.probes.shared import at_last_token, overrides, value_of

PACKAGE = "verl"
CORE, LOSSES = "trainer/ppo/core_algos.py", "workers/utils/losses.py"
TRAINER, FUNCTIONAL = "trainer/ppo/ray_trainer.py", "utils/torch_functional.py"
CORRECTION, CORRECT = "trainer/ppo/rollout_corr_helper.py", "algorithm.rollout_correction."

ACTOR = "actor_rollout_ref.actor"
DEFAULTS: Mapping[str, Any] = {
    "algorithm.adv_estimator": "gae",
    "algorithm.norm_adv_by_std_in_grpo": True,
    "algorithm.gamma": 1.0,
    "algorithm.use_kl_in_reward": False,
    "algorithm.kl_penalty": "kl",
    "algorithm.kl_ctrl.kl_coef": 0.001,
    f"{ACTOR}.use_kl_loss": False,
    f"{ACTOR}.kl_loss_type": "low_var_kl",
    f"{ACTOR}.kl_loss_coef": 0.001,
    f"{ACTOR}.loss_agg_mode": "token-mean",
    f"{ACTOR}.loss_scale_factor": None,
    f"{ACTOR}.clip_ratio": 0.2,
    f"{ACTOR}.clip_ratio_low": 0.2,
    f"{ACTOR}.clip_ratio_high": 0.2,
    f"{ACTOR}.clip_ratio_c": 3.0,
    f"{ACTOR}.entropy_coeff": 0,
}
"""Key -> its default in verl (trainer/config of 0.8.0 and 0.9.1)."""


STOOD_IN = (
    "DataProto, TensorDict and metrics, which carry tensors between the functions; the forward "
    "pass, which returns the log-probabilities asked about; the engine's count of a minibatch's "
    "tokens, of what rollout_rs leaves up to 0.8.0, of all tokens in trainer v1"
)
TYPICAL = {"reward": "k1", "loss": "k3"}
"""Place -> an estimator that orch can send to verl. The arguments of `names` replace it."""
_BASES = ("k1", "kl", "abs", "k2", "mse", "k3", "low_var_kl")
NAMES = (*_BASES, *(f"{each}+" for each in _BASES), "full")


def names(_version: str) -> list[tuple[str, str, tuple[str, ...]]]:
    """Return place, name and further arguments of every estimator that verl has a name for."""
    return [
        *(("reward", name, (f"algorithm.kl_penalty={name}",)) for name in NAMES),
        *(("loss", name, (f"{ACTOR}.kl_loss_type={name}",)) for name in NAMES),
    ]


def silent(_version: str) -> OwnLaunch:
    """Return a launch that sets nothing about KL."""
    return OwnLaunch(["algorithm.adv_estimator=rloo"])


def corrections(_version: str) -> dict[str, OwnLaunch]:
    """Return launches with each correction of the engine's mismatch, in verl's own words."""
    by_options = {"nothing set": _corrected({}, (None, None))._replace(is_silent=True)}
    both = f"{LEAST}_{MOST}"
    asked: list[tuple[dict[str, Any], Bounds]] = []
    for level in ("token", "sequence"):
        weight = {"rollout_is": level, "rollout_is_threshold": MOST}
        asked += [
            (weight, (None, MOST)),
            ({**weight, "rollout_is_threshold": both}, (LEAST, MOST)),
            ({**weight, "rollout_is_batch_normalize": "true"}, (None, MOST)),
        ]
    asked += [
        ({"rollout_rs": option, "rollout_rs_threshold": both}, (LEAST, MOST))
        for option in ("token_k1", "seq_sum_k1", "seq_mean_k1")
    ]
    asked += [
        ({"rollout_rs": f"{statistic}_{estimator}", "rollout_rs_threshold": "0.2"}, (None, 0.2))
        for statistic in ("token", "seq_sum", "seq_mean", "seq_max")
        for estimator in ("k2", "k3")
    ]
    return by_options | {
        " ".join(overrides(options)): _corrected(options, bounds) for options, bounds in asked
    }


def _corrected(options: Mapping[str, Any], bounds: Bounds, *more: str) -> OwnLaunch:
    """Return a launch with a correction and k2 in the loss."""
    kl = {"use_kl_loss": "true", "kl_loss_type": "k2", "kl_loss_coef": 0.5}
    argv = ["algorithm.adv_estimator=rloo", *overrides(kl, f"{ACTOR}.")]
    return OwnLaunch([*argv, *overrides(options, CORRECT), *more], bounds=bounds, estimator="k2")


def ratio_levels(_version: str) -> dict[str, OwnLaunch]:
    """Return launches with each level of the importance ratio, in verl's own words."""
    gspo = "policy_loss.loss_mode=gspo"
    means = (gspo, "loss_agg_mode=seq-mean-token-mean")
    return {
        " ".join(words): _corrected({}, (None, None), *(f"{ACTOR}.{word}" for word in words))
        for words in (("policy_loss.loss_mode=vanilla",), (gspo,), means)
    }


class PaddedBatch(dict[str, Any]):
    """A batch as verl's functions use one: tensors by name, already padded."""

    @property
    def batch_size(self) -> tuple[int, ...]:
        """Return the number of rows, as tensordict's shape."""
        return tuple(self["response_mask"].shape[:1])

    def select(self, *names: str) -> "PaddedBatch":
        """Return a batch of these tensors alone."""
        return PaddedBatch({name: self[name] for name in names})

    def union(self, other: Mapping[str, Any]) -> "PaddedBatch":
        """Return a batch with the tensors of both."""
        return PaddedBatch({**self, **other})

    @property
    def batch(self) -> "PaddedBatch":
        """Return the tensors, as of a DataProto."""
        return self

    def to_padded_tensor(self) -> "PaddedBatch":
        """Return the batch itself: its tensors are padded already."""
        return self


class PlainMetric:
    """verl's Metric, as far as ppo_loss uses it."""

    def __init__(self, value: Any, aggregation: Any):
        self.value, self.aggregation = value, aggregation

    from_dict = staticmethod(lambda metrics, aggregation: dict(metrics))  # noqa: ARG005  (the library's signature)


class ActorConfig(SimpleNamespace):
    """A configuration as verl's functions read one."""

    def get(self, name: str, default: Any = None) -> Any:
        """Return the value of a key, or the default."""
        return getattr(self, name, default)


class VerlProbes:
    """verl's functions. Each launch has new copies, because a module of orch may change them."""

    def __init__(self, sources: Any, version: str):
        self.sources, self.version = sources, version
        self.plain = self._modules()
        self.correction: ModuleType | None = None
        self.taught: dict[str, tuple[ModuleType, ModuleType, ModuleType]] = {}
        sources.uses(
            CORE,
            "kl_penalty",
            "kl_penalty_forward",
            "agg_loss",
            "compute_policy_loss_vanilla",
            "compute_grpo_outcome_advantage",
            "compute_rloo_outcome_advantage",
        )

    def _modules(self) -> tuple[ModuleType, ModuleType, ModuleType]:
        load = self.sources.load
        functional = load(
            FUNCTIONAL,
            ["masked_sum", "masked_mean", "masked_var", "masked_whiten"],
            torch=__import__("torch"),
        )
        core = load(CORE, verl_F=functional, ActorConfig=ActorConfig)
        losses = load(
            LOSSES,
            ["ppo_loss"],
            agg_loss=core.agg_loss,
            kl_penalty=core.kl_penalty,
            get_policy_loss_fn=core.get_policy_loss_fn,
            Metric=PlainMetric,
            AggregationType=SimpleNamespace(SUM="sum", MEAN="mean"),
            no_padding_2_padding=lambda values, _: values,
        )
        trainer = load(
            TRAINER,
            ["apply_kl_penalty", "compute_advantage"],
            core_algos=core,
            masked_mean=functional.masked_mean,
            torch=__import__("torch"),
            AdvantageEstimator=core.AdvantageEstimator,
        )
        return core, losses, trainer

    def read(self, argv: Sequence[str], files: Mapping[str, str]) -> dict[str, Any]:
        """Return verl's configuration with a launch's overrides, and the text of orch_verl.py."""
        given = [a.lstrip("+").partition("=") for a in argv if "=" in a]
        values = {key: value_of(value) for key, _, value in given}
        return {**DEFAULTS, **values, "module": files.get("extension/orch_verl.py")}

    def _of(self, config: Mapping[str, Any]) -> tuple[ModuleType, ModuleType, ModuleType]:
        text = config["module"]
        if text is None:
            return self.plain
        if text not in self.taught:
            core, losses, _ = self.taught[text] = self._modules()
            ours: dict[str, Any] = {"__name__": "asked"}
            exec(compile(text, "orch_verl.py", "exec"), ours)  # noqa: S102  (our own file, as a launch ships it)
            ours["install"](losses, core)
        return self.taught[text]

    def kl(self, config: Mapping[str, Any], place: str, batch: Mapping[str, Any]) -> Any:
        """Return the KL [N, T], as ppo_loss (`loss`) or apply_kl_penalty (`reward`) calls it."""
        core, losses, _ = self._of(config)
        if place == "reward":
            name = config["algorithm.kl_penalty"]
            return core.kl_penalty(batch["logp"], batch["ref"], kl_penalty=name)
        tensors = {
            "response_mask": batch["mask"],
            "old_log_probs": batch["old"],
            "dp_size": 1,
            "ref_log_prob": batch["ref"],
            "advantages": 0 * batch["old"],
            "batch_num_tokens": 1,
            "global_batch_size": 1,
        }
        # orch's extension keeps `old` from this call: verl does not give it to kl_penalty.
        losses.ppo_loss(
            _actor({**config, f"{ACTOR}.use_kl_loss": False}),
            {"log_probs": batch["logp"]},
            PaddedBatch(tensors),
        )
        name = config[f"{ACTOR}.kl_loss_type"]
        return losses.kl_penalty(logprob=batch["logp"], ref_logprob=batch["ref"], kl_penalty=name)

    def advantages(self, config: Mapping[str, Any], batch: Mapping[str, Any]) -> tuple[Any, Any]:
        """Return token rewards and advantages [N, T], as the trainer computes them from `old`."""
        _, _, trainer = self._of(config)
        data = self._scored(batch, at_last_token(batch["rewards"], batch["mask"]))
        if config["algorithm.use_kl_in_reward"]:
            control = SimpleNamespace(
                value=config["algorithm.kl_ctrl.kl_coef"], update=lambda **_: None
            )
            data, _ = trainer.apply_kl_penalty(
                data, kl_ctrl=control, kl_penalty=config["algorithm.kl_penalty"]
            )
        data = trainer.compute_advantage(
            data,
            adv_estimator=config["algorithm.adv_estimator"],
            gamma=config["algorithm.gamma"],
            lam=1.0,
            norm_adv_by_std_in_grpo=config["algorithm.norm_adv_by_std_in_grpo"],
            config=ActorConfig(gamma=config["algorithm.gamma"]),
        )
        return data.batch["token_level_rewards"], data.batch["advantages"]

    def controlled(self, config: Mapping[str, Any], batch: Mapping[str, Any]) -> float:
        """Return beta after apply_kl_penalty of a batch, with the launch's controller."""
        core, _, trainer = self._of(config)
        given = _section(config, "algorithm.kl_ctrl.")
        control = core.get_kl_controller(SimpleNamespace(**given))
        self.sources.uses(CORE, "get_kl_controller", "AdaptiveKLController")
        trainer.apply_kl_penalty(
            self._scored(batch, 0 * batch["mask"]),
            kl_ctrl=control,
            kl_penalty=config["algorithm.kl_penalty"],
        )
        return float(control.value)

    @staticmethod
    def _scored(batch: Mapping[str, Any], scores: Any) -> Any:
        """Return a batch as the trainer has it before its advantages."""
        import numpy as np

        mask = batch["mask"]
        return SimpleNamespace(
            batch=PaddedBatch(
                {
                    "response_mask": mask,
                    "token_level_scores": scores,
                    "token_level_rewards": scores,
                    "old_log_probs": batch["old"],
                    "ref_log_prob": batch["ref"],
                }
            ),
            non_tensor_batch={"uid": np.array([str(g) for g in batch["groups"]], dtype=object)},
        )

    def loss(self, config: Mapping[str, Any], batch: Mapping[str, Any]) -> Any:
        """Return ppo_loss of one micro-batch that is the whole minibatch."""
        _, losses, _ = self._of(config)
        tensors = self._weighted(
            config,
            PaddedBatch(
                response_mask=batch["mask"],
                old_log_probs=batch["old"],
                rollout_log_probs=batch.get("engine", batch["old"]),
                ref_log_prob=batch["ref"],
                advantages=batch["advantages"],
            ),
        )
        legacy = self.version.startswith("0.8") or config.get("trainer.use_v1") is False
        mask = tensors["response_mask"] if legacy else batch["mask"]
        tensors = tensors.union(
            {
                "dp_size": 1,
                "batch_num_tokens": mask.sum(),
                "global_batch_size": len(mask),
            }
        )
        value, _ = losses.ppo_loss(_actor(config), {"log_probs": batch["logp"]}, tensors)
        return value

    def _weighted(self, config: Mapping[str, Any], batch: PaddedBatch) -> PaddedBatch:
        """Return the batch as the trainer corrects it: with weights, or with a smaller mask."""
        own = _section(config, CORRECT)
        if own.get("rollout_is") is None and own.get("rollout_rs") is None:
            return batch
        if self.correction is None:
            import torch

            functional = self.sources.load(FUNCTIONAL, ["masked_sum", "masked_mean"], torch=torch)
            proto = SimpleNamespace(from_dict=lambda tensors: PaddedBatch(tensors))
            self.correction = self.sources.load(CORRECTION, verl_F=functional, DataProto=proto)
            self.sources.uses(
                CORRECTION,
                "compute_rollout_correction_and_add_to_batch",
                "compute_rollout_correction_weights",
                "compute_rollout_rejection_mask",
            )
        weighted, _ = self.correction.compute_rollout_correction_and_add_to_batch(batch, own)
        return PaddedBatch(weighted)


def _section(config: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """Return the keys below a section, without its name."""
    return {
        key.removeprefix(prefix): value for key, value in config.items() if key.startswith(prefix)
    }


def _actor(config: Mapping[str, Any]) -> ActorConfig:
    """Return actor_rollout_ref.actor, with its policy_loss."""
    plain = _section(config, f"{ACTOR}.")
    mode = plain.pop("policy_loss.loss_mode", "vanilla")
    return ActorConfig(global_batch_info={}, policy_loss={"loss_mode": mode}, **plain)


PROBES = VerlProbes
