"""The metrics of a logged run as arrays over its train steps."""

import re
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from functools import cache
from itertools import takewhile

import numpy as np
from numpy.typing import NDArray

from orchestrator import plugins
from orchestrator.library.logged import LoggedMetrics, Place
from orchestrator.logs.logged import LoggedRun
from orchestrator.logs.names import canonical, own_step
from orchestrator.metrics.names import is_canonical

Series = NDArray[np.float64]

NO_REFERENCE_KL = "no KL to "
"""How the tables of the libraries begin the meaning of a metric that is called a KL and is none to
the reference policy."""
FEWEST_STEPS = 4
"""With fewer train steps no rule is asked."""


CUT, PROBABILITY = "rollout/cut_share", "rollout/mismatch_probability"
"""Share of cut responses, and the mean distance of the engine's and the trainer's probabilities."""
_TERM = "train/kl_term"
LENGTH, LONGEST = "rollout/response_tokens", "rollout/longest_response"
STD = "train/reward_std"
"""Mean deviation of the rewards of a group."""
BOUNDS = tuple(f"critic/{each}/{end}" for each in ("score", "advantages") for end in ("max", "min"))
"""Largest and least reward and advantage of a batch, by verl's names."""
_BY_ENGINE, _BY_TRAINER = "rollout/engine_log_probs", "rollout/trainer_log_probs"
"""Mean log-probability of the sampled tokens, by the engine and by the trainer."""
_NOT_MEAN = r"(?!.*(?:max|std|min|count|num|total))"
_PLAIN = {
    r"(?:train/)?(?:reward|reward_mean|mean_reward)|critic/score/mean": "train/reward_mean",
    r"rewards/reward/mean|env/all/reward/total": "train/reward_mean",
    r"(?:train/)?reward_std": STD,
    r"(?:train/|actor/|policy/)?(?:kl|kl_loss|kl_ref|policy_kl)(?:[/_]mean)?": _TERM,
    r"(?:train/|actor/|policy/)?(?:policy_)?entropy(?:/mean)?": "train/entropy",
    r"(?:train/|actor/|policy/)?grad(?:ient)?_norm": "train/grad_norm",
    r"(?:train/|actor/)?(?:kl_coef|beta|kl_loss_coef)": "train/beta",
    r"(?:train/|actor/)?(?:pg_)?clip_?frac(?:tion)?": "train/clip_fraction",
    r"(?:.*/|avg_|mean_)?(?:(?:response|completion)_|avg_|mean_)len(?:gth)?(?:/mean)?": LENGTH,
    r"completions/max_length|response_length/max": LONGEST,
    rf"{_NOT_MEAN}.*stale\w*(?:/mean)?": "rollout/staleness_mean",
    rf"{_NOT_MEAN}.*(?:rollout|sampl|engine|infer|vllm).*probs?_diff(?:[/_]mean)?": PROBABILITY,
    rf"{_NOT_MEAN}.*log_?p(?:rob)?s?_(?:abs_)?diff(?:erence)?(?:[/_]mean)?": "rollout/mismatch_abs",
    r"rollout/(?:rollout|behaviou?r)_log_?probs": _BY_ENGINE,
    r"rollout/log_?probs": _BY_TRAINER,
    r"(?:.*/)?(?:mismatch_kl|k3_kl|vllm_kl)(?:/mean)?": "rollout/mismatch_kl",
    rf"{_NOT_MEAN}(?:response_length/clip_ratio|.*clipped_ratio|.*truncat\w*(?:/mean)?)": CUT,
}
"""Names that say what they are, of libraries or releases without a row for them."""


@cache
def _by_plain_name(name: str) -> str:
    return next((ours for pattern, ours in _PLAIN.items() if re.fullmatch(pattern, name)), "")


@dataclass(frozen=True)
class Trace:
    """The metrics of one run, by canonical name. A value that was not logged is NaN."""

    steps: NDArray[np.int64]
    series: Mapping[str, Series]
    fault: str = ""
    """The first value that was logged as NaN or infinite: `grad_norm at step 12`."""
    place: Place | None = None
    """Where the KL is, by the launch, or by a logged name or an estimator that one place has."""
    namesakes: Mapping[str, tuple[str, Series]] = field(default_factory=dict)
    """Logged name -> meaning and values, of each metric that is called a KL and is none to the
    reference policy."""
    scores: Mapping[str, Series] = field(default_factory=dict)
    """Other scores than the reward that is trained, by their logged name: one reward function of
    several, or a score on held-out prompts."""

    own_names: Mapping[str, str] = field(default_factory=dict)
    """Canonical name -> the library's own."""
    lost: Mapping[str, int] = field(default_factory=dict)
    """Logged name of a metric of the loss -> the step from which on it is not finite."""
    from_start: bool = True
    """False: the first row is of several steps, or the log begins later or nobody knows where."""
    unit: str = "step"
    """`row`: `steps` are the numbers of the rows, whose train steps are not known."""
    is_rounded: bool = False
    """True: no value has more than three decimals, so that 0 may be a small number."""

    @property
    def is_silent(self) -> NDArray[np.bool_]:
        """Return at which steps all rewards, or all advantages, are logged as one number."""
        best, worst, highest, lowest = map(self.values, BOUNDS)
        return np.asarray((self.values(STD) == 0) | (best == worst) | (highest == lowest))

    def own_name(self, name: str) -> str:
        """Return the library's own name of a metric, or the canonical one."""
        return self.own_names.get(name, name)

    def get(self, name: str) -> Series | None:
        """Return the values [steps], or None if the log has none of them."""
        return self.series.get(name)

    def values(self, name: str) -> Series:
        """Return the values [steps], NaN where the log has none of them."""
        return self.series.get(name, np.full(len(self.steps), np.nan))

    @property
    def window(self) -> int:
        """Return the number of steps that a mean is taken over."""
        return window_of(len(self.steps))

    @property
    def steps_a_batch(self) -> int:
        """Return the train steps for each rollout batch, where a log has the reward of a batch
        only at its first step; else 1."""
        rewards, gradients = self.get("train/reward_mean"), self.get("train/grad_norm")
        if rewards is None or gradients is None:
            return 1
        both = np.isfinite(gradients).sum() / max(np.isfinite(rewards).sum(), 1)
        return max(round(float(both)), 1)

    def at(self, index: int) -> int:
        """Return the train step at an index."""
        return int(self.steps[index])


def trace_of(
    run: LoggedRun,
    library: str | None,
    place: Place | None = None,
    renames: Mapping[str, str] | None = None,
) -> Trace:
    """Return the metrics of a run. A canonical name counts as it is; others by the library's table.

    place: of the KL, which decides the meaning of some names. If it is not known, a name with a
    meaning for each place has that of the loss: all of them estimate the same KL.
    """
    table = plugins.logged_metrics(library) if library else None
    if place is None and table is not None:
        place = table.place({name for row in run.rows for name in row.values})
    meant_place = place or "loss"
    by_step: dict[int, dict[str, float]] = {}
    scores: dict[str, dict[int, float]] = {}
    namesakes: dict[str, tuple[str, list[float]]] = {}
    logged: dict[str, list[tuple[int, float]]] = {}
    no_share = {name for row in run.rows for name, value in row.values.items() if value > 1}
    for row in run.rows:
        named = _named(row.values, table, meant_place, renames or {}, no_share)
        step = own_step(row.step, row.values, table.step_names if table else ())
        by_step.setdefault(step, {}).update(named)
        for name, value in row.values.items():
            logged.setdefault(name, []).append((step, value))
            meant = table.row(name, meant_place) if table else None
            if meant is not None and not meant.ours and meant.meaning.startswith(NO_REFERENCE_KL):
                namesakes.setdefault(name, (meant.meaning, []))[1].append(value)
            if _SCORE.fullmatch((renames or {}).get(name, name)):
                scores.setdefault(name, {})[step] = value
    for values in by_step.values():
        # The libraries' names are of means over tokens; one of orch's cells may be of responses.
        values |= _derived(values, per_token=table is not None or place != "reward")
    # A row of evaluation alone is no train step.
    trained = {s: v for s, v in sorted(by_step.items()) if any(n[:5] != "eval/" for n in v)}
    steps = np.array([*trained], dtype=np.int64)
    series = {
        name: _array(values.get(name) for values in trained.values())
        for name in sorted({name for values in trained.values() for name in values})
    }
    has_steps = table is not None and not logged.keys().isdisjoint(table.step_names)
    unit = "row" if run.counted and not has_steps else "step"
    faults, lost = [], {}
    for name, points in logged.items():
        ours = _named({name: 0.0}, table, meant_place, renames or {}, no_share)
        broken = [step for step, value in points if ours and not np.isfinite(value)]
        faults += [(step, f"{name} at {unit} {step}") for step in broken[:1]]
        tail = [*takewhile(lambda each: not np.isfinite(each[1]), reversed(points))]
        if ours.keys() & _OF_LOSS and len(tail) > max(1, len(broken) - len(tail)):
            lost[name] = tail[-1][0]
    estimates = series.get(_TERM, np.zeros(1))
    of_term = {m.place for m in table.metrics if m.ours == _TERM} if table else set()
    if place is None and of_term == {"loss"} and not (estimates < 0).any():
        place = "loss"  # in the reward the library has k1, which is below 0 at times
    rows = [m for m in table.metrics if m.place in (None, meant_place)] if table else []
    return Trace(
        steps,
        {name: values for name, values in series.items() if not np.isnan(values).all()},
        min(faults, default=(0, ""))[1],
        place,
        {name: (meaning, np.array(values)) for name, (meaning, values) in namesakes.items()},
        {name: _array(map(values.get, trained)) for name, values in scores.items()},
        {row.ours: row.name for row in reversed(rows) if row.ours and not row.where},
        lost,
        from_start=unit == "step" and bool((steps[:1] <= 1).all()) and not _is_excerpt(run),
        unit=unit,
        is_rounded=all(round(v, 3) == v for row in run.rows for v in row.values.values()),
    )


def _array(values: Iterable[float | None]) -> Series:
    """Return values as an array; NaN for what is not there or not finite."""
    array = np.array([np.nan if each is None else each for each in values], dtype=np.float64)
    return np.where(np.isfinite(array), array, np.nan)


def _is_excerpt(run: LoggedRun) -> bool:
    """Return True if the first row is of an epoch that more than two rows before it would reach."""
    logged = [row.values["epoch"] for row in run.rows if "epoch" in row.values]
    return len(logged) > 1 and logged[0] > 3 * (logged[-1] - logged[0]) / (len(logged) - 1)


def _named(
    values: Mapping[str, float],
    table: LoggedMetrics | None,
    place: Place,
    renames: Mapping[str, str],
    no_share: Set[str],
) -> dict[str, float]:
    """Return the values of a row by canonical name. no_share: names with a value above 1."""
    own = {n: value for n, value in values.items() if is_canonical(n) or n in BOUNDS}
    named = canonical(values, table, place, renames) | own
    for name, value in values.items():
        is_named = table is not None and any(row.ours for row in table.rows(name))
        ours = "" if is_named or name in own else _by_plain_name(name)
        if ours and (ours != CUT or name not in no_share):
            named.setdefault(ours, value)
    return named


_SCORE = re.compile(
    r"(?:train/|eval_)?rewards/(?:.+/mean|[^/]+)|val-core/.+/mean@\d+"
    r"|(?!.*(?:std|max|min|length|loss|entropy|kl))(?:(?:eval|val|valid|validation|test|held_?out)"
    r"[_/-].*(?:reward|score|acc\w*|pass\w*|mean)(?:/mean)?(?:@\d+)?"
    r"|(?:.*[/_])?(?:gold_\w+|correct\w*|accuracy)(?:/mean)?)"
)
"""Other scores: reward functions of TRL, and what is measured on held-out prompts or as right."""


def _derived(values: Mapping[str, float], *, per_token: bool) -> dict[str, float]:
    """Return what follows from other metrics of the step, where it was not logged itself.

    A response's KL from that of its tokens: k1, or the estimate in a loss, which is near it. The KL
    of engine and trainer from the mean distance of their log-probabilities, as of a normal one:
    with deviation s the mean distance is s sqrt(2/pi) and the KL s**2 / 2.
    """
    derived = {}
    of_token = values.get("train/kl_reference_per_token")
    if of_token is None and per_token:
        of_token = values.get(_TERM)
    tokens = values.get(LENGTH)
    if "train/kl_reference" not in values and of_token is not None and tokens is not None:
        derived["train/kl_reference"] = of_token * tokens
    distance = values.get("rollout/mismatch_abs")
    if "rollout/mismatch_kl" not in values and distance is not None:
        derived["rollout/mismatch_kl"] = np.pi / 4 * distance**2
    elif _BY_ENGINE in values and _BY_TRAINER in values:
        derived["rollout/mismatch_kl"] = values[_BY_ENGINE] - values[_BY_TRAINER]
    return derived


_OF_LOSS = frozenset(
    f"train/{name}"
    for name in ("loss", "policy_loss", "grad_norm", "kl_term", "kl_reference", "entropy")
) | {"train/reward_mean"}
"""Metrics without which a run is lost."""


def window_of(count: int) -> int:
    """Return the number of values that a mean is taken over: a twelfth, within 3 and 20."""
    return int(np.clip(count // 12, 3, 20))


def running_mean(values: Series, window: int) -> Series:
    """Return the mean of the finite values among the last `window`, at each step."""
    finite = np.isfinite(values)
    sums = np.cumsum(np.where(finite, values, 0.0))
    counts = np.cumsum(finite).astype(np.float64)
    sums[window:] = sums[window:] - sums[:-window]
    counts[window:] = counts[window:] - counts[:-window]
    with np.errstate(invalid="ignore", divide="ignore"):
        mean: Series = sums / counts
    return mean


def noise(values: Series) -> float:
    """Return the standard deviation of one step's value around its trend, from differences of
    neighbours; 0 with fewer than three values. Of neighbours that are mostly equal those that
    differ count, by the root of their share, but for a fall of three steps, which go
    one way."""
    finite = values[np.isfinite(values)]
    if len(finite) < 3:
        return 0.0
    signed = np.diff(finite)
    moves = np.abs(signed)
    differ = moves[moves > 0]
    if 2 * len(differ) <= len(moves):
        share = len(differ) / len(moves)
        returns = len(differ) > 3 or 2 * abs(signed.sum()) < moves.sum()
        return float(np.median(differ) * np.sqrt(share / 2)) if returns else 0.0
    return float(np.median(moves) / (0.6745 * np.sqrt(2)))
