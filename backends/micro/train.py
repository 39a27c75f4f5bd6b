"""Train cells with RL: sample, reward, compute the loss, update, until num_train_steps.

Cells of one shape are trained together: a rollout batch of each is sampled, scored, updated and
evaluated in the same operations (`batched.py`). What a cell learns does not depend on the others.

One rollout batch serves batch.num_minibatches train steps. Checkpoints, evaluations and resets of
the reference policy happen between rollout batches. One that is due inside a batch happens at the
end of the batch.
"""

import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import cache, partial
from math import isfinite
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from backends.micro import (
    disk,
    evaluation,
    huggingface,
    optimizer,
    passes,
    rollout_rounding,
    theory,
)
from backends.micro.batched import PackedScores
from backends.micro.effective_beta import beta_effective
from backends.micro.evaluation import Divergence
from backends.micro.experience import Collected, Trainee, collect, differs, temperatures
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


class TrainingWatch(Protocol):
    """Callbacks of `run_lockstep`: it reports ends and log lines, and asks which cells must stop.

    A number is the index of a cell in the argument of `run_lockstep`.
    """

    def ended(self, number: int, result: Outcome | Exception) -> None:
        """Receive the end of a cell: its outcome, or the exception that ended its training."""

    def leaving(self) -> Collection[int]:
        """Return the cells that must stop now. `ended` is not called for them."""
        ...

    def say(self, number: int, line: str) -> None:
        """Receive a line for the log of a cell."""


class _SingleCellWatch:
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
    alone = _SingleCellWatch()
    run_lockstep([(cell, place)], alone)
    if isinstance(alone.result, Outcome):
        return alone.result
    raise alone.result or RuntimeError("training ended without a result")


def run_lockstep(cells: Sequence[tuple[Cell, AttemptPaths]], watch: TrainingWatch) -> None:
    """Train cells of one shape to their ends, each from its newest state.

    The error or the end of one cell does not change the others.
    """
    one_quiet_core()
    with ExitStack() as journals:
        group = LockstepGroup(watch)
        for number, (cell, place) in enumerate(cells):
            with group.watching(number, place):
                disk.sweep(place.checkpoints_dir)
                state = newest_state(place.checkpoints_dir, cell.id, device())
                journal = journals.enter_context(disk.Journal(place.attempt_dir))
                first = first_reference(cell.settings)
                if state is None:
                    state = State.fresh(base_policy(cell.settings), first)
                elif torch.equal(state.reference, first):
                    state.reference = first  # cells of one reference policy are scored together
                say = partial(watch.say, number)
                group.members.append(Training(number, cell, place, state, journal, say))
        group.run()


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


class LossInput(NamedTuple):
    """What the loss of a cell's minibatch is computed from."""

    minibatch: Experience
    scored: Scored
    """By the policy in training."""
    entropy: Tensor
    """[P, G, T], of the policy at each token."""


class GroupSlopes(NamedTuple):
    """The losses of C cells' minibatches, computed at once, with their slopes and metrics."""

    value: Tensor
    """[C]"""
    grad_logp: Tensor
    """[C, P, G, T], in the log-probabilities of the tokens."""
    grad_logps: Tensor | None
    """In those of the whole vocabulary at each packed position, or None."""
    metrics: list[dict[str, float]]
    """`measured` of each cell."""


Slopes = tuple[Tensor, Tensor | None]
"""`grad_logp` and `grad_logps` of one cell."""


def group_slopes(
    settings: Sequence[Settings], dialect: Dialect, inputs: Sequence[LossInput]
) -> GroupSlopes:
    """Return the slopes of C cells whose minibatches have one form (`Training.loss_form`).

    What each cell gets does not depend on the others: sums and means are those of its own rows.
    """
    fields = zip(*(one.minibatch for one in inputs), strict=True)
    minibatch = Experience(
        *(None if parts[0] is None else torch.stack(parts) for parts in fields)  # type: ignore[arg-type]  # zip loses the types
    )
    loss, kl = settings[0].loss, settings[0].kl
    logp = torch.stack([one.scored.logp for one in inputs])
    betas = logp.new_tensor([one.kl.beta for one in settings])
    leaves = [logp.detach().requires_grad_()]
    states = whole = None
    if minibatch.logps_ref is not None and in_loss(kl):
        logps = torch.cat([one.scored.logps for one in inputs])
        whole = kl.estimator, logps, minibatch.logps_ref.flatten(0, 1)
        of_prompts = state_kl(*whole, logp.flatten(0, 1).shape)
        states = of_prompts.view(logp.shape).requires_grad_()
        leaves.append(states)
    target = objective(loss, kl, leaves[0], minibatch, dialect, states, betas)
    # A sum, because torch imports half of itself for a loss that is not a number.
    grad_logp, *of_states = torch.autograd.grad(target.loss.sum(), leaves)
    grad_logps = None
    if whole is not None:
        grad_logps = state_slope(*whole, of_states[0].flatten(0, 1))
        grad_logps = grad_logps.view(len(inputs), -1, *grad_logps.shape[1:])
    entropy = torch.stack([one.entropy for one in inputs])
    metrics = measured(settings, minibatch, target, logp, entropy, betas)
    return GroupSlopes(target.loss.detach(), grad_logp, grad_logps, metrics)


class LockstepGroup:
    """The training of cells of one shape, in lockstep. An ended cell leaves."""

    def __init__(self, watch: TrainingWatch):
        self.members: list[Training] = []
        self._watch = watch
        self._over: set[int] = set()

    @contextmanager
    def watching(self, number: int, place: AttemptPaths) -> Iterator[None]:
        """Let an error end one cell, and not the others."""
        try:
            yield
        except OSError as error:
            fault = RunFolderError(
                f"{error.filename or place.checkpoints_dir} cannot be written or read: "
                f"{error.strerror or error}. Mend that and run again: training goes on from its "
                "newest whole state"
            )
            fault.__cause__ = error
            self.end(number, fault)
        except Exception as error:
            self.end(number, error)

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
        alike = settings.max_staleness_steps == 0 and rollout_rounding.rounding(settings) is None
        if alike and settings.batch.num_minibatches == 1:
            policy, scored = collected.samplers, collected.sampled.scored
        else:
            policy = passes.prepared(torch.stack([member.state.policy for member in self.members]))
            prompts, mask = (
                torch.stack([getattr(minibatch, part) for minibatch in minibatches])
                for part in ("prompts", "mask")
            )
            scored = policy.score(prompts, tokens, mask, temperature, keep=True)
        slopes = torch.zeros_like(scored.logp)
        further: list[Tensor | None] = [None] * len(self.members)
        inputs = self._loss_inputs(minibatches, scored, began, collected.versions)
        for place, (grad_logp, grad_logps) in self._slopes(inputs).items():
            slopes[place], further[place] = grad_logp * minibatches[place].mask, grad_logps
        gradients = policy.gradient(scored, tokens, slopes, temperature, further)
        bounds = [member.settings.optimizer.max_grad_norm for member in self.members]
        clipped, norms = optimizer.clip(gradients, bounds)
        metrics = {}
        for place, (member, norm) in enumerate(zip(self.members, norms.tolist(), strict=True)):
            if member.number not in self._over:
                with member.watched(self):
                    try:
                        metrics[member.number] = member.update(clipped[place], norm)
                    except _Diverged as what:
                        self.end(member.number, member.diverged(str(what)))
        return metrics

    def _loss_inputs(
        self,
        minibatches: Sequence[Experience],
        scored: PackedScores,
        began: Sequence[int],
        versions: Sequence[int],
    ) -> dict[int, LossInput]:
        """Return the input of the loss of each cell that is still present, by its place."""
        entropy, inputs = scored.entropy(), {}
        for place, member in enumerate(self.members):
            if member.number not in self._over:
                with member.watched(self):
                    inputs[place] = member.loss_input(
                        minibatches[place],
                        Scored(scored.logp[place], scored.logps[place]),
                        entropy[place],
                        began[place],
                        versions[place],
                    )
        return inputs

    def _slopes(self, inputs: Mapping[int, LossInput]) -> dict[int, Slopes]:
        """Return the slopes of each cell's loss. A cell whose loss has none ends."""
        groups: list[tuple[object, list[int]]] = []
        for place, one in inputs.items():
            form = self.members[place].loss_form(one.minibatch)
            alike = next((places for known, places in groups if known == form), None)
            if alike is None:
                groups.append((form, [place]))
            else:
                alike.append(place)
        slopes: dict[int, Slopes] = {}
        for _, places in groups:
            try:
                slopes |= self._slopes_of(places, inputs)
            except Exception:  # one by one, so that the cell at fault ends alone
                for place in places:
                    with self.members[place].watched(self):
                        slopes |= self._slopes_of([place], inputs)
        return slopes

    def _slopes_of(
        self, places: Sequence[int], inputs: Mapping[int, LossInput]
    ) -> dict[int, Slopes]:
        """Return the slopes of cells of one form. Give each cell its metrics."""
        members = [self.members[place] for place in places]
        settings, dialect = [each.settings for each in members], members[0].trainee.dialect
        of_all = group_slopes(settings, dialect, [inputs[place] for place in places])
        is_finite = of_all.value.isfinite().tolist()
        slopes: dict[int, Slopes] = {}
        for number, (place, member) in enumerate(zip(places, members, strict=True)):
            further = None if of_all.grad_logps is None else of_all.grad_logps[number]
            slopes[place] = of_all.grad_logp[number], further
            member.add_metrics(of_all.metrics[number], is_finite=is_finite[number])
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
        self.assign_divergences()
        policy = passes.prepared(torch.stack([member.state.policy for member in members]))
        exact = evaluation.metrics(
            [member.divergence for member in members if member.divergence], policy
        )
        return [
            (member, values | member.prediction)
            for member, values in zip(members, exact, strict=True)
        ]

    def assign_divergences(self) -> None:
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
        self.settings = with_current_beta(cell.settings, state.beta)
        self.trainee = Trainee(self.settings, skill, state, dialect_of(cell.settings))
        self.divergence: Divergence | None = None
        """The divergence to the reference policy, or None before the first is computed."""
        self._cell, self._place, self._journal, self._say = cell, place, journal, say
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

    def watched(self, group: LockstepGroup) -> AbstractContextManager[None]:
        """Return the context in which an error ends this cell alone."""
        return group.watching(self.number, self._place)

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
            self._say(
                f"step {step}/{self.settings.num_train_steps}: accuracy "
                f"{values['eval/accuracy_in_domain']:.3f} in domain, "
                f"{values['eval/accuracy_out_of_domain']:.3f} out of domain, "
                f"KL to the reference {values['eval/kl_reverse']:.3f}\n"
            )

    def loss_form(self, minibatch: Experience) -> object:
        """Return what cells must have in common to compute their losses at once, but for beta."""
        settings, dialect = self.settings, self.trainee.dialect
        kl = settings.kl
        of_kl = None
        if in_loss(kl) or dialect.ratio_level == "sequence_if_kl_reward":
            of_kl = kl.estimator, kl.placement, kl.ratio_level, kl.reference, in_loss(kl)
        shapes = [None if part is None else part.shape for part in minibatch]
        return settings.loss, of_kl, dialect, shapes

    def loss_input(
        self, minibatch: Experience, scored: Scored, entropy: Tensor, began: int, version: int
    ) -> LossInput:
        """Return the input of the loss of a minibatch. Keep what the metrics have besides.

        scored: the policy's log-probabilities of the responses. entropy [P, G, T]: of the policy
        at each token. began: train steps before the batch. version: train steps behind the rollout
        policy.
        """
        settings, dialect, logp = self.settings, self.trainee.dialect, scored.logp
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
        self._values = values
        return LossInput(minibatch, scored, entropy)

    def add_metrics(self, of_loss: Mapping[str, float], *, is_finite: bool) -> None:
        """Add the metrics of the loss to those that `update` returns. is_finite: its value."""
        self._values, self._has_finite_loss = {**of_loss, **self._values}, is_finite

    def update(self, gradient: Tensor, norm: float) -> dict[str, float]:
        """Update the policy once, by a gradient that had this norm before it was clipped.

        Return the metrics of the train step. Raise _Diverged.
        """
        state, settings, values = self.state, self.settings, self._values
        values["train/grad_norm"] = norm
        if not (self._has_finite_loss and isfinite(norm)):
            raise _Diverged("the loss or its gradient")
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
    settings: Sequence[Settings],
    batch: Experience,
    target: Objective,
    logp: Tensor,
    entropy: Tensor,
    betas: Tensor,
) -> list[dict[str, float]]:
    """Return the metrics of C cells' minibatches under canonical names, for the policies before
    their updates.

    betas: [C]. All else has a leading dimension of cells.
    """
    mask = batch.mask
    tokens, lengths = sum_over_tokens(mask), mask.sum(-1)
    means = {
        "train/reward_mean": batch.reward,
        "train/kl_reference": ((logp - batch.logp_ref) * mask).sum(-1),
        "rollout/response_tokens": lengths,
        "train/shaped_reward_mean": batch.reward - betas[:, None, None] * batch.penalty,
        "train/kl_term": batch.penalty,
    }
    values = {name: mean_over_responses(of_responses) for name, of_responses in means.items()}
    values |= {
        "train/entropy": sum_over_tokens(entropy * mask) / tokens,
        "train/policy_loss": target.policy_loss,
        "train/clip_fraction": sum_over_tokens(target.clipped * mask) / tokens,
        "train/ratio_max": (target.ratio * mask).flatten(1).amax(1),
        "loss/kl_term": target.kl_term,
    }
    rows = torch.stack(list(values.values()), 1).tolist()
    metrics = []
    for one, row in zip(settings, rows, strict=True):
        of_cell = dict(zip(values, row, strict=True))
        of_loss = of_cell.pop("loss/kl_term")
        if not in_reward(one.kl):
            del of_cell["train/shaped_reward_mean"], of_cell["train/kl_term"]
        if in_loss(one.kl):
            of_cell["train/kl_term"] = of_loss
        metrics.append(of_cell)
    return metrics


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
