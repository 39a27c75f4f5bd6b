"""Train cells with RL: sample, reward, compute the loss, update, until num_train_steps.

One rollout batch serves batch.num_minibatches train steps. Checkpoints, evaluations and resets of
the reference policy happen between rollout batches. One that is due inside a batch happens at the
end of the batch.
"""

import sys
import time
from contextlib import closing
from functools import cache, partial
from math import isfinite
from typing import NamedTuple

import torch
from torch import Tensor

from backends.micro import (
    disk,
    evaluation,
    fused,
    huggingface,
    optimizer,
    rollout_rounding,
    theory,
)
from backends.micro.effective_beta import beta_effective
from backends.micro.evaluation import Divergence
from backends.micro.experience import Collected, Trainee, collect, differs
from backends.micro.objective import (
    Experience,
    Objective,
    mean_over_responses,
    objective,
    state_kl,
    state_slope,
    sum_over_tokens,
)
from backends.micro.policy import device, one_quiet_core
from backends.micro.rollout import Scored
from backends.micro.shipped import POLICIES, policy_of, skill_of
from backends.micro.state import TRACED, State, newest_state, save_state
from backends.micro.version import dialect_of
from orchestrator.errors import EnvironmentFault, RunFolderError
from orchestrator.kl.library_semantics import Dialect, in_loss, in_reward
from orchestrator.metrics import outcome
from orchestrator.records import AttemptPaths, Cell, MetricPoint, Outcome
from orchestrator.settings import BetaController, Settings

ROLLING_STEPS = 10
ROLLING_SECONDS = 2.0
"""A kill loses about so many train steps at most, or those of so many seconds if they are more."""


class _Diverged(Exception):
    """Raised when the loss, its gradient or the updated policy is not finite."""


def run(cell: Cell, place: AttemptPaths) -> Outcome:
    """Train a cell to its end, from the newest state in place.checkpoints_dir. Return its outcome.

    An exception or a signal may end training at any point: the files on disk stay complete. Raise
    RunFolderError if a file cannot be written or read.
    """
    one_quiet_core()
    try:
        disk.sweep(place.checkpoints_dir)
        state = newest_state(place.checkpoints_dir, cell.id, device())
        if state is None:
            state = State.fresh(base_policy(cell.settings), first_reference(cell.settings))
        with closing(disk.Journal(place.attempt_dir)) as journal:
            return Training(cell, place, state, journal).run()
    except OSError as error:
        raise RunFolderError(
            f"{error.filename or place.checkpoints_dir} cannot be written or read: "
            f"{error.strerror or error}. Mend that and run again: training goes on from its "
            "newest whole state"
        ) from error


def base_policy(settings: Settings) -> Tensor:
    """Return the flat vector of the shipped policy that a cell starts from."""
    return _shipped(settings.model.path)


def first_reference(settings: Settings) -> Tensor:
    """Return the flat vector of the first reference policy: the teacher, or the base policy.

    If the reference is the sampler, evaluations still measure the KL to this policy.
    """
    reference = settings.kl.reference
    teacher = None if reference is None else reference.path
    return base_policy(settings) if teacher is None else _shipped(teacher)


def _shipped(path: str) -> Tensor:
    name = policy_of(path)
    if name is None:
        raise EnvironmentFault(f"no embedded policy is called {path}")
    return _read_policy(name).to(device())


@cache
def _read_policy(name: str) -> Tensor:
    return huggingface.read(POLICIES / name)


class Slopes(NamedTuple):
    """The loss of a minibatch, its slopes and its metrics."""

    value: Tensor
    """[]"""
    grad_logp: Tensor
    """[P, G, T], in the log-probabilities of the tokens."""
    grad_logps: Tensor | None
    """In those of the whole vocabulary at each packed position, or None."""
    metrics: dict[str, float]
    """See `measured`."""


def slopes(settings: Settings, dialect: Dialect, minibatch: Experience, scored: Scored) -> Slopes:
    """Return the slopes of the loss of a minibatch, by the policy's scores of its responses."""
    leaves, kl = [scored.logp.detach().requires_grad_()], settings.kl
    states = whole = None
    if minibatch.logps_ref is not None and in_loss(kl):
        whole = kl.estimator, scored.logps, minibatch.logps_ref
        states = state_kl(*whole, scored.logp.shape).requires_grad_()
        leaves.append(states)
    target = objective(settings.loss, kl, leaves[0], minibatch, dialect, states)
    grad_logp, *of_states = torch.autograd.grad(target.loss, leaves)
    grad_logps = None if whole is None else state_slope(*whole, of_states[0])
    metrics = measured(settings, minibatch, target, scored)
    return Slopes(target.loss.detach(), grad_logp, grad_logps, metrics)


class Training:
    """The training of one cell: its state, its loss, its metrics and its files."""

    def __init__(self, cell: Cell, place: AttemptPaths, state: State, journal: disk.Journal):
        skill = skill_of(cell.settings.data.path)
        if skill is None:
            raise EnvironmentFault(f"no embedded task is called {cell.settings.data.path}")
        self.state = state
        self.settings = with_current_beta(cell.settings, state.beta)
        self.trainee = Trainee(self.settings, skill, state, dialect_of(cell.settings))
        self.divergence: Divergence | None = None
        """The divergence to the reference policy, or None before the first is computed."""
        self._cell, self._place, self._journal = cell, place, journal
        self._healthy = state.step, state.policy.clone()
        self._saved = time.monotonic()
        """When its newest saved state was written, or loaded."""
        optimum = theory.predicted(cell.settings)
        self.prediction = (
            {}
            if optimum is None
            else {
                "eval/accuracy_predicted": optimum.accuracy,
                "eval/kl_reverse_predicted": optimum.kl_reverse,
            }
        )

    def run(self) -> Outcome:
        """Train to the end. Return the outcome."""
        try:
            if self.state.step == 0:
                self.tell(0, self._evaluated())
            while self.state.step < self.settings.num_train_steps:
                self.rollout_batch()
        except _Diverged as what:
            return self.diverged(str(what))
        return self.outcome()

    def rollout_batch(self) -> None:
        """Sample once and update num_minibatches times.

        Then evaluate, save and reset as these train steps require. Raise _Diverged.
        """
        started, began = time.perf_counter(), self.state.step
        collected, values = collect(self.trainee), dict[str, float]()
        for minibatch in collected.experience.minibatches(self.settings.batch.num_minibatches):
            if values:
                self.tell(self.state.step, values)
            values = self.train_step(collected, minibatch, began)
            seconds, started = time.perf_counter() - started, time.perf_counter()
            values["time/step_seconds"] = seconds
        self.follow(collected.experience)
        if self.is_evaluated(began):
            values |= self._evaluated()
        # In this order: a kill after the state was saved must not lose the step's metrics, which
        # the resumed attempt would not write again.
        self.tell(self.state.step, values)
        self.settle(began)

    def train_step(
        self, collected: Collected, minibatch: Experience, began: int
    ) -> dict[str, float]:
        """Update the policy once. Return the metrics of the train step. Raise _Diverged.

        began: train steps before the batch.
        """
        state, settings, dialect = self.state, self.settings, self.trainee.dialect
        heat = settings.rollout.temperature
        # Then the policy that sampled is the policy that is updated, and its forward pass is used
        # again.
        alike = settings.max_staleness_steps == 0 and rollout_rounding.rounding(settings) is None
        policy, scored = collected.sampler, collected.sampled.scored
        if not alike or settings.batch.num_minibatches > 1:
            policy = fused.prepared(state.policy)
            scored = policy.score(*minibatch[:3], heat, keep=True)
        minibatch, values = self.loss_input(minibatch, scored.logp, began, collected.version)
        found = slopes(settings, dialect, minibatch, scored)
        slope = found.grad_logp * minibatch.mask
        whole = policy.gradient(scored, minibatch.tokens, slope, heat, found.grad_logps)
        gradient, norm = optimizer.clip(whole, settings.optimizer.max_grad_norm)
        if not (found.value.isfinite() and isfinite(norm)):
            raise _Diverged("the loss or its gradient")
        return self.update(gradient, {**found.metrics, **values, "train/grad_norm": norm})

    def _evaluated(self) -> dict[str, float]:
        """Return the metrics of the policy on held-out problems."""
        if self.divergence is None:
            longest = self.settings.rollout.max_response_tokens
            self.divergence = Divergence(self.state.reference, self.trainee.skill, longest)
        policy = fused.prepared(self.state.policy)
        return evaluation.metrics(self.divergence, policy) | self.prediction

    def outcome(self) -> Outcome:
        """Return the outcome of finished training."""
        self._checkpoint(self.settings.num_train_steps, self.state.policy, resumable=True)
        # Only after the last checkpoint, which has the same state.
        (self._place.checkpoints_dir / disk.RESUME).unlink(missing_ok=True)
        points = [
            MetricPoint(step, 0.0, dict(zip(TRACED, values, strict=True)))
            for step, values in enumerate(self.state.trace, 1)
        ]
        return outcome.judge(points, self.settings)

    def diverged(self, what: str) -> Outcome:
        """Return the outcome of training that cannot continue. Keep the last finite policy."""
        self._checkpoint(*self._healthy, resumable=False)
        return outcome.diverged(self.state.step + 1, what)

    def tell(self, step: int, values: dict[str, float]) -> None:
        """Write the metrics of a train step; print a line for the log if the step was evaluated."""
        self._journal.write(step, values)
        if "eval/accuracy_in_domain" in values:
            sys.stdout.write(
                f"step {step}/{self.settings.num_train_steps}: accuracy "
                f"{values['eval/accuracy_in_domain']:.3f} in domain, "
                f"{values['eval/accuracy_out_of_domain']:.3f} out of domain, "
                f"KL to the reference {values['eval/kl_reverse']:.3f}\n"
            )
            sys.stdout.flush()

    def loss_input(
        self, minibatch: Experience, logp: Tensor, began: int, version: int
    ) -> tuple[Experience, dict[str, float]]:
        """Return the minibatch that the loss gets, and metrics that the loss does not have.

        logp [P, G, T]: by the policy in training. began: train steps before the batch. version:
        train steps behind the rollout policy.
        """
        settings, dialect = self.settings, self.trainee.dialect
        own = dialect.ratio_to == "batch_start"
        samples = (
            rollout_rounding.rounding(settings) is None
        )  # the policy itself, and no copy of it
        if (began if own else version) == self.state.step and (own or samples):
            # its own log-probabilities, so the ratio is 1 exactly
            minibatch = minibatch._replace(logp_old=logp)
        values: dict[str, float] = {}
        if self._is_shown(self.state.step + 1):
            force = beta_effective(settings, dialect, logp, minibatch)
            values |= {} if force is None else {"train/beta_effective": force}
        if began == self.state.step and differs(self.trainee, version):
            values |= mismatch(minibatch, logp)
        if settings.kl.controller is not None:
            values["train/beta"] = settings.kl.beta
        staleness = float(self.state.step - version)
        values |= {"rollout/staleness_mean": staleness, "rollout/staleness_max": staleness}
        return minibatch, values

    def update(self, gradient: Tensor, values: dict[str, float]) -> dict[str, float]:
        """Update the policy once. Return the metrics of the train step: `values` and the learning
        rate. Raise _Diverged."""
        state, settings = self.state, self.settings
        before, step = state.policy, state.step + 1
        self._healthy = state.step, before
        rate = optimizer.rate_of(settings, step, self.trainee.dialect)
        updated = optimizer.update(
            before, gradient, state.moments, settings.optimizer, step, rate, self.trainee.dialect
        )
        if not _is_finite(updated):
            raise _Diverged("the updated policy")
        state.policy = updated
        if settings.max_staleness_steps:
            state.earlier = [*state.earlier, before][-settings.max_staleness_steps :]
        state.step = step
        state.trace.append(tuple(values[name] for name in TRACED))
        values["train/learning_rate"] = rate
        return values

    def follow(self, batch: Experience) -> None:
        """Move beta by the KL of a rollout batch if the cell has a controller."""
        kl = self.settings.kl
        if kl.controller is None:
            return
        current = (batch.penalty / batch.mask.sum(-1)).mean().item()
        self.state.beta = followed(kl.controller, kl.beta, current, batch.penalty.numel())
        self.settings = with_current_beta(self.settings, self.state.beta)
        self.trainee = self.trainee._replace(settings=self.settings)

    def is_evaluated(self, began: int) -> bool:
        """Return True if an evaluation is due after the train steps since `began`."""
        last = self.state.step == self.settings.num_train_steps
        return last or _is_due(self._cell.cadence.evaluate_every_steps, began, self.state.step)

    def settle(self, began: int) -> None:
        """Save and reset as the train steps since `began` require."""
        state, last = self.state, self.state.step == self.settings.num_train_steps
        due = partial(_is_due, began=began, now=state.step)
        if due(self.settings.kl.reset_reference_every_steps):
            # None: the divergence to the new reference is computed when it is next needed.
            state.reference, self.divergence = state.policy.clone(), None
        moving = self.settings.kl.reference
        if moving is not None and moving.share is not None and due(moving.every_steps):
            state.reference, self.divergence = (
                torch.lerp(state.reference, state.policy, moving.share),
                None,
            )
        if last:
            return
        if due(self._cell.cadence.checkpoint_every_steps):
            # It has the state too, and training goes on from the newest of both files.
            self._checkpoint(state.step, state.policy, resumable=True)
        elif due(ROLLING_STEPS) and time.monotonic() - self._saved >= ROLLING_SECONDS:
            save_state(state, self._place.checkpoints_dir / disk.RESUME, self._cell.id)
            self._saved = time.monotonic()

    def _is_shown(self, step: int) -> bool:
        """Return True for the last train step, and for a step that ends with an evaluation."""
        every = self._cell.cadence.evaluate_every_steps
        return step == self.settings.num_train_steps or bool(every and step % every == 0)

    def _checkpoint(self, step: int, policy: Tensor, *, resumable: bool) -> None:
        """Write checkpoints/step-<n>, unless a complete one exists, which would be equal."""
        target = disk.step_dir(self._place.checkpoints_dir, step)
        if disk.is_whole(target):
            return
        with disk.replacing(target) as temporary:
            huggingface.write(temporary, policy)
            if resumable:
                save_state(self.state, temporary / disk.STATE, self._cell.id)
                self._saved = time.monotonic()


def _is_finite(x: Tensor) -> bool:
    """Return True if all elements are finite."""
    return isfinite(x.sum().item()) or bool(x.isfinite().all())  # the sum alone may overflow


def _is_due(every: int | None, began: int, now: int) -> bool:
    """Return True if a multiple of a period lies in the train steps (began, now]."""
    return every is not None and now // every > began // every


def with_current_beta(settings: Settings, beta: float | None) -> Settings:
    """Return settings with a controller's current beta, or the settings themselves for None."""
    return settings if beta is None else settings.but(kl=settings.kl.but(beta=beta))


def followed(controller: BetaController, beta: float, current: float, responses: int) -> float:
    """Return beta after a rollout batch of `responses` responses with the mean KL `current`."""
    # The proportional controller of Ziegler et al. 2019.
    error = min(max(current / controller.target - 1, -0.2), 0.2)
    return beta * (1 + error * responses / controller.horizon)


@torch.no_grad()
def measured(
    settings: Settings, batch: Experience, target: Objective, scored: Scored
) -> dict[str, float]:
    """Return the metrics of a minibatch under canonical names, for the policy before its update."""
    mask, kl = batch.mask, settings.kl
    tokens, lengths = sum_over_tokens(mask), mask.sum(-1)
    means = {
        "train/reward_mean": batch.reward,
        "train/kl_reference": ((scored.logp - batch.logp_ref) * mask).sum(-1),
        "rollout/response_tokens": lengths,
        "train/shaped_reward_mean": batch.reward - kl.beta * batch.penalty,
        "train/kl_term": batch.penalty,
    }
    if not in_reward(kl):
        del means["train/shaped_reward_mean"], means["train/kl_term"]
    values = {name: mean_over_responses(of_responses) for name, of_responses in means.items()}
    values |= {
        "train/entropy": sum_over_tokens(scored.entropy() * mask) / tokens,
        "train/policy_loss": target.policy_loss,
        "train/clip_fraction": sum_over_tokens(target.clipped * mask) / tokens,
        "train/ratio_max": (target.ratio * mask).max(),
    }
    if in_loss(kl):
        values["train/kl_term"] = target.kl_term
    return dict(zip(values, torch.stack(list(values.values())).tolist(), strict=True))


@torch.no_grad()
def mismatch(batch: Experience, logp: Tensor) -> dict[str, float]:
    """Return metrics of the distance between the sampling engine and the policy of logp [P, G, T].

    Over response tokens, with w of policy over engine: k3 of KL(engine || policy), w^2's mean less
    1, and the effective share of the tokens, mean(w)^2 / mean(w^2).
    """
    if batch.logp_engine is None:
        return {}
    log_ratio, tokens = logp - batch.logp_engine, batch.mask.sum()
    ratio = log_ratio.exp()
    mean, square, kl = (
        (each * batch.mask).sum() / tokens
        for each in (ratio, ratio.square(), torch.expm1(log_ratio) - log_ratio)
    )
    names = ("rollout/mismatch_kl", "rollout/mismatch_chi2", "rollout/mismatch_ess")
    return dict(
        zip(names, torch.stack([kl, square - 1, mean.square() / square]).tolist(), strict=True)
    )
