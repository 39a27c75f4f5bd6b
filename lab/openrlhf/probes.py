"""OpenRLHF's own parser, KL, experience, advantages, loss, for lab/probes/runner.py.

It runs on OpenRLHF's installed source. Parser, RemoteExperienceMaker and
ActorPPOTrainer.training_step are the library's. Ray, DeepSpeed and the models are stand-ins: a
forward pass returns the batch's log-probabilities.
"""

import sys
import time
import types
from collections.abc import Mapping, Sequence
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

from backends.openrlhf.flags import FLAT_NAMES, is_flat
from lab.probes.protocol import LEAST, MOST, OwnLaunch
from lab.probes.shared import check_groups, loss_of, stop_at_backward

PACKAGE = "openrlhf"
UTILS, LOSS, CLI = "models/utils.py", "models/loss.py", "cli/train_ppo_ray.py"
MAKER, ACTOR = "trainer/ppo_utils/experience_maker.py", "trainer/ray/ppo_actor.py"
LENGTHS = "trainer/ppo_utils/length_penalty.py"
TRAINER, KL_CONTROL = "trainer/ppo_trainer.py", "trainer/ppo_utils/kl_controller.py"


STOOD_IN = (
    "Ray, DeepSpeed and the models: a forward pass returns the log-probabilities asked about; the "
    "library's .float() leaves double precision as it is"
)
TYPICAL = {"reward": "k1", "loss": "k3"}
"""Place -> an estimator that orch can send to OpenRLHF. The arguments of `names` replace it."""


def _flag(version: str, name: str) -> str:
    """Return a flag of a release by its dotted name."""
    flat = FLAT_NAMES.get(name, name.replace("algo.kl.", "kl_"))
    return f"--{flat if is_flat(version) else name}"


def names(version: str) -> list[tuple[str, str, tuple[str, ...]]]:
    """Return place, name and further arguments of every estimator that has a name here."""
    flag, more = _flag(version, "algo.kl.estimator"), "--algo.kl.unbiased_gradient"
    known = ("k1", "k2", "k3")
    plain = [(place, name, (flag, name)) for place in ("reward", "loss") for name in known]
    if is_flat(version):
        return [*plain]
    return [*plain, *(("loss", f"{name} {more}", (flag, name, more)) for name in known)]


def silent(version: str) -> OwnLaunch:
    """Return a launch that sets nothing about KL."""
    given = {
        "actor.model_name_or_path": "m",
        "reward.remote_url": "r.py",
        "algo.advantage.estimator": "rloo",
        "rollout.n_samples_per_prompt": "4",
    }
    words = ((_flag(version, name), value) for name, value in given.items())
    return OwnLaunch([word for pair in words for word in pair])


def corrections(version: str) -> dict[str, OwnLaunch]:
    """Return launches with each correction of the engine's mismatch, in the library's own words."""
    both = (str(LEAST), str(MOST))
    asked: list[list[str]] = []
    if is_flat(version):
        for kind in ("tis", "icepop", "seq-mask-tis"):
            words = ["--enable_vllm_is_correction", "--vllm_is_correction_type", kind]
            asked.append([*words, "--vllm_is_truncated_threshold", *both])
    else:
        for named, *numbers in (
            ("token clip ratio", str(MOST)),
            ("token clip ratio", *both),
            ("token mask ratio", *both),
            ("seq mask ratio", *both),
            ("token mask binary_kl", "0.05"),
            ("seq mask binary_kl", "0.05"),
            ("token mask tv", "0.2"),
            ("seq mask tv", "0.2"),
        ):
            keys = zip(("level", "mode", "gating"), named.split(), strict=True)
            words = [word for key, value in keys for word in (f"{_CORRECTION}{key}", value)]
            asked.append([*words, f"{_CORRECTION}threshold", *numbers])
    by_options = {"nothing set": _corrected(version)._replace(is_silent=True)}
    for words in asked:
        least = float(words[-2]) if words[-2] == both[0] else None
        launch = _corrected(version, *words)
        by_options[" ".join(words)] = launch._replace(bounds=(least, float(words[-1])))
    return by_options


_CORRECTION = "--algo.advantage.is_correction_"


def _corrected(version: str, *words: str) -> OwnLaunch:
    """Return a launch with further words, and k2 in the loss."""
    given = (("use_loss",), ("init_coef", "0.5"), ("estimator", "k2"))
    kl = [word for name, *value in given for word in (_flag(version, f"algo.kl.{name}"), *value)]
    mean = [] if is_flat(version) else ["--actor.loss_agg_mode", "token-mean"]
    return OwnLaunch([*silent(version).argv, *kl, *mean, *words], estimator="k2")


def ratio_levels(version: str) -> dict[str, OwnLaunch]:
    """Return launches with each level of the importance ratio, in the library's own words."""
    flag = _flag(version, "actor.policy_loss_type")
    return {f"{flag} {kind}": _corrected(version, flag, kind) for kind in ("ppo", "gspo")}


CONTROLLER = "--algo.kl.target (--kl_target before 0.10.2)"


def controller(version: str, target: float, horizon: int, beta: float) -> OwnLaunch:
    """Return a launch with the adaptive controller of a KL in the reward, and 2 prompts a batch."""
    given = {
        "algo.kl.target": target,
        "algo.kl.horizon": horizon,
        "algo.kl.init_coef": beta,
        "rollout.batch_size": 2,
    }
    words = ((_flag(version, name), str(value)) for name, value in given.items())
    return OwnLaunch([*silent(version).argv, *(word for pair in words for word in pair)])


class OpenRlhfProbes:
    """The library's functions and its parser."""

    def __init__(self, sources: Any, _version: str):
        import torch

        load = sources.load
        self.sources = sources
        self.utils: ModuleType = load(UTILS)
        self.loss_module: ModuleType = load(LOSS, masked_mean=self.utils.masked_mean)
        own = {
            "compute_approx_kl": self.utils.compute_approx_kl,
            "torch": torch,
            "masked_mean": self.utils.masked_mean,
        }
        self.maker: ModuleType = load(
            MAKER,
            compute_reward=self.utils.compute_reward,
            ray=MagicMock(),
            logger=MagicMock(),
            init_logger=lambda _: MagicMock(),
            **own,
            **_length_penalties(sources),
        )
        if (sources.folder / "utils/loss_utils.py").exists():
            own |= vars(load("utils/loss_utils.py"))
        if hasattr(self.loss_module, "aggregate_loss"):
            own["aggregate_loss"] = self.loss_module.aggregate_loss
            sources.uses(LOSS, "aggregate_loss")
        self.step: ModuleType = load(ACTOR, ["ActorPPOTrainer.training_step"], **own)
        self.own = own
        sources.uses(UTILS, "compute_approx_kl", "compute_reward")
        sources.uses(LOSS, "PolicyLoss")
        made = ("make_experience", "compute_advantages_and_returns", "get_cumulative_returns")
        sources.uses(MAKER, *(f"RemoteExperienceMaker.{name}" for name in made))

    def read(self, argv: Sequence[str], _files: Mapping[str, str]) -> Any:
        """Return the namespace that the library's own parser makes of a launch and checks."""
        calls: list[Any] = []
        # The library's own parser reads sys.argv.
        own_argv, sys.argv = sys.argv, [CLI, *_arguments(argv)]
        if (self.sources.folder / "utils/config.py").exists():
            for name in ("openrlhf", "openrlhf.utils"):
                sys.modules.setdefault(name, types.ModuleType(name))
            sys.modules["openrlhf.utils.config"] = self.sources.load("utils/config.py")
        try:
            self.sources.load(CLI, as_main=True, train=calls.append)
        except SystemExit as error:
            raise ValueError("the library's parser refuses this launch") from error
        finally:
            sys.argv = own_argv
        return Arguments(calls[0])

    def kl(self, config: "Arguments", place: str, batch: Mapping[str, Any]) -> Any:
        """Return the KL [N, T], as make_experience (`reward`) or training_step (`loss`) has it."""
        more: dict[str, Any] = {"kl_estimator": config.estimator}
        if place == "loss" and config.nested:
            unbiased = config.args.algo.kl.unbiased_gradient
            more |= {"log_probs_old": batch["old"], "unbiased_gradient": unbiased}
        return self.utils.compute_approx_kl(batch["logp"], batch["ref"], **more)

    def advantages(self, config: "Arguments", batch: Mapping[str, Any]) -> tuple[Any, Any]:
        """Return token rewards and advantages [N, T] of one micro-batch, computed from `old`."""
        rewards, experience = self._experience(config, batch)
        return rewards, experience.advantages

    def _experience(self, config: "Arguments", batch: Mapping[str, Any]) -> tuple[Any, Any]:
        """Return token rewards [N, T] and the experience that training_step gets."""
        check_groups(batch["groups"], config.group_size)
        maker = self._maker(config, batch)
        experience = SimpleNamespace(
            sequences=batch["old"],
            attention_mask=None,
            action_mask=batch["mask"],
            rewards=batch["rewards"].clone(),
            index=list(range(len(batch["groups"]))),
            info={},
            mm_train_inputs=None,
            response_length=batch["mask"].sum(-1),
        )
        rewards: list[Any] = []
        own = self.utils.compute_reward

        def watched(*given: Any, **named: Any) -> Any:
            rewards.append(own(*given, **named))
            return rewards[-1]

        self.maker.__dict__["compute_reward"] = watched
        (experience_with_advantages,) = maker.compute_advantages_and_returns(
            maker.make_experience([experience])
        )
        return rewards[0], experience_with_advantages

    def controlled(self, config: "Arguments", batch: Mapping[str, Any]) -> float:
        """Return beta after train_step of a batch, with the controller that __init__ makes.

        make_experience, training_step, both ppo_train and train_step are the library's. Data
        loading, Ray's calls and the optimizer are stand-ins.
        """
        import torch

        torch.cuda.current_device = lambda: 0

        class Bar(list[Any]):
            set_postfix = staticmethod(lambda *_: None)

        stand_ins = {
            "DataLoader": lambda experiences, **_: experiences,
            "tqdm": lambda experiences, **_: Bar(experiences),
            "iter_grad_accum_global_norm": lambda bar, *_: ((each, None) for each in bar),
            "fields": lambda _: (),
            "Experience": None,
        }
        worker = self.sources.load(
            ACTOR,
            ["ActorPPOTrainer.ppo_train", "ActorPPOTrainer.training_step"],
            **{**self.own, **stand_ins},
        )
        control = self.sources.load(KL_CONTROL)
        self.sources.uses(KL_CONTROL, "AdaptiveKLController", "FixedKLController")
        base = "BasePPOTrainer."
        trainer = self.sources.load(
            TRAINER,
            [f"{base}__init__", f"{base}train_step", f"{base}ppo_train"],
            **{name: getattr(control, name) for name in vars(control) if "Controller" in name},
            ray=SimpleNamespace(get=lambda refs: refs),
            time=time,
            logger=MagicMock(),
            _TRANSFORMERS_V5=True,
            RemoteExperienceMaker=MagicMock(),
            WandbLogger=MagicMock(),
            TensorboardLogger=MagicMock(),
        )
        _, experience = self._experience(config, {**batch, "rewards": 0 * batch["rewards"]})
        experience.to_device = lambda _: None
        experience.rollout_log_probs = batch["old"]
        experience.info["reward"] = experience.rewards
        actor = self._worker(config, batch)
        actor.strategy.backward = lambda *_: None
        actor.strategy.all_reduce = lambda status: status
        actor.max_epochs = 1
        actor.replay_buffer = _Experiences([experience])
        actor.training_step = lambda *given: worker.training_step(actor, *given)

        def run(method_name: str, **given: Any) -> list[Any]:
            return [worker.ppo_train(actor, **given)] if method_name == "fit" else []

        fake = MagicMock()
        group = SimpleNamespace(async_run_method=run, async_run_method_batch=lambda **_: [])
        strategy = SimpleNamespace(args=config.args)
        trainer.__dict__["__init__"](fake, strategy, group, None, None, None, None, MagicMock())
        fake.experience_maker.make_experience_batch = lambda _: [experience]
        fake.ppo_train = lambda step: trainer.ppo_train(fake, step)
        trainer.train_step(fake, None, 1)
        return float(fake.kl_ctl.value)

    def _maker(self, config: "Arguments", batch: Mapping[str, Any]) -> Any:
        """Return a RemoteExperienceMaker whose models return the batch's log-probabilities."""
        strategy = SimpleNamespace(args=config.args)
        reference = [batch["ref"]] if config.beta > 0 else None  # train() makes the group so
        maker = self.maker.RemoteExperienceMaker(
            [batch["old"]],
            None,
            None,
            reference,
            SimpleNamespace(value=config.beta),
            strategy,
            None,
        )
        maker.advantage_estimator = config.advantage
        # A group of models is here the answer itself.
        maker._dispatch_forward = lambda group, *_, **__: group  # noqa: SLF001  (the library's own function is what is asked)
        maker._flatten_results = _flattened  # noqa: SLF001  (the library's own function is what is asked)
        return maker

    def _worker(self, config: "Arguments", batch: Mapping[str, Any]) -> Any:
        """Return an ActorPPOTrainer whose policy returns the batch's log-probabilities."""
        args = config.args
        fake = MagicMock()
        fake.args, fake.aux_loss = args, False
        fake.actor = lambda *_, **__: (batch["logp"], None)
        fake.actor.train = lambda: None
        fake.actor_loss_fn = self.sources.assigned(
            ACTOR,
            "ActorPPOTrainer.__init__",
            "actor_loss_fn",
            {"self": fake, "PolicyLoss": self.loss_module.PolicyLoss},
        )
        if config.nested:
            args.actor.entropy_coef = None
        else:
            args.entropy_loss_coef = None
        return fake

    def loss(self, config: "Arguments", batch: Mapping[str, Any]) -> Any:
        """Return training_step's loss of one micro-batch that is the whole minibatch."""
        fake = self._worker(config, batch)
        fake.strategy.backward = stop_at_backward
        experience = SimpleNamespace(
            sequences=None,
            attention_mask=None,
            action_mask=batch["mask"],
            info={},
            action_log_probs=batch["old"],
            advantages=batch["advantages"],
            base_action_log_probs=batch["ref"],
            rollout_log_probs=batch.get("engine", batch["old"]),
        )
        return loss_of(self.step.training_step, fake, experience, config.beta, 0)


def _length_penalties(sources: Any) -> dict[str, Any]:
    """Return what make_experience imports of LENGTHS; {} for a release without that file."""
    if not (sources.folder / LENGTHS).exists():
        return {}
    return {"apply_length_penalties": sources.load(LENGTHS).apply_length_penalties}


class _Experiences(list[Any]):
    """A replay buffer, as far as ppo_train uses it."""

    sample_batch_size, collate_fn = 1, None


def _flattened(refs: Any, _: int) -> list[Any]:
    """Return the answers of a group of models; None for a model that the launch does not have."""
    return refs if isinstance(refs, list) else [None]


def _arguments(argv: Sequence[str]) -> list[str]:
    """Return the arguments after `-m openrlhf.cli.train_ppo_ray`."""
    flags = (i for i, word in enumerate(argv) if word.startswith("--"))
    return list(argv[next(flags, len(argv)) :])


class Arguments:
    """Parsed arguments under one name for both spellings: flat, and nested since 0.10.2."""

    def __init__(self, args: Any):
        self.args = args
        self.nested = hasattr(args, "algo")
        kl = args.algo.kl if self.nested else None
        self.estimator = kl.estimator if kl else args.kl_estimator
        self.beta = kl.init_coef if kl else args.init_kl_coef
        self.advantage = args.algo.advantage.estimator if self.nested else args.advantage_estimator
        self.group_size = (
            args.rollout.n_samples_per_prompt if self.nested else args.n_samples_per_prompt
        )


PROBES = OpenRlhfProbes
