"""Train one cell with RL: sample, reward, compute the loss, update, until num_train_steps.

One rollout batch serves batch.num_minibatches train steps. Checkpoints, evaluations and resets of
the reference policy happen between rollout batches. One that is due inside a batch happens at the
end of the batch.
"""

import sys
import time

import torch
from torch import Tensor

from backends.micro import collapse, disk, evaluation, huggingface, optimizer, rollout, theory
from backends.micro.collapse import Moment
from backends.micro.evaluation import Divergence
from backends.micro.experience import collect
from backends.micro.force import beta_effective
from backends.micro.objective import Experience, Objective, in_loss, in_reward, objective
from backends.micro.policy import device, one_quiet_core, weights
from backends.micro.shipped import POLICIES, policy_of, skill_of
from backends.micro.state import State, newest_state, save_state
from backends.micro.version import dialect_of
from orchestrator.errors import EnvironmentFault, RunFolderError
from orchestrator.records import AttemptPaths, Cell, Outcome
from orchestrator.settings import Settings

ROLLING_STEPS = 10
"""A kill loses at most about this many train steps."""


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
        with disk.Journal(place.attempt_dir) as journal:
            state = state or State.fresh(base_policy(cell.settings))
            return Training(cell, place, state, journal).run()
    except OSError as error:
        raise RunFolderError(
            f"{error.filename or place.checkpoints_dir} cannot be written or read: "
            f"{error.strerror or error}. Mend that and run again: training goes on from its "
            "newest whole state"
        ) from error


def base_policy(settings: Settings) -> Tensor:
    """Return the flat vector of the shipped policy that a cell starts from."""
    name = policy_of(settings.model.path)
    if name is None:
        raise EnvironmentFault(f"no embedded policy is called {settings.model.path}")
    return huggingface.read(POLICIES / name).to(device())


class Training:
    """The training of one cell, with its current state."""

    def __init__(self, cell: Cell, place: AttemptPaths, state: State, journal: disk.Journal):
        skill = skill_of(cell.settings.data.path)
        if skill is None:
            raise EnvironmentFault(f"no embedded task is called {cell.settings.data.path}")
        self._cell, self._settings, self._skill = cell, cell.settings, skill
        self._dialect = dialect_of(cell.settings)
        self._checkpoints, self._journal = place.checkpoints_dir, journal
        self._state = state
        self._healthy = state.step, state.policy.clone()
        self._divergence = self._to_reference()

    def run(self) -> Outcome:
        state, steps = self._state, self._settings.num_train_steps
        if state.step == 0:
            self._tell(0, self._evaluate())
        try:
            while state.step < steps:
                self._rollout_batch()
        except _Diverged as what:
            self._checkpoint(*self._healthy, resumable=False)
            return collapse.diverged(state.step + 1, str(what))
        self._checkpoint(steps, state.policy, resumable=True)
        (self._checkpoints / disk.RESUME).unlink(missing_ok=True)
        return collapse.judge(state.trace, self._settings.rollout.max_response_tokens)

    def _rollout_batch(self) -> None:
        """Sample once and update num_minibatches times.

        Then do what became due in these train steps.
        """
        state, count = self._state, self._settings.batch.num_minibatches
        started, began = time.perf_counter(), state.step
        experience, version = collect(self._settings, self._skill, state, self._dialect)
        told = began if self._dialect.ratio_to == "batch_start" else version
        for number, minibatch in enumerate(experience.minibatches(count), start=1):
            values = self._train_step(minibatch, version, told)
            values["time/step_seconds"] = time.perf_counter() - started
            started = time.perf_counter()
            if number == count:
                values |= self._between_batches(began)
            self._tell(state.step, values)

    def _tell(self, step: int, values: dict[str, float]) -> None:
        """Write the metrics of a train step; print a line for the log if the step was evaluated."""
        self._journal.write(step, values)
        if "eval/accuracy_in_domain" in values:
            sys.stdout.write(
                f"step {step}/{self._settings.num_train_steps}: accuracy "
                f"{values['eval/accuracy_in_domain']:.3f} in domain, "
                f"{values['eval/accuracy_out_of_domain']:.3f} out of domain, "
                f"KL to the reference {values['eval/kl_reverse']:.3f}\n"
            )
            sys.stdout.flush()

    def _between_batches(self, began: int) -> dict[str, float]:
        state, last = self._state, self._state.step == self._settings.num_train_steps
        cadence, reset = self._cell.cadence, self._settings.kl.reset_reference_every_steps
        due = _Due(began, state.step)
        values = self._evaluate() if last or due(cadence.evaluate_every_steps) else {}
        if due(reset):
            state.reference = state.policy.detach().clone()
            self._divergence = self._to_reference()
        if due(cadence.checkpoint_every_steps) and not last:
            self._checkpoint(state.step, state.policy, resumable=True)
        if due(ROLLING_STEPS) and not last:
            save_state(state, self._checkpoints / disk.RESUME, self._cell.id)
        return values

    def _train_step(self, minibatch: Experience, version: int, told: int) -> dict[str, float]:
        """Update the policy once. Return the metrics of the train step. Raise _Diverged.

        version: the version of the policy that sampled. told: the version of the policy in the
        denominator of the ratios.
        """
        state, settings = self._state, self._settings
        flat = state.policy.requires_grad_()
        scored = rollout.score(
            weights(flat),
            minibatch.prompts,
            minibatch.tokens,
            minibatch.mask,
            settings.rollout.temperature,
        )
        if told == state.step:  # its own log-probabilities, so the ratio is 1 exactly
            minibatch = minibatch._replace(logp_old=scored.logp.detach())
        target = objective(settings.loss, settings.kl, scored.logp, minibatch, self._dialect)
        (gradient,) = torch.autograd.grad(target.loss, flat)
        state.policy = flat.detach()
        clipped, norm = optimizer.clip(gradient, settings.optimizer.max_grad_norm)
        values = measured(settings, minibatch, target, scored)
        values["train/grad_norm"] = norm.item()
        if self._is_shown(state.step + 1):
            force = beta_effective(settings, self._dialect, scored.logp, minibatch)
            values |= {} if force is None else {"train/beta_effective": force}
        if not (torch.isfinite(target.loss) and torch.isfinite(norm)):
            raise _Diverged("the loss or its gradient")
        self._update(clipped, values)
        staleness = float(state.step - 1 - version)
        values |= {"rollout/staleness_mean": staleness, "rollout/staleness_max": staleness}
        return values

    def _update(self, gradient: Tensor, values: dict[str, float]) -> None:
        state, settings = self._state, self._settings
        before, step = state.policy.clone(), state.step + 1
        self._healthy = state.step, before
        rate = optimizer.rate_of(settings, step, self._dialect)
        optimizer.update(
            state.policy, gradient, state.moments, settings.optimizer, step, rate, self._dialect
        )
        if not torch.isfinite(state.policy).all():
            raise _Diverged("the updated policy")
        if settings.max_staleness_steps:
            state.earlier = [*state.earlier, before][-settings.max_staleness_steps :]
        state.step = step
        state.trace.append(
            Moment(
                values["train/reward_mean"],
                values["rollout/response_tokens"],
                values["train/entropy"],
            )
        )
        values["train/learning_rate"] = rate

    def _is_shown(self, step: int) -> bool:
        """Return True for the last train step, and for a step that ends with an evaluation."""
        every = self._cell.cadence.evaluate_every_steps
        return step == self._settings.num_train_steps or bool(every and step % every == 0)

    def _evaluate(self) -> dict[str, float]:
        """Return the exact metrics of the policy, and the closed-form prediction, if any."""
        policy = weights(self._state.policy)
        values = evaluation.accuracy_metrics(
            evaluation.accuracies(policy), self._skill
        ) | self._divergence.metrics(policy)
        optimum = theory.predicted(self._settings)
        if optimum is not None:
            values["eval/accuracy_predicted"] = optimum.accuracy
            values["eval/kl_reverse_predicted"] = optimum.kl_reverse
        return values

    def _to_reference(self) -> Divergence:
        return Divergence(
            weights(self._state.reference), self._skill, self._settings.rollout.max_response_tokens
        )

    def _checkpoint(self, step: int, policy: Tensor, *, resumable: bool) -> None:
        """Write checkpoints/step-<n>, unless it exists and is complete: it would be the same."""
        target = disk.step_dir(self._checkpoints, step)
        if disk.is_whole(target):
            return
        with disk.replacing(target) as temporary:
            huggingface.write(temporary, policy)
            if resumable:
                save_state(self._state, temporary / disk.STATE, self._cell.id)


class _Due:
    """A test, for a period `every`, if a multiple of it lies in the train steps (began, now]."""

    def __init__(self, began: int, now: int):
        self._began, self._now = began, now

    def __call__(self, every: int | None) -> bool:
        return every is not None and self._now // every > self._began // every


@torch.no_grad()
def measured(
    settings: Settings, batch: Experience, target: Objective, scored: rollout.Scored
) -> dict[str, float]:
    """Return the metrics of a minibatch under canonical names, for the policy before its update."""
    mask, tokens = batch.mask, batch.mask.sum()
    entropy = rollout.rows_of(-(scored.logps.exp() * scored.logps).sum(-1), mask.shape)
    lengths = mask.sum(-1)
    values: dict[str, Tensor] = {
        "train/reward_mean": batch.reward.mean(),
        "train/kl_reference": ((scored.logp - batch.logp_ref) * mask).sum(-1).mean(),
        "train/entropy": (entropy * mask).sum() / tokens,
        "train/policy_loss": target.policy_loss,
        "train/clip_fraction": (target.clipped * mask).sum() / tokens,
        "train/ratio_max": (target.ratio * mask).max(),
        "rollout/response_tokens": lengths.mean(),
    }
    if in_reward(settings.kl):
        values["train/shaped_reward_mean"] = (
            batch.reward - settings.kl.beta * batch.penalty
        ).mean()
        values["train/kl_term"] = batch.penalty.mean()
    if in_loss(settings.kl):
        values["train/kl_term"] = target.kl_term
    return dict(zip(values, torch.stack(list(values.values())).tolist(), strict=True))
