"""Compare a launch with its port: the same rollouts through the own functions of both libraries.

    Ported, LaunchPlan, rows --prove--> PortProof (the difference, and the rows that explain it)

The launch's own words go to its library, and the port's to the other. Where the gradients differ,
they are asked for again with one part of the loss without effect (`PARTS`), or without a key that
the port does not carry. What makes the gradients equal holds the difference: a row of the port must
say so.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np

from orchestrator.audit.port import UNREAD, Ported, PortRow, default_of
from orchestrator.errors import EnvironmentFault
from orchestrator.lab.probes.protocol import (
    AnswersByKey,
    Inquiry,
    ProbeBatch,
    ProbeTarget,
    as_array,
    probes_of,
)
from orchestrator.records import LaunchPlan
from orchestrator.settings import Settings

EQUAL = 1e-5
"""The largest difference of equal gradients, relative to the largest entry."""
SEEDS = (0, 1, 2)
LONGEST = 6
"""Tokens of the longest response."""
KEY = "key:"


@dataclass(frozen=True, slots=True)
class LossPart:
    """A part of the loss: its fields, and the rollouts on which it has no effect, in words."""

    fields: tuple[str, ...]
    without: str


PARTS: Mapping[str, LossPart] = {
    "engine": LossPart(("loss.correction",), "with an engine that agrees with the trainer"),
    "lengths": LossPart(
        ("loss.aggregation", "loss.constant_tokens", "kl.placement"), "with responses of one length"
    ),
    "ratio": LossPart(
        ("loss.policy", "loss.clip", "loss.ratio_level", "batch.", "max_staleness_steps"),
        "with samples of the policy itself",
    ),
    "kl": LossPart(("kl.",), "where the policy is the reference policy"),
    "advantages": LossPart(
        ("advantage.", "rollout.group_size"), "with the same advantages for both"
    ),
}
"""Those that leave most of the loss as it is come first."""
Without = tuple[str, ...]
"""What has no effect: names of PARTS, or one key of the launch after KEY."""
BothAnswers = tuple[AnswersByKey, AnswersByKey]


@dataclass(frozen=True, slots=True)
class PortProof:
    """What the comparison of a launch with its port found."""

    before: str
    after: str
    num_responses: int
    num_tokens: int
    stale: bool
    """Whether the samples are older than the policy, as in a later minibatch of the launch."""
    difference: float
    """Between the gradients, relative to the largest entry, in the worst of the batches."""
    factor: float | None = None
    """After over before, if one gradient is a multiple of the other."""
    without: str = ""
    """What makes the gradients equal, in words; empty where nothing did or none was needed."""
    rest: float | None = None
    """The difference that is left then."""
    rows: tuple[PortRow, ...] = ()
    """The rows of the port about it."""

    @property
    def is_equal(self) -> bool:
        """Whether the gradients are equal."""
        return self.difference <= EQUAL

    @property
    def is_explained(self) -> bool:
        """Whether rows of the port explain the difference."""
        return bool(self.rows)


def prove(
    launch: Ported, plan: LaunchPlan, rows: Sequence[PortRow], before: ProbeTarget, at: ProbeTarget
) -> PortProof:
    """Return the difference between the gradients of a launch and of its port, and its reason.

    before, at: where the code of the launch's release and of the port's is. Raise EnvironmentFault
    if a library raises an error, or if there is no gradient: then nothing was compared.
    """
    settings = launch.settings
    stale = settings.batch.num_minibatches > 1 or settings.max_staleness_steps > 0
    comparison = _Comparison(launch, plan, (before, at), stale)
    answers = comparison.asked([()])
    difference, factor = comparison.difference(answers, ())
    masks = [np.asarray(rollouts(settings, seed, stale=stale)["mask"]) for seed in SEEDS]
    proof = PortProof(
        before=f"{launch.library} {launch.version}",
        after=f"{plan.backend} {plan.version}",
        num_responses=sum(len(mask) for mask in masks),
        num_tokens=int(sum(mask.sum() for mask in masks)),
        stale=stale,
        difference=difference,
        factor=None if difference <= EQUAL else factor,
    )
    return proof if proof.is_equal else _explained(proof, comparison, rows)


def _explained(proof: PortProof, comparison: "_Comparison", rows: Sequence[PortRow]) -> PortProof:
    """Return the proof with the first key, or the fewest parts, that make the gradients equal."""
    lost = comparison.launch.left.items()
    keys = [(f"{KEY}{key}",) for key, why in lost if why not in (UNREAD, comparison.default)]
    parts = [each for size in (1, 2, 3) for each in combinations(PARTS, size)]
    every: list[Without] = [*keys, *parts]
    answers = comparison.asked(every)
    for without in every:
        try:
            rest, _ = comparison.difference(answers, without)
        except EnvironmentFault:
            continue  # without this key it is no launch, or without these parts no gradient is left
        if rest <= EQUAL:
            about = [_rows_about(name, rows) for name in without]
            return replace(
                proof,
                without=" and ".join(_words(name) for name in without),
                rest=rest,
                rows=tuple(row for each in about for row in each) if all(about) else (),
            )
    return proof


def _rows_about(name: str, rows: Sequence[PortRow]) -> list[PortRow]:
    """Return the rows that say of a part, or of a key, that it is another in the port."""
    if name.startswith(KEY):
        key = name.removeprefix(KEY)
        return [r for r in rows if r.kind == "not carried" and r.source.partition("=")[0] == key]
    about = [row for row in rows if row.field.startswith(PARTS[name].fields)]
    # What a library adds to a group's deviation is a note of a row that is carried.
    noted = [row for row in about if row.note] if name == "advantages" else []
    return [row for row in about if row.is_other] or noted


def _words(name: str) -> str:
    return f"without {name.removeprefix(KEY)}" if name.startswith(KEY) else PARTS[name].without


class _Comparison:
    """The questions to the releases of a launch and of its port."""

    def __init__(
        self,
        launch: Ported,
        plan: LaunchPlan,
        targets: tuple[ProbeTarget, ProbeTarget],
        stale: bool,
    ):
        self.launch, self.plan, self.targets, self.stale = launch, plan, targets, stale
        self.settings = launch.settings
        self.default = default_of(launch.library, launch.version)

    def asked(self, every: Sequence[Without]) -> BothAnswers:
        """Return the answers of both: (what has no effect, seed) -> the gradient."""
        before = Inquiry(self.launch.library, self.launch.version)
        after = Inquiry(self.plan.backend, self.plan.version)
        own = before.add_own_launch(own_launch(self.launch))
        port = after.add_launch(self.plan)
        for without in every:
            shorter = own
            if without and without[0].startswith(KEY):
                fewer = own_launch(self.launch, without[0].removeprefix(KEY))
                shorter = before.add_own_launch(fewer)
            what = "loss" if "advantages" in without else "update"
            for seed in SEEDS:
                name = f"{without} {seed}"
                batch = rollouts(self.settings, seed, stale=self.stale, without=without)
                for inquiry, at in ((before, shorter), (after, port)):
                    inquiry.add_batch(name, batch)
                    inquiry.add_question((without, seed), what, at, name, only="gradient")
        return before.send(self.targets[0])[0], after.send(self.targets[1])[0]

    def difference(self, answers: BothAnswers, without: Without) -> tuple[float, float | None]:
        """Return the relative difference of the gradients, and their ratio where it is one number.

        Raise EnvironmentFault if a library raised an error, or if there is no gradient.
        """
        names = (self.launch.library, self.plan.backend)
        old, new = (
            np.stack([_gradient(name, each[(without, seed)]) for seed in SEEDS])
            for name, each in zip(names, answers, strict=True)
        )
        largest = np.abs(old).max()
        if not (np.isfinite([old, new]).all() and largest > 0 and np.abs(new).max() > 0):
            raise EnvironmentFault(
                f"nothing was compared: {' or '.join(names)} has no gradient on these rollouts"
            )
        factor = float((old * new).sum() / (old * old).sum())
        is_multiple = np.abs(new - factor * old).max() <= EQUAL * np.abs(new).max()
        return float(np.abs(new - old).max() / largest), factor if is_multiple else None


def _gradient(library: str, answer: Mapping[str, Any]) -> Any:
    if "error" in answer:
        raise EnvironmentFault(
            f"nothing was compared: {library}'s own functions raised {answer['error']}"
        )
    return as_array(answer, "gradient")


def own_launch(launch: Ported, without: str = "") -> dict[str, Any]:
    """Return a launch for its library's probes, without one key, and without the keys whose value
    only a run shows: as words, or as the files of a library that is given its keys in files."""
    given = {
        key: value
        for key, value in launch.given.items()
        if launch.left.get(key) != UNREAD and key != without
    }
    probes = probes_of(launch.library)
    if (files := getattr(probes, "files", None)) is not None:
        return {"argv": [], "files": files(given, without)}
    own = getattr(probes, "words", None)
    words: list[str] = (
        _overrides(launch.program, given) if own is None else own(launch.program, given)
    )
    return {"argv": words, "files": {}}


def _overrides(program: Sequence[str], given: Mapping[str, object]) -> list[str]:
    """Return KEY=VALUE of each key: as the command has it, else as its configuration file has."""
    written = {
        word.lstrip("+").partition("=")[0]: word.lstrip("+") for word in program if "=" in word
    }
    return [written.get(key, f"{key}={json.dumps(value)}") for key, value in given.items()]


def rollouts(settings: Settings, seed: int, *, stale: bool, without: Without = ()) -> ProbeBatch:
    """Return two groups of a launch's size, or more, with responses of unequal lengths.

    stale: the samples are older than the policy. without: parts of the loss without effect.
    """
    rng = np.random.default_rng(seed)
    size = settings.rollout.group_size
    rows = size * max(2, -(-8 // size))
    shape = (rows, LONGEST)
    lengths = rng.integers(1, LONGEST + 1, rows)
    lengths[0], lengths[-1] = 1, LONGEST
    old = -rng.uniform(0.2, 2.0, shape)
    engine = old + rng.uniform(-0.1, 0.1, shape)
    ref = old - rng.uniform(-0.5, 0.5, shape)
    # Beyond the usual clips for many tokens, and beyond a dual clip of 3 for some.
    step = rng.uniform(-0.4, 0.4, shape) + 1.3 * (rng.uniform(size=shape) < 0.15)
    logp = np.minimum(old + step, -0.01)
    rewards, advantages = rng.uniform(0.0, 1.0, rows), rng.normal(size=shape[:1])
    if not stale or "ratio" in without:
        logp = old
    if "engine" in without:
        engine = old
    if "kl" in without:
        ref = old if settings.kl.placement == "reward" else logp
    if "lengths" in without:
        lengths[:] = LONGEST
    mask = (np.arange(LONGEST) < lengths[:, None]).astype(float)
    return ProbeBatch(
        logp=logp.tolist(),
        ref=ref.tolist(),
        old=old.tolist(),
        engine=engine.tolist(),
        mask=mask.tolist(),
        rewards=rewards.tolist(),
        groups=[i // size for i in range(rows)],
        advantages=(advantages[:, None] * mask).tolist(),
    )


def text_of(proof: PortProof) -> Iterator[str]:
    """Yield the proof in lines: what it found, how to read it, and what was compared."""
    pair = f"{proof.before} and {proof.after}"
    if proof.is_equal:
        yield f"{pair} have the same gradient, to {proof.difference:.0e} of its largest entry."
    else:
        scale = f", a multiple of {proof.factor:.4g}" if proof.factor else ""
        yield f"{pair} have different gradients (by {proof.difference:.2g}{scale})."
        if proof.without:
            yield f"They are the same {proof.without} (to {proof.rest:.0e})."
        for row in proof.rows:
            yield f"Row     {row.kind}: {row.field or row.source}: {row.note}"
        if not proof.rows:
            yield "No row of the port explains it: do not take the two runs for the same."
    samples = "older than the policy" if proof.stale else "of the policy itself"
    yield (
        f"Compared on {len(SEEDS)} batches, {proof.num_responses} responses with "
        f"{proof.num_tokens} tokens {samples}: rewards to loss, in each library's own functions, "
        "on one device."
    )
