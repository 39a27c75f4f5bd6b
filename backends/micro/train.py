"""Train cells with RL: sample, reward, compute the loss, update, until num_train_steps.

Cells of one shape are trained together: a rollout batch of each is sampled, scored, updated and
evaluated in the same operations (`batched.py`). What a cell learns does not depend on the others.

One rollout batch serves batch.num_minibatches train steps. Checkpoints, evaluations and resets of
the reference policy happen between rollout batches. One that is due inside a batch happens at the
end of the batch.
"""

import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from functools import cache, partial
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from backends.micro import (
    collapse,
    disk,
    engine,
    evaluation,
    huggingface,
    optimizer,
    passes,
    theory,
)
from backends.micro.collapse import Moment
from backends.micro.evaluation import Divergence
from backends.micro.experience import Collected, Trainee, collect, differs, temperatures
from backends.micro.force import beta_effective
from backends.micro.objective import (
    Experience,
    Objective,
    in_loss,
    in_reward,
    objective,
    state_kl,
    state_slope,
)
from backends.micro.policy import device, one_quiet_core
from backends.micro.rollout import Scored
from backends.micro.shipped import POLICIES, policy_of, skill_of
from backends.micro.state import State, newest_state, save_state
from backends.micro.version import dialect_of
from orchestrator.errors import EnvironmentFault, RunFolderError
from orchestrator.records import AttemptPaths, Cell, Outcome
from orchestrator.settings import BetaController, Settings

ROLLING_STEPS = 10
"""A kill loses at most about this many train steps."""


class _Diverged(Exception):
    """Raised when the loss, its gradient or the updated policy is not finite."""


class TrainingWatch(Protocol):
    """Callbacks of `run_together`: it reports ends and log lines, and asks which cells must stop.

    A number is the index of a cell in the argument of `run_together`.
    """

    def ended(self, number: int, result: Outcome | Exception) -> None:
        """Receive the end of a cell: its outcome, or the exception that ended its training."""

    def leaving(self) -> Collection[int]:
        """Return the cells that must stop now. `ended` is not called for them."""
        ...

    def say(self, number: int, line: str) -> None:
        """Receive a line for the log of a cell."""


class _Alone:
    """The watch of one cell."""

    result: Outcome | Exception | None = None

    def ended(self, number: int, result: Outcome | Exception) -> None:  # noqa: ARG002  (the only cell is 0)
        self.result = result

    def leaving(self) -> Collection[int]:
        return ()

    def say(self, number: int, line: str) -> None:  # noqa: ARG002  (the only cell is 0)
        sys.stdout.write(line)
        sys.stdout.flush()


def run(cell: Cell, place: AttemptPaths) -> Outcome:
    """Train a cell to its end, from the newest state in place.checkpoints_dir. Return its outcome.

    An exception or a signal may end training at any point: the files on disk stay complete. Raise
    RunFolderError if a file cannot be written or read.
    """
    alone = _Alone()
    run_together([(cell, place)], alone)
    if isinstance(alone.result, Outcome):
        return alone.result
    raise alone.result or RuntimeError("training ended without a result")


def run_together(cells: Sequence[tuple[Cell, AttemptPaths]], watch: TrainingWatch) -> None:
    """Train cells of one shape to their ends, each from its newest state.

    The error or the end of one cell does not change the others.
    """
    one_quiet_core()
    with ExitStack() as journals:
        together = Together(watch)
        for number, (cell, place) in enumerate(cells):
            with together.watching(number, place):
                disk.sweep(place.checkpoints_dir)
                state = newest_state(place.checkpoints_dir, cell.id, device())
                journal = journals.enter_context(disk.Journal(place.attempt_dir))
                first = first_reference(cell.settings)
                if state is None:
                    state = State.fresh(base_policy(cell.settings), first)
                elif torch.equal(state.reference, first):
                    state.reference = first  # cells of one reference policy are scored together
                say = _sayer(watch, number)
                together.members.append(Training(number, cell, place, state, journal, say))
        together.run()


def _sayer(watch: TrainingWatch, number: int) -> Callable[[str], None]:
    return lambda line: watch.say(number, line)


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


class _Watching:
    """A context in which an error ends one cell, and not the others."""

    def __init__(self, together: "Together", number: int, place: AttemptPaths):
        self._together, self._number, self._place = together, number, place

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if not isinstance(error, Exception):
            return False
        shown: Exception = error
        if isinstance(error, OSError):
            shown = RunFolderError(
                f"{error.filename or self._place.checkpoints_dir} cannot be written or read: "
                f"{error.strerror or error}. Mend that and run again: training goes on from its "
                "newest whole state"
            )
            shown.__cause__ = error
        self._together.end(self._number, shown)
        return True


class CellLoss(NamedTuple):
    """The loss of a cell's minibatch, and what it is differentiated by."""

    value: Tensor
    logp: Tensor
    """[P, G, T], of the tokens."""
    states: Tensor | None = None
    """[P, G, T], the KL of each token's state, or None."""
    of_states: Callable[[Tensor], Tensor] | None = None
    """The slope in the log-probabilities of the whole vocabulary, of a slope in `states`."""


def _slopes(losses: Mapping[int, CellLoss]) -> dict[int, tuple[Tensor, Tensor | None]]:
    """Return each loss's slope in the log-probabilities of the tokens, [P, G, T].

    The second value is the slope in those of the whole vocabulary at each packed position, or
    None.
    """
    if not losses:
        return {}
    leaves = [x for loss in losses.values() for x in (loss.logp, loss.states) if x is not None]
    # One call for all cells: the start of a backward pass costs more than its operations. The
    # graphs are kept for a second call, should one of them fail.
    values = [loss.value for loss in losses.values()]
    slopes = iter(torch.autograd.grad(values, leaves, retain_graph=True))
    return {
        place: (next(slopes), None if loss.of_states is None else loss.of_states(next(slopes)))
        for place, loss in losses.items()
    }


class Together:
    """The training of cells of one shape, in lockstep. An ended cell leaves."""

    def __init__(self, watch: TrainingWatch):
        self.members: list[Training] = []
        self._watch = watch
        self._over: set[int] = set()

    def watching(self, number: int, place: AttemptPaths) -> _Watching:
        """Return a context that reports a cell's steps to the watch and its end to this object."""
        return _Watching(self, number, place)

    def end(self, number: int, result: Outcome | Exception) -> None:
        """Let a cell leave, with its result."""
        self._over.add(number)
        self._watch.ended(number, result)

    def run(self) -> None:
        """Return when every cell has ended or left."""
        fresh = [member for member in self.members if member.state.step == 0]
        for member, values in self._evaluations(fresh):
            with member.watched(self):
                member.tell(0, values)
        while self.members:
            self._over.update(self._watch.leaving())
            for member in self._present():
                if member.state.step >= member.settings.num_train_steps:
                    with member.watched(self):
                        self.end(member.number, member.outcome())
            self.members = self._present()
            if self.members:
                self.rollout_batch()

    def _present(self) -> list["Training"]:
        return [member for member in self.members if member.number not in self._over]

    def rollout_batch(self) -> None:
        """Sample once and update num_minibatches times.

        Then evaluate, save and reset as these train steps require.
        """
        started = time.perf_counter()
        count = self.members[0].settings.batch.num_minibatches
        began = [member.state.step for member in self.members]
        collected = collect([member.trainee for member in self.members])
        parts = [experience.minibatches(count) for experience in collected.experiences]
        for number in range(count):
            minibatches = [of_cell[number] for of_cell in parts]
            metrics = self.train_step(collected, minibatches, began)
            seconds, started = time.perf_counter() - started, time.perf_counter()
            for values in metrics.values():
                values["time/step_seconds"] = seconds
            # The metrics of the batch's last step are written after its evaluation
            # (`_between_batches`).
            if number + 1 < count:
                for member in self._present():
                    with member.watched(self):
                        member.tell(member.state.step, metrics[member.number])
        for member, experience in zip(self.members, collected.experiences, strict=True):
            member.follow(experience)
        self._between_batches(dict(zip(self.members, began, strict=True)), metrics)

    def train_step(
        self, collected: Collected, minibatches: Sequence[Experience], began: Sequence[int]
    ) -> dict[int, dict[str, float]]:
        """Update every policy once. Return the metrics of the train step, by cell."""
        tokens = torch.stack([minibatch.tokens for minibatch in minibatches])
        temperature = temperatures([member.trainee for member in self.members])
        settings = self.members[0].settings
        # Then the policy that sampled is the policy that is updated, and its forward pass is used
        # again.
        alike = settings.max_staleness_steps == 0 and engine.rounding(settings) is None
        if alike and settings.batch.num_minibatches == 1:
            policy, scored = collected.samplers, collected.sampled.scored
        else:
            policy = passes.prepared(torch.stack([member.state.policy for member in self.members]))
            prompts, mask = (
                torch.stack([getattr(minibatch, part) for minibatch in minibatches])
                for part in ("prompts", "mask")
            )
            scored = passes.score(policy, prompts, tokens, mask, temperature, keep=True)
        entropy = scored.entropy()
        losses: dict[int, CellLoss] = {}
        for place, member in enumerate(self.members):
            if member.number not in self._over:
                with member.watched(self):
                    losses[place] = member.loss(
                        minibatches[place],
                        Scored(scored.logp[place], scored.logps[place]),
                        entropy[place],
                        began[place],
                        collected.versions[place],
                    )
        slopes = torch.zeros_like(scored.logp)
        further: list[Tensor | None] = [None] * len(self.members)
        for place, (of_logp, of_logps) in self._slopes(losses).items():
            slopes[place], further[place] = of_logp * minibatches[place].mask, of_logps
        gradients = passes.gradient(policy, scored, tokens, slopes, temperature, further)
        metrics = {}
        for place, member in enumerate(self.members):
            if member.number not in self._over:
                with member.watched(self):
                    try:
                        metrics[member.number] = member.update(gradients[place])
                    except _Diverged as what:
                        self.end(member.number, member.diverged(str(what)))
        return metrics

    def _slopes(self, losses: Mapping[int, CellLoss]) -> dict[int, tuple[Tensor, Tensor | None]]:
        """Return `_slopes` of the cells whose loss can be differentiated. The others end."""
        try:
            return _slopes(losses)
        except Exception:  # one by one, so that the cell at fault ends alone
            slopes: dict[int, tuple[Tensor, Tensor | None]] = {}
            for place, loss in losses.items():
                with self.members[place].watched(self):
                    slopes |= _slopes({place: loss})
            return slopes

    def _between_batches(
        self, began: dict["Training", int], metrics: dict[int, dict[str, float]]
    ) -> None:
        present = self._present()
        due = [member for member in present if member.is_evaluated(began[member])]
        for member, values in self._evaluations(due):
            metrics[member.number] |= values
        for member in present:
            with member.watched(self):
                # In this order: a kill after the state was saved must not lose the step's metrics,
                # which the resumed attempt would not write again.
                member.tell(member.state.step, metrics[member.number])
                member.settle(began[member])

    def _evaluations(
        self, members: Sequence["Training"]
    ) -> list[tuple["Training", dict[str, float]]]:
        """Return the exact metrics of these cells' policies."""
        if not members:
            return []
        self.meet_references()
        distinct, places = _distinct(members)
        policy = passes.prepared(torch.stack([member.state.policy for member in distinct]))
        exact = evaluation.metrics(
            [member.divergence for member in distinct if member.divergence], policy
        )
        return [
            (member, exact[place] | member.prediction)
            for member, place in zip(members, places, strict=True)
        ]

    def meet_references(self) -> None:
        """Give a divergence to each cell that lacks one; cells of one reference share it."""
        known = [member.divergence for member in self.members if member.divergence]
        for member in self.members:
            if member.divergence is None:
                reference, skill = member.state.reference, member.trainee.skill
                member.divergence = next(
                    (
                        one
                        for one in known
                        if one.skill == skill and torch.equal(one.reference, reference)
                    ),
                    None,
                ) or Divergence(reference, skill, member.settings.rollout.max_response_tokens)
                known.append(member.divergence)


class Training:
    """The training of one cell: its state, its loss, its metrics and its files."""

    def __init__(
        self,
        number: int,
        cell: Cell,
        place: AttemptPaths,
        state: State,
        journal: disk.Journal,
        say: Callable[[str], None],
    ):
        skill = skill_of(cell.settings.data.path)
        if skill is None:
            raise EnvironmentFault(f"no embedded task is called {cell.settings.data.path}")
        self.number, self.state = number, state
        self.settings = in_force(cell.settings, state.beta)
        self.trainee = Trainee(self.settings, skill, state, dialect_of(cell.settings))
        self.divergence: Divergence | None = None
        """The divergence to the reference policy, or None before the first is computed."""
        self._cell, self._place, self._journal, self._say = cell, place, journal, say
        self._healthy = state.step, state.policy.clone()
        optimum = theory.predicted(cell.settings)
        self.prediction = (
            {}
            if optimum is None
            else {
                "eval/accuracy_predicted": optimum.accuracy,
                "eval/kl_reverse_predicted": optimum.kl_reverse,
            }
        )

    def watched(self, together: Together) -> _Watching:
        """Return the context that reports this cell's steps while `together` trains it."""
        return together.watching(self.number, self._place)

    def outcome(self) -> Outcome:
        """Return the outcome of finished training."""
        self._checkpoint(self.settings.num_train_steps, self.state.policy, resumable=True)
        # Only after the last checkpoint, which has the same state.
        (self._place.checkpoints_dir / disk.RESUME).unlink(missing_ok=True)
        return collapse.judge(self.state.trace, self.settings.rollout.max_response_tokens)

    def diverged(self, what: str) -> Outcome:
        """Return the outcome of training that cannot continue. Keep the last finite policy."""
        self._checkpoint(*self._healthy, resumable=False)
        return collapse.diverged(self.state.step + 1, what)

    def tell(self, step: int, values: dict[str, float]) -> None:
        """Write the metrics of a train step; print a line for the log if the step was evaluated."""
        self._journal.write(step, values)
        if "eval/accuracy_in_domain" in values:
            self._say(
                f"step {step}/{self.settings.num_train_steps}: accuracy "
                f"{values['eval/accuracy_in_domain']:.3f} in domain, "
                f"{values['eval/accuracy_out_of_domain']:.3f} out of domain, "
                f"KL to the reference {values['eval/kl_reverse']:.3f}\n"
            )

    def loss(
        self, minibatch: Experience, scored: Scored, entropy: Tensor, began: int, version: int
    ) -> "CellLoss":
        """Return the loss of a minibatch.

        scored: the policy's log-probabilities of the responses. entropy [P, G, T]: of the policy
        at each token. began: train steps before the batch. version: train steps behind the rollout
        policy. `update` returns the metrics of this call.
        """
        settings, dialect, logp = self.settings, self.trainee.dialect, scored.logp
        own = dialect.ratio_to == "batch_start"
        samples = engine.rounding(settings) is None  # the policy itself, and no copy of it
        if (began if own else version) == self.state.step and (own or samples):
            # its own log-probabilities, so the ratio is 1 exactly
            minibatch = minibatch._replace(logp_old=logp)
        leaf = logp.detach().requires_grad_()
        states = None
        if minibatch.logps_ref is not None and in_loss(settings.kl):
            whole = settings.kl.estimator, scored.logps, minibatch.logps_ref
            states = state_kl(*whole, logp.shape).requires_grad_()
        target = objective(settings.loss, settings.kl, leaf, minibatch, dialect, states)
        values = measured(settings, minibatch, target, logp, entropy)
        if self._is_shown(self.state.step + 1):
            force = beta_effective(settings, dialect, logp, minibatch)
            values |= {} if force is None else {"train/beta_effective": force}
        if began == self.state.step and differs(self.trainee, version):
            values |= mismatch(minibatch, logp)
        if settings.kl.controller is not None:
            values["train/beta"] = settings.kl.beta
        staleness = float(self.state.step - version)
        values |= {"rollout/staleness_mean": staleness, "rollout/staleness_max": staleness}
        self._values, self._loss = values, target.loss.detach()
        if states is None:
            return CellLoss(target.loss, leaf)
        return CellLoss(target.loss, leaf, states, partial(state_slope, *whole))

    def update(self, gradient: Tensor) -> dict[str, float]:
        """Update the policy once. Return the metrics of the train step. Raise _Diverged."""
        state, settings, values = self.state, self.settings, self._values
        clipped, norm = optimizer.clip(gradient, settings.optimizer.max_grad_norm)
        values["train/grad_norm"] = norm.item()
        if not (torch.isfinite(self._loss) and torch.isfinite(norm)):
            raise _Diverged("the loss or its gradient")
        # `optimizer.update` changes the policy in place.
        before, step = state.policy.clone(), state.step + 1
        self._healthy = state.step, before
        rate = optimizer.rate_of(settings, step, self.trainee.dialect)
        optimizer.update(
            state.policy,
            clipped,
            state.moments,
            settings.optimizer,
            step,
            rate,
            self.trainee.dialect,
        )
        if not _is_finite(state.policy):
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
        return values

    def follow(self, batch: Experience) -> None:
        """Move beta by the KL of a rollout batch if the cell has a controller."""
        kl = self.settings.kl
        if kl.controller is None:
            return
        current = (batch.penalty / batch.mask.sum(-1)).mean().item()
        self.state.beta = followed(kl.controller, kl.beta, current, batch.penalty.numel())
        self.settings = in_force(self.settings, self.state.beta)
        self.trainee = self.trainee._replace(settings=self.settings)

    def is_evaluated(self, began: int) -> bool:
        """Return True if an evaluation is due after the train steps since `began`."""
        last = self.state.step == self.settings.num_train_steps
        return last or _Due(began, self.state.step)(self._cell.cadence.evaluate_every_steps)

    def settle(self, began: int) -> None:
        """Save and reset as the train steps since `began` require."""
        state, last = self.state, self.state.step == self.settings.num_train_steps
        due = _Due(began, state.step)
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
        elif due(ROLLING_STEPS):
            save_state(state, self._place.checkpoints_dir / disk.RESUME, self._cell.id)

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


def _distinct(members: Sequence[Training]) -> tuple[list[Training], list[int]]:
    """Return members of which no two have the same policy and divergence, as before the first
    train step, and for each member the place among them of one that is like it."""
    distinct: list[Training] = []
    places = []
    for member in members:
        alike = (
            place
            for place, one in enumerate(distinct)
            if one.divergence is member.divergence
            and torch.equal(one.state.policy, member.state.policy)
        )
        places.append(next(alike, len(distinct)))
        if places[-1] == len(distinct):
            distinct.append(member)
    return distinct, places


def _is_finite(x: Tensor) -> bool:
    """Return True if all elements are finite."""
    return bool(x.sum().isfinite()) or bool(x.isfinite().all())  # the sum alone may overflow


class _Due:
    """A test, for a period `every`, if a multiple of it lies in the train steps (began, now]."""

    def __init__(self, began: int, now: int):
        self._began, self._now = began, now

    def __call__(self, every: int | None) -> bool:
        return every is not None and self._now // every > self._began // every


def in_force(settings: Settings, beta: float | None) -> Settings:
    """Return settings with a controller's current beta, or the settings themselves for None."""
    return settings if beta is None else settings.but(kl=settings.kl.but(beta=beta))


def followed(controller: BetaController, beta: float, current: float, responses: int) -> float:
    """Return beta after a rollout batch of `responses` responses with the mean KL `current`."""
    # The proportional controller of Ziegler et al. 2019.
    error = min(max(current / controller.target - 1, -0.2), 0.2)
    return beta * (1 + error * responses / controller.horizon)


@torch.no_grad()
def measured(
    settings: Settings, batch: Experience, target: Objective, logp: Tensor, entropy: Tensor
) -> dict[str, float]:
    """Return the metrics of a minibatch under canonical names, for the policy before its update."""
    mask, tokens = batch.mask, batch.mask.sum()
    lengths = mask.sum(-1)
    values: dict[str, Tensor] = {
        "train/reward_mean": batch.reward.mean(),
        "train/kl_reference": ((logp - batch.logp_ref) * mask).sum(-1).mean(),
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
