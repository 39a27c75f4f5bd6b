"""The signs of KL terms over random models: which of the laboratory's findings are general.

A sign on one model is no law. `measure` draws random models, computes every configuration's
expected gradient on each, and counts how often it attracts to the reference policy, repels from it,
or does neither. `python -m docs.tools.ensemble` prints the result;
orchestrator/kl/ensemble.json stores it, and `orch explain` prints its shares.

Two models in three are trees: V words, up to T tokens, every response listed; half of them end a
response by a word of its own, so that lengths vary. A tree has one parameter for each word in each
state (`tabular`), or few parameters that all states share by random features (`shared`). The third
is the paper's model with up to 32 binary tokens (`chain`). Each has a reference policy, a policy
and a rollout policy that lags, leads and stands aside.
"""

import json
import sys
from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any, NamedTuple, cast

import numpy as np

from orchestrator.estimators import TABLE, entry
from orchestrator.exact.derivation import ROUNDING
from orchestrator.exact.laboratory import FloatTable, LabSetting, ToyPolicy, exact
from orchestrator.exact.objectives import gradients
from orchestrator.kl.configuration import KlConfiguration
from orchestrator.kl.estimators import Ratio, clamped_value, slope, vocabulary_kl, vocabulary_slope
from orchestrator.kl.table import TermRow, stored_rows, term_key

MODELS = 600
SEED = 41
LEAST_PULL = 0.1
"""A smaller part along the true gradient, in its lengths, is no pull."""
REGIMES: Mapping[str, tuple[float, float]] = {"near": (0.0003, 0.003), "far": (2.0, 20.0)}
"""Regime -> bounds of the KL between policy and reference policy: near in nats for each token of
the longest response (the laboratory's example has 0.0025), far in nats for a response."""
LAGS: Mapping[str, tuple[float, float]] = {"near": (0.5, 1.5), "far": (0.8, 1.2)}
"""Regime -> bounds of the rollout policy's place: 0 at the reference policy, 1 at the policy."""
ASIDE: Mapping[str, float] = {"near": 0.3, "far": 0.1}
"""Regime -> how far aside the rollout policy stands, in distances of policy and reference."""
KINDS = ("tabular", "shared", "chain")


class Tree(NamedTuple):
    """Every response of a small model, padded to T tokens; and its parameters' features."""

    states: FloatTable
    """[N, T], the state before each token."""
    tokens: FloatTable
    """[N, T]."""
    mask: FloatTable
    """[N, T], 1 for a token of the response."""
    features: FloatTable
    """[states, V, parameters]: a logit is features @ parameters."""

    def logp(self, parameters: FloatTable) -> FloatTable:
        """Return the log-probability of each word in each state, [states, V]."""
        logits = self.features @ parameters
        return np.asarray(logits - np.logaddexp.reduce(logits, axis=1, keepdims=True))

    def taken(self, table: FloatTable) -> FloatTable:
        """Return a table [states, V] at each response's tokens, [N, T]; 0 beyond the response."""
        return np.where(self.mask > 0, table[self.states, self.tokens], 0.0)


class RandomModel(NamedTuple):
    """A random model with its policies' parameters."""

    kind: str
    ends: bool
    """True if responses end by a word of their own."""
    tree: Tree | None
    num_tokens: int
    policy: FloatTable
    reference: FloatTable
    rollout: FloatTable
    old: FloatTable
    """The trainer's old policy, of which the rollout policy is an engine's copy."""

    @property
    def setting(self) -> LabSetting:
        """Return the policies of a chain."""
        of = (ToyPolicy(*map(float, each)) for each in (self.policy, self.reference, self.rollout))
        policy, reference, rollout = of
        return LabSetting(policy, reference, self.num_tokens, rollout)


def draw(index: int, regime: str, seed: int = SEED) -> RandomModel:
    """Return a random model. The same numbers give the same model."""
    rng = np.random.default_rng([seed, index, list(REGIMES).index(regime)])
    while True:
        model = _drawn(KINDS[index % len(KINDS)], index // len(KINDS) % 2 == 1, regime, rng)
        if model is not None:
            return model


def _drawn(kind: str, ends: bool, regime: str, rng: np.random.Generator) -> RandomModel | None:
    """Return a model, or None if no policy in the drawn direction has the drawn distance."""
    if kind == "chain":
        tree, num_tokens = None, int(rng.integers(4, 33))
        reference = rng.uniform((-1.5, -0.15), (1.5, 0.15))
        direction = rng.normal(size=2) * (1.0, 0.1)
        ends = False
    else:
        words = int(rng.integers(2, 6))
        num_tokens = int(rng.integers(2 if ends else 1, {2: 6, 3: 5, 4: 4, 5: 4}[words]))
        tree = _tree(words, num_tokens, ends, kind == "shared", rng)
        reference = rng.normal(size=tree.features.shape[2])
        direction = rng.normal(size=len(reference))
    low, high = REGIMES[regime]
    distance = float(np.exp(rng.uniform(np.log(low), np.log(high))))
    distance *= num_tokens if regime == "near" else 1
    reached = _reach(tree, num_tokens, reference, direction, distance)
    if reached is None:
        return None
    step = reached * direction
    aside = rng.normal(size=len(reference)) * np.abs(step) * ASIDE[regime]
    old = reference + rng.uniform(*LAGS[regime]) * step
    return RandomModel(kind, ends, tree, num_tokens, reference + step, reference, old + aside, old)


def _tree(words: int, length: int, ends: bool, shared: bool, rng: np.random.Generator) -> Tree:
    """Return every response of at most `length` tokens. With `ends`, word 0 ends a response."""
    responses = [
        each
        for each in product(range(words), repeat=length)
        if not ends or 0 not in each[:-1] or not any(each[each.index(0) :])
    ]
    known: dict[tuple[int, ...], int] = {}
    states, mask = (np.zeros((len(responses), length), dtype=int) for _ in range(2))
    for n, response in enumerate(responses):
        for t in range(length):
            if ends and 0 in response[:t]:
                break
            states[n, t] = known.setdefault(response[:t], len(known))
            mask[n, t] = 1
    size = len(known) * words
    features = rng.normal(size=(size, int(rng.integers(2, 7)))) if shared else np.eye(size)
    return Tree(states, np.array(responses), mask, features.reshape(len(known), words, -1))


def _kl(tree: Tree | None, num_tokens: int, policy: FloatTable, reference: FloatTable) -> float:
    """Return the KL of a policy's responses to the reference policy, in nats."""
    if tree is None:
        of = [ToyPolicy(*map(float, each)) for each in (policy, reference)]
        occupancy = np.eye(1, num_tokens)[0]
        total, q, p = 0.0, of[0].logp(num_tokens), of[1].logp(num_tokens)
        for _ in range(num_tokens):
            total += float(occupancy @ (np.exp(q) * (q - p)).sum(0))
            moved = occupancy * np.exp(q[1])
            occupancy = occupancy * np.exp(q[0])
            occupancy[1:] += moved[:-1]
        return total
    q, p = (tree.taken(tree.logp(each)).sum(1) for each in (policy, reference))
    return float(np.exp(q) @ (q - p))


def _reach(
    tree: Tree | None, num_tokens: int, reference: FloatTable, way: FloatTable, distance: float
) -> float | None:
    """Return how far to go along `way` to a KL of `distance` nats, or None if it is not there."""
    low, high = 0.0, 8.0 if tree is None else 30.0
    if _kl(tree, num_tokens, reference + high * way, reference) < distance:
        return None
    for _ in range(50):
        middle = (low + high) / 2
        near = _kl(tree, num_tokens, reference + middle * way, reference) < distance
        low, high = (middle, high) if near else (low, middle)
    return high


# The expected gradients of a tree.


class _Walked:
    """A tree's tables under its policies, one entry for each token of each response, [N, T]."""

    def __init__(self, model: RandomModel, tree: Tree, sampler: FloatTable) -> None:
        self.tree = tree
        self.logq, self.logp, self.logm = map(tree.logp, (model.policy, model.reference, sampler))
        self.x, self.lag = tree.taken(self.logq - self.logp), tree.taken(self.logm - self.logp)
        log_ratio = tree.taken(self.logq - self.logm)
        self.w = np.exp(log_ratio)
        self.whole = np.exp(log_ratio.sum(1, keepdims=True))
        self.mean = np.exp(log_ratio.sum(1, keepdims=True) / tree.mask.sum(1, keepdims=True))
        self.chance = np.exp(tree.taken(self.logm).sum(1))
        # grad log q of a word: its features minus their mean in that state.
        middle = (np.exp(self.logq)[..., None] * tree.features).sum(1, keepdims=True)
        score = tree.features - middle
        self.score = score[tree.states, tree.tokens] * tree.mask[..., None]

    def expected(self, coefficient: FloatTable) -> FloatTable:
        """Return the mean over responses of the sum of coefficient times score, [parameters]."""
        weight = coefficient * self.chance[:, None]
        return np.asarray(np.einsum("nt,ntp->p", weight, self.score))

    def ratio(self, name: str) -> FloatTable:
        """Return the importance ratio of that name, [N, T] or [N, 1]."""
        ratios: Mapping[str, FloatTable] = {"token": self.w, "sequence": self.whole}
        return ratios.get(name, self.mean)

    def in_reward(self, configuration: KlConfiguration) -> FloatTable:
        """Return the factor of each token's score for a KL in the reward, [N, T]."""
        form, rollout = entry(configuration.estimator), configuration.reward_kl_of == "rollout"
        if form.is_of_vocabulary and not form.in_reward:
            logs = self.logm if rollout else self.logq
            state = vocabulary_kl(form.name, logs, self.logp)
            kl = state[self.tree.states] * self.tree.mask
        else:
            plain = form.in_reward or form.base
            kl = clamped_value(plain, self.lag if rollout else self.x) * self.tree.mask
            if form.is_weighted and not rollout and configuration.ratio == "token":
                kl = kl * self.w
        to_go = kl[:, ::-1].cumsum(1)[:, ::-1]
        charged = {
            "sequence": kl.sum(1, keepdims=True),
            "to_go": to_go,
            "later": to_go - kl,
            "token": kl,
        }[configuration.credit]
        return np.asarray(charged * self.ratio(configuration.ratio))

    def in_loss(self, configuration: KlConfiguration) -> FloatTable:
        """Return the factor of each token's score for a KL in the loss, [N, T].

        An average over the vocabulary is E over the policy's words, so over samples a token's
        factor is weighted by its ratio.
        """
        form = entry(configuration.estimator)
        if form.is_of_vocabulary:
            return np.asarray(
                self.w * self.tree.taken(vocabulary_slope(form.name, self.logq, self.logp))
            )
        inner = slope(form.name, self.x)
        if not form.is_weighted:
            return np.asarray(inner)
        value, ratio = clamped_value(form.base, self.x), self.ratio(configuration.ratio)
        if form.form == "ratio_attached":
            power = {"sequence_mean": 1 / self.tree.mask.sum(1, keepdims=True)}
            whole = power.get(configuration.ratio, 1.0) * (value * self.tree.mask).sum(
                1, keepdims=True
            )
            inner = inner + (value if configuration.ratio == "token" else whole)
        return np.asarray(ratio * inner)

    def mean_gradient(self, configuration: KlConfiguration) -> FloatTable:
        """Return the expected gradient of a configuration, [parameters]."""
        factor = np.zeros_like(self.x)
        if configuration.placement != "loss":
            factor = factor + self.in_reward(configuration)
        if configuration.placement != "reward":
            factor = factor + self.in_loss(configuration)
        return self.expected(factor)


def pulls(model: RandomModel, rows: tuple[TermRow, ...]) -> list[tuple[float, float]]:
    """Return the pull and the bias of each term, in lengths of the reverse KL's gradient.

    The pull is the part of its expected gradient along the reverse KL's, the bias the distance.
    """
    means, true = means_and_truth(model, rows)
    length = float(np.linalg.norm(true))
    return [
        (float(mean @ true) / length**2, float(np.linalg.norm(mean - true)) / length)
        for mean in means
    ]


def means_and_truth(
    model: RandomModel, rows: tuple[TermRow, ...]
) -> tuple[list[FloatTable], FloatTable]:
    """Return each term's expected gradient, and the gradient of the sequence reverse KL."""
    wanted = [
        KlConfiguration(
            r.estimator, r.placement, cast("Ratio", r.ratio), reward_kl_of=r.reward_kl_of
        )
        for r in rows
    ]
    if model.tree is None:
        setting = model.setting
        own = LabSetting(setting.policy, setting.reference, setting.num_tokens)
        by_sampling = [
            iter(
                exact(
                    where, [c for c, r in zip(wanted, rows, strict=True) if r.on_policy == on]
                ).mean
            )
            for where, on in ((setting, False), (own, True))
        ]
        means = [next(by_sampling[row.on_policy]) for row in rows]
        return means, gradients(own)["sequence_reverse_kl"]
    walks = [_Walked(model, model.tree, each) for each in (model.rollout, model.policy)]
    means = [walks[row.on_policy].mean_gradient(c) for c, row in zip(wanted, rows, strict=True)]
    return means, walks[True].mean_gradient(KlConfiguration("k1", "reward"))


# What is stored.


def of_the_ensemble() -> tuple[TermRow, ...]:
    """Return the rows whose signs are counted: all but those that keep only some of the words."""
    return tuple(row for row in stored_rows() if TABLE[row.estimator].top is None)


def measure(models: int = MODELS, seed: int = SEED) -> dict[str, Any]:
    """Return the shares of signs over random models in each regime, and the facts of trees."""
    rows = of_the_ensemble()
    pulled = {
        regime: np.array([pulls(draw(i, regime, seed), rows) for i in range(models)])
        for regime in REGIMES
    }
    return {
        "models": models,
        "seed": seed,
        "least_pull": LEAST_PULL,
        "facts": {regime: _of_trees(models, regime, seed) for regime in REGIMES},
        "terms": {
            term_key(row): {regime: _shares(*pulled[regime][:, i].T) for regime in REGIMES}
            for i, row in enumerate(rows)
        },
    }


def _shares(pull: FloatTable, bias: FloatTable) -> dict[str, float]:
    attracts, repels = (pull > LEAST_PULL).mean(), (pull < -LEAST_PULL).mean()
    low, middle, high = np.quantile(pull, (0.05, 0.5, 0.95))
    return {
        "attracts": round(float(attracts), 4),
        "repels": round(float(repels), 4),
        "neither": round(float((np.abs(pull) <= LEAST_PULL).mean()), 4),
        "low": _rounded(low),
        "median": _rounded(middle),
        "high": _rounded(high),
        "bias": _rounded(0.0 if np.median(bias) < ROUNDING else np.median(bias)),
    }


def _of_trees(models: int, regime: str, seed: int) -> dict[str, dict[str, float]]:
    """Return median and worst twentieth of each fact: low for a cosine, high for an error."""
    measured = [facts_of(draw(i, regime, seed)) for i in range(models)]
    facts = {}
    for name in sorted({name for each in measured for name in each}):
        of = [each[name] for each in measured if name in each]
        worst = np.quantile(of, 0.05 if "cosine" in name else 0.95)
        facts[name] = {"median": _rounded(np.median(of)), "worst": _rounded(worst)}
    return facts


def _rounded(number: float) -> float:
    return float(f"{number:.3g}")


def as_text(measured: Mapping[str, Any]) -> str:
    """Return what `measure` measured as JSON, with one configuration a line."""
    head = {name: value for name, value in measured.items() if name != "terms"}
    terms = (f"  {json.dumps(key)}: {json.dumps(of)}" for key, of in measured["terms"].items())
    return json.dumps(head, indent=1)[:-2] + ',\n "terms": {\n' + ",\n".join(terms) + "\n }\n}"


def facts_of(model: RandomModel) -> dict[str, float]:
    """Return what is measured beside the signs, for a tree."""
    if model.tree is None:
        return {}
    return {**dict(_of_lengths(model, model.tree)), **dict(_of_samplers(model, model.tree))}


def _of_lengths(model: RandomModel, tree: Tree) -> Iterator[tuple[str, float]]:
    """Yield the cosines of a gradient with 1 / length and without."""
    if not model.ends:
        return
    own = _Walked(model, tree, model.policy)
    length = tree.mask.sum(1, keepdims=True)
    for name, factor in (
        ("reward", own.in_reward(KlConfiguration("k1", "reward"))),
        ("loss", own.in_loss(KlConfiguration("k3", "loss"))),
    ):
        yield f"length_cosine_{name}", _cosine(own.expected(factor / length), own.expected(factor))


def _cosine(one: FloatTable, other: FloatTable) -> float:
    return float(one @ other / np.linalg.norm(one) / np.linalg.norm(other))


def _of_samplers(model: RandomModel, tree: Tree) -> Iterator[tuple[str, float]]:
    """Yield the error of a ratio to a third policy."""
    engine = _Walked(model, tree, model.rollout)
    old = tree.taken(tree.logp(model.old))
    k3 = slope("k3", engine.x) + clamped_value("k3", engine.x)
    to_old = np.exp(tree.taken(engine.logq) - old) * tree.mask
    true = engine.expected(engine.w * k3)
    off = np.linalg.norm(engine.expected(to_old * k3) - true) / np.linalg.norm(true)
    yield "old_policy_ratio_off", float(off)


if __name__ == "__main__":
    sys.stdout.write(f"{as_text(measure())}\n")
