"""Verdicts on KL terms in words: the objective of a term's gradient, its pull, and advice.

`verdict` puts the row of the table (table.py) for the configuration that was asked for into the
sentences of sentences.yaml: headline, bias, plain words, advice, notes. So they change together.
Each sentence lists what it was checked under. `verdict_of` judges a cell. `explanation` and the
functions after it answer `orch explain`. The module does not import NumPy, because `orch plan`
needs thousands of verdicts quickly.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache, lru_cache
from importlib.resources import files
from typing import Any, NamedTuple

import yaml

from orchestrator.estimators import NONE, TABLE, choices, entry
from orchestrator.kl import table
from orchestrator.kl.catalogue import ObjectiveKind
from orchestrator.kl.groups import group_std
from orchestrator.kl.library_semantics import PLAIN, Dialect, relevant
from orchestrator.kl.paper import (
    EQUATIONS,
    NOT_STUDIED,
    OBSERVATIONS,
    Observation,
    Regime,
    observation,
)
from orchestrator.kl.table import GROUP_SIZE, Case, Judged
from orchestrator.settings import (
    AdvantageEstimator,
    Clip,
    EngineCorrection,
    Kl,
    Placement,
    RatioLevel,
    Settings,
)


class Bias(NamedTuple):
    """The distance of the expected gradient from the gradient of the sequence reverse KL.

    Its unit is the length of the gradient of the sequence reverse KL; 0 is unbiased. It is exact on
    the laboratory's model with T = 32, `near` the reference policy (0.08 nats) and `far` from it
    (18 nats). None if the group's deviation gives each prompt a number of its own.
    """

    text: str
    near: float | None
    far: float | None


@dataclass(frozen=True, slots=True)
class Remedy:
    """Advice in words, with the labels of the recommended terms (none: keep the term)."""

    text: str
    use: tuple[str, ...]
    because: str = ""
    """The part of the order of advice (table.ORDER) that decided; empty to keep the term."""


@dataclass(frozen=True, slots=True)
class GradientVerdict:
    """A verdict on one KL term: its objective, bias and noise, the paper's observation, advice."""

    objective: ObjectiveKind
    summary: str
    """One line for `orch plan`."""
    bias: Bias
    paper: Observation
    equation: str
    advice: Remedy
    notes: tuple[str, ...] = ()
    """The effects of the advantage, the group, the clip and the correction on the term."""
    reasons: tuple[str, ...] = ()
    """What stands behind the notes: conditions, and how an effect comes about."""
    terms: tuple[tuple[int, str], ...] = ()
    """The signed candidates (catalogue.py) whose sum is the expected gradient, before a group's
    mean or deviation rescales a part of it."""
    plain: str = ""
    """The strength of its pull towards the reference policy, in words without equations."""
    pull: float = 0.0
    """Projection of its expected gradient on the gradient of the sequence reverse KL, near the
    reference policy, in lengths of the latter."""
    noise: float = 0.0
    """Standard deviation of one sequence's gradient near the reference policy, without a baseline,
    in lengths of the gradient of the sequence reverse KL."""
    checked: tuple[str, ...] = ()
    """The conditions under which its sentences were checked."""


class _Page:
    """The sentences of one verdict; it collects the conditions under which they were checked."""

    def __init__(self) -> None:
        self._conditions: dict[str, None] = {}
        self.reasons: list[str] = []
        """What stands behind the sentences so far."""

    def say(self, part: str, name: str, **slots: object) -> str:
        """Return a sentence of sentences.yaml with its slots filled, and keep its reason."""
        sentence = sentences()[part][name]
        self._conditions |= dict.fromkeys(sentence["checked"])
        if why := sentence.get("why"):
            self.reasons.append(why.format(**slots))
        return str(sentence["text"]).format(**slots)

    @property
    def checked(self) -> tuple[str, ...]:
        """Return the conditions of all sentences so far, in the file's order."""
        known: Mapping[str, str] = sentences()["conditions"]
        return tuple(text for name, text in known.items() if name in self._conditions)


@cache
def sentences() -> Mapping[str, Any]:
    """Return the texts of sentences.yaml."""
    text = files("orchestrator.kl").joinpath("sentences.yaml").read_text(encoding="utf-8")
    loaded: Mapping[str, Any] = yaml.safe_load(text)
    return loaded


@lru_cache(maxsize=4096)
def verdict(
    kl: Kl,
    *,
    on_policy: bool,
    advantage: AdvantageEstimator = "rloo",
    group_size: int | None = None,
    clip: Clip | None = None,
    ratio: str = "token",
    reward_kl_of: str = "rollout",
    regimes: tuple[Regime, ...] = (),
    correction: EngineCorrection | None = None,
    reference_at_one: float | None = None,
) -> GradientVerdict:
    """Return the verdict on a KL term.

    `ratio`: the importance ratio, `token` (PPO), `sequence` or `sequence_mean` (GSPO).
    `reward_kl_of`: the policy whose log-probabilities give the KL in the reward: `rollout` (once
    per rollout batch, as in libraries) or `policy` (paper eq. 7). `regimes`: the paper's
    experiments to cite (empty: all on- or off-policy ones). `reference_at_one`: the temperature of
    the policy's log-probabilities where the reference policy's are at 1 instead. Raise
    LaboratoryError for a combination without meaning, for example the sequence ratio with both
    placements.

    Derive an estimator that verdicts.json lacks now. That loads NumPy and takes some tenths of a
    second.
    """
    like = regimes or (("on_policy",) if on_policy else ("minibatches", "async"))
    if kl.placement is None or kl.beta == 0:
        return _no_kl(kl, _studied("none", advantage, like))
    case = Case(on_policy, ratio, reward_kl_of, advantage, group_size)
    term, page = table.judged(kl.estimator, kl.placement, case), _Page()
    paper = _observed(kl, case, like) if ratio == "token" else NOT_STUDIED
    headline = _headline(term, page)
    by_prompt, row = term.by_prompt, term.row
    of_options = (
        *_advantage_notes(kl, case, page),
        *(() if on_policy else _off_policy_notes(kl, clip, case, page)),
        *_other_notes(kl, correction, page),
        *(
            ()
            if reference_at_one is None
            else [page.say("note", "reference_at_one", temperature=f"{reference_at_one:g}")]
        ),
    )
    notes = tuple(filter(None, of_options))
    return GradientVerdict(
        objective=row.objective,
        summary=f"{_asked(kl, case)}: {headline}. Paper: {paper}",
        bias=Bias(
            _bias(term, page), *((None, None) if by_prompt else (row.bias_near, row.bias_far))
        ),
        paper=paper,
        equation=equation(term, kl.estimator, kl.placement),
        advice=advice(term, page),
        notes=notes,
        reasons=tuple(page.reasons),
        terms=row.terms,
        plain=_plain(term, page),
        pull=row.pull_near,
        noise=row.noise_near,
        checked=page.checked,
    )


def verdict_of(settings: Settings, dialect: Dialect = PLAIN) -> GradientVerdict:
    """Return the verdict on a cell. It is on-policy with one minibatch per batch and no staleness.

    `dialect`: the meaning of the settings in the cell's library. If a library computes the KL in
    the reward at the start of a batch's only train step, it is the updated policy's KL.
    """
    regimes: list[Regime] = []
    if settings.batch.num_minibatches > 1:
        regimes.append("minibatches")
    if settings.max_staleness_steps > 0:
        regimes.append("async")
    return verdict(
        settings.kl,
        on_policy=not regimes,
        advantage=settings.advantage.estimator,
        group_size=settings.rollout.group_size,
        clip=settings.loss.clip,
        ratio=_ratio_level(settings),
        reward_kl_of="policy" if _of_policy(settings, dialect) else "rollout",
        regimes=tuple(regimes) or ("on_policy",),
        correction=settings.loss.correction,
        reference_at_one=(
            settings.rollout.temperature
            if relevant(dialect, settings).reference_temperature == "one"
            else None
        ),
    )


def _ratio_level(settings: Settings) -> RatioLevel:
    """Return the ratio level that weights the KL term: the policy loss's if it is in the reward."""
    in_reward = settings.kl.placement == "reward"
    return settings.loss.ratio_level if in_reward else settings.kl.ratio_level


def _of_policy(settings: Settings, dialect: Dialect) -> bool:
    """Return True if the reward's KL is the updated policy's and ratios divide by the sampler."""
    at_start = dialect.kl_reward_policy == "batch_start" and dialect.ratio_to == "rollout"
    return at_start and settings.batch.num_minibatches == 1


def _no_kl(kl: Kl, paper: Observation) -> GradientVerdict:
    page = _Page()
    why = "no KL term" if kl.estimator == NONE else f"{kl.label} with β = 0: no KL term"
    return GradientVerdict(
        objective=ObjectiveKind.NONE,
        summary=f"{page.say('headline', 'none', why=why)}. Paper: {paper}",
        bias=Bias(page.say("bias", "none"), 0.0, 0.0),
        paper=paper,
        equation="0",
        advice=Remedy(page.say("advice", "none"), ()),
        plain=page.say("plain", "none"),
        checked=page.checked,
    )


def _observed(kl: Kl, case: Case, regimes: tuple[Regime, ...]) -> Observation:
    """Return the paper's observation of the term, or of the term that has the same gradient.

    In the reward, `k3+` equals k3. On-policy in the reward, every ratio is 1.
    """
    form, place = entry(kl.estimator), kl.label.rpartition(".")[2]
    own = _studied(kl.label, case.advantage, regimes)
    alike = form.is_straight_through or (case.on_policy and form.is_weighted)
    if own is not NOT_STUDIED or kl.placement != "reward" or not alike:
        return own
    return _studied(f"{form.base}.{place}", case.advantage, regimes).inherited_from(form.base)


def _studied(label: str, advantage: str, regimes: tuple[Regime, ...]) -> Observation:
    """Return the paper's observation of a term, and under which advantage if it is another."""
    of = tuple(each for each in regimes if (label, each) in OBSERVATIONS)
    return observation(label, regimes).asked_under(advantage, of)


def _asked(kl: Kl, case: Case) -> str:
    """Return the configuration that was asked for, as a headline begins: `k3 in loss`."""
    parts = [f"{kl.estimator} in {str(kl.placement).replace('_', ' ')}"]
    if not case.on_policy:
        parts.append("off-policy")
    if case.ratio != "token":
        parts.append(f"{case.ratio.replace('_', ' ')} ratio")
    if case.advantage != "rloo":
        parts.append(f"advantage {case.advantage}")
    return ", ".join(parts)


def _kept(case: Case) -> str:
    """Return the share that the group's mean leaves: `1 - 1/8 = 0.875`."""
    if case.group_size is None:
        return f"1 - 1/G ({case.kept:.3g}{_assumed(case)})"
    return f"1 - 1/{case.group_size} = {case.kept:.3g}"


def _assumed(case: Case) -> str:
    """Return the group size behind a number, if none was given."""
    return "" if case.group_size else f" with G = {GROUP_SIZE}"


def _headline(term: Judged, page: _Page) -> str:
    row, case = term.row, term.case
    biased = (
        f"; biased: in the laboratory {row.pull_near:.2g} × the reverse KL's gradient near the "
        f"reference policy ({percent(row.across_near)} beside it) and {row.pull_far:.2g} × far "
        f"from it ({percent(row.across_far)} beside it)"
    )
    slots = {"words": term.words, "bias": ", unbiased" if row.is_unbiased else biased}
    slots |= {"kept": _kept(case), "more": f"{1 / case.kept:.3g}{_assumed(case)}"}
    if row.is_noise:
        return page.say("headline", "noise")
    if term.by_prompt:
        name = "mixed_by_prompt" if term.is_mixed else "by_prompt"
    elif term.is_mixed:
        name = "mixed"
    elif case.kept == 1:
        name = "whole"
    elif row.placement != "loss":
        name = "unbiased_kept" if row.is_unbiased else "biased_kept"
    else:
        name = "loss_by_prompt" if case.advantage == "grpo" else "loss_not_kept"
    return page.say("headline", name, **slots)


def _bias(term: Judged, page: _Page) -> str:
    row, kept = term.row, term.case.kept != 1 and term.row.placement != "loss"
    if row.is_unbiased and kept and not term.by_prompt:
        return page.say("bias", "unbiased_kept", kept=_kept(term.case))
    if row.is_unbiased:
        text = page.say("bias", "unbiased")
    else:
        slots = {name: percent(getattr(row, name)) for name in ("pull_near", "pull_far")}
        slots |= {"near": percent(row.bias_near), "far": percent(row.bias_far)}
        text = page.say("bias", "biased", **slots)
        if (medians := term.over_models) is not None:
            near, far = map(percent, medians)
            models = f"{table.models():,}"
            text += page.say("bias", "over_models", near=near, far=far, models=models)
    return page.say("bias", "by_prompt", before=text, **_with_a(term)) if term.by_prompt else text


MOST = 0.9
"""A sign is stated as a rule if it holds in this share of the random models or more."""
_SIGNS = {
    "attracts": ("it pulls back", 1),
    "repels": ("it pushes away", -1),
    "neither": ("it does not pull", 0),
}


def _plain(term: Judged, page: _Page) -> str:
    row = term.row
    if row.is_noise:
        return page.say("plain", "noise")
    text = page.say("plain", "unbiased") if row.is_unbiased else _signs(term, page)
    if any(key == "sampled_k1" for _, key in row.terms):
        part = "away_from_sampler" if len(row.terms) == 1 else "partly_away_from_sampler"
        text = page.say("plain", part, rest=text)
    return page.say("plain", "by_prompt", before=text, **_with_a(term)) if term.by_prompt else text


def _with_a(term: Judged) -> dict[str, str]:
    """Return the weight of the reward's part that the group's mean leaves, where one is needed."""
    share = f" (a = {term.case.kept:.3g}{_assumed(term.case)})"
    return {"with_a": share if term.is_mixed else ""}


def _signs(term: Judged, page: _Page) -> str:
    """Return the sign of the pull near and far: over random models if they have it."""
    row = term.row
    slots = {name: percent(getattr(row, name)) for name in ("pull_near", "pull_far")}
    shares = None if term.is_mixed else table.signs(row)
    if shares is None:
        return page.say("plain", "laboratory", **slots)
    near, far = (_sign(shares[at], getattr(row, f"pull_{at}")) for at in _REGIMES)
    slots = {"near_words": near[0], "near_share": near[1], "far_share": far[1]}
    slots |= {"models": f"{table.models():,}", "far_words": far[0]}
    return page.say("plain", "one_sign" if near[0] == far[0] else "two_signs", **slots)


def _sign(shares: Mapping[str, float], in_laboratory: float) -> tuple[str, str]:
    """Return the sign in words and its share, or both shares where no sign is a rule.

    It is none if the laboratory's own model has another sign.
    """
    for name, (words, sign) in _SIGNS.items():
        if shares[name] >= MOST and in_laboratory * sign >= 0:
            return words, percent(shares[name])
    counted = (("back", "attracts"), ("away", "repels"), ("neither", "neither"))
    listed = ", ".join(f"{word} in {percent(shares[name])}" for word, name in counted)
    return "its pull depends on the model", listed


def percent(share: float) -> str:
    """Return a share as text: `1.3%` for 0.013, `148%` for 1.483."""
    return f"{100 * share:.0f}%" if abs(share) >= 0.1 else f"{100 * share:.2g}%"


def equation(term: Judged, estimator: str, placement: Placement) -> str:
    """Return the equation of the term's expected gradient, with its source."""
    case, form = term.case, entry(estimator)
    samples, on_policy = "q" if case.on_policy else "μ", case.on_policy
    loss, score = "Σ_t ∇KL_t", "s_t" if on_policy else "w_t s_t"
    if case.ratio == "sequence_mean":
        reward = "(Π_t w_t)^(1/T) (Σ_t KL_t)(Σ_t s_t)"
    elif case.ratio == "sequence":
        reward = "Π_t w_t (Σ_t KL_t)(Σ_t s_t)"
    elif form.credit == "sequence":
        reward = f"(Σ_t KL_t)(Σ_t {score})"
    else:
        reward = f"Σ_t {score} Σ_(u{'≥' if form.credit == 'to_go' else '>'}t) KL_u"
    mixed = f"a {reward} + {loss}" if term.is_mixed else f"{reward} + {loss}"
    expectation = {"reward": reward, "loss": loss, "reward_and_loss": mixed}[placement]
    known = case.ratio == "token" and not term.is_mixed
    known = known and (on_policy or (form.is_weighted and placement == "loss"))
    source = EQUATIONS.get(f"{estimator}.{placement}") if known else None
    where = f"KL_t = {estimator}; {source or 'the laboratory'}"
    return f"E_{samples}[{expectation}] = {term.formula}   ({where})"


# Advice: the first of table.ORDER in which the best form differs decides, and is named.


class _Choice(NamedTuple):
    """The forms that advice may name, the best first, and the measure that ranks them."""

    term: Judged
    forms: tuple[tuple[Judged, str], ...]
    over_models: bool

    @classmethod
    def of(cls, term: Judged, case: Case) -> "_Choice":
        """Return the forms of a case, ranked by a measure that the term has too."""
        over = term.over_models is not None
        return cls(term, table.advised(case, over_models=over), over)

    def order(self, each: Judged) -> tuple[float, ...]:
        """Return what the order of advice compares."""
        return each.order(over_models=self.over_models)

    def off(self, each: Judged) -> str:
        """Return the bias of a term in words, near the reference policy first."""
        near, far = map(percent, each.off(over_models=self.over_models))
        return f"{near} off near the reference policy and {far} far from it"

    @property
    def best(self) -> Judged:
        """Return the best form."""
        return self.forms[0][0]

    @property
    def equal(self) -> list[tuple[Judged, str]]:
        """Return the forms that only noise tells from the best."""
        return [each for each in self.forms if self.order(each[0])[:2] == self.order(self.best)[:2]]

    @property
    def listed(self) -> str:
        """Return the best forms in words."""
        return _either([_form(*each) for each in self.equal])

    @property
    def keeps(self) -> bool:
        """Return True if no form has less bias than the term."""
        return self.order(self.term)[:2] <= self.order(self.best)[:2]

    @property
    def where(self) -> str:
        """Return the measure in words."""
        if self.over_models:
            return f" (medians of {table.models():,} random models)"
        return " (in the laboratory)"


def advice(term: Judged, page: _Page | None = None) -> Remedy:
    """Return advice on a term: keep it, or the best forms by the order of advice, and why."""
    page = page or _Page()
    if term.by_prompt:
        return _without_deviation(term, page)
    choice, own_kl = _Choice.of(term, term.case), _own_kl(term, page)
    if choice.keeps:
        return Remedy(_keep(choice, page, own_kl), ())
    more = _simpler(choice, page) + _under_rloo(term, page)
    slots = {"reason": _reason(choice), "trade": more, "own_kl": own_kl}
    text = page.say("advice", "use", first=_first(term, page), use=f" {choice.listed}", **slots)
    by = table.decides(choice.best, term, over_models=choice.over_models)
    return Remedy(text, tuple(each.row.label for each, _ in choice.equal), by)


def _keep(choice: _Choice, page: _Page, own_kl: str) -> str:
    term = choice.term
    quieter = [_form(*each) for each in choice.equal if choice.order(each[0]) < choice.order(term)]
    more = f" With less noise than its {term.row.noise_near:.2g}: {_either(quieter)}."
    reason = f"no form that orch advises has less bias; it is {choice.off(term)}{choice.where}"
    slots = {
        "while": " while training stays on-policy" if term.case.on_policy else "",
        "reason": "it is unbiased" if term.row.is_unbiased else reason,
        "quieter": more if quieter else "",
        "own_kl": own_kl,
    }
    return page.say("advice", "keep", **slots)


def _without_deviation(term: Judged, page: _Page) -> Remedy:
    """Return advice on a term that the group's deviation divides: what to use under rloo."""
    row = term.row
    plain = table.judged(row.estimator, row.placement, term.case._replace(advantage="rloo"))
    instead, divided = _Choice.of(plain, plain.case), _Choice.of(term, term.case)
    if plain.row.is_unbiased:
        text = page.say("advice", "undivided", reason="then it is unbiased, with one β")
    elif instead.keeps:
        reason = f"then it has one β, and is {instead.off(plain)}{instead.where}"
        text = page.say("advice", "undivided", reason=reason)
    else:
        text = page.say("advice", "other", use=instead.listed, reason=_reason(instead))
    text += page.say("advice", "under_grpo", use=divided.listed)
    return Remedy(text, tuple(each.row.label for each, _ in divided.equal), table.ORDER[0])


def _simpler(choice: _Choice, page: _Page) -> str:
    """Return the best forms that need nothing, if the best of all need something."""
    order = choice.order
    free = [e for e, needs in choice.forms if not needs and order(e)[:2] < order(choice.term)[:2]]
    if not free or not all(needs for _, needs in choice.equal):
        return ""
    equal = [_form(each, "") for each in free if order(each)[:2] == order(free[0])[:2]]
    return page.say("advice", "simpler", use=_either(equal), off=choice.off(free[0]))


def _under_rloo(term: Judged, page: _Page) -> str:
    """Return what a sum of unequal parts is where the group's mean leaves its parts whole."""
    if not term.is_mixed:
        return ""
    row = term.row
    plain = table.judged(row.estimator, row.placement, term.case._replace(advantage="rloo"))
    if not plain.row.is_unbiased:
        return ""
    instead = f"{row.estimator} in {_place(row.placement)} is unbiased"
    return page.say("advice", "under_rloo", instead=instead)


def _own_kl(term: Judged, page: _Page) -> str:
    """Return what the policy's own KL in the reward makes of a term with the sampler's KL.

    It is empty unless that is less.
    """
    case, row = term.case, term.row
    if case.on_policy or row.reward_kl_of != "rollout":
        return ""
    own = table.judged(row.estimator, row.placement, case._replace(reward_kl_of="policy"))
    of_own = _Choice.of(own, own.case)
    if of_own.order(own)[:2] >= _Choice.of(term, case).order(term)[:2]:
        return ""
    less = of_own.off(own)
    words = f"{row.estimator} in {_place(row.placement)} is"
    instead = f"{words} {'unbiased' if own.row.is_unbiased else less}"
    return page.say("advice", "own_kl", instead=instead)


def _first(term: Judged, page: _Page) -> str:
    """Return what the objective asked for is good for, before another is advised."""
    form, row = entry(term.row.estimator), term.row
    if form.credit == "later" and row.placement != "reward_and_loss":
        lead = page.say("advice", "both_parts", estimator=row.estimator)
    else:
        lead = ""
    kind = str(row.objective)
    name = kind if kind in sentences()["first"] else "other"
    return lead + page.say("first", "zero" if row.is_noise else name)


def _form(each: Judged, needs: str) -> str:
    """Return `rb in both (noise 0.33; needs the vocabulary's probabilities)`."""
    row, more = each.row, f"; needs {needs}" if needs else ""
    return f"{row.estimator} in {_place(row.placement)} (noise {row.noise_near:.2g}{more})"


def _place(placement: Placement) -> str:
    return "both" if placement == "reward_and_loss" else f"the {placement}"


def _either(texts: Sequence[str]) -> str:
    return " or ".join(filter(None, (", ".join(texts[:-1]), *texts[-1:])))


def _reason(choice: _Choice) -> str:
    """Return the biases of the best form and of the term."""
    best, term = choice.best, choice.term
    if best.row.is_unbiased:
        return f"unbiased, where this is {choice.off(term)}{choice.where}"
    near, far = map(percent, term.off(over_models=choice.over_models))
    return f"{choice.off(best)}, where this is {near} and {far} off{choice.where}"


# Notes.


def _advantage_notes(kl: Kl, case: Case, page: _Page) -> Iterator[str]:
    """Yield the effects of the advantage's baseline and normalisation on the term."""
    in_reward, in_loss = kl.placement != "loss", kl.placement != "reward"
    if case.advantage == "reinforce" and in_reward:
        yield page.say("note", "no_baseline")
    if case.kept != 1:
        places = {(True, False): "reward", (False, True): "loss"}
        name = f"mean_in_{places.get((in_reward, in_loss), 'both')}"
        yield page.say("note", name, kept=_kept(case))
    if case.advantage != "grpo":
        return
    size = case.group_size or GROUP_SIZE
    half, tenth = (group_std(solved, size) for solved in (0.5, 0.1))
    if in_reward:
        yield page.say(
            "note",
            "std_in_reward",
            group=size,
            half=f"{half.beta_in_reward:.2g}",
            tenth=f"{tenth.beta_in_reward:.2g}",
            equal_half=percent(half.equal),
            equal_tenth=percent(tenth.equal),
            all_half=f"{half.over_all(0.01):.2g}",
            all_tenth=f"{tenth.over_all(0.01):.2g}",
        )
    if in_loss:
        numbers = {"half": f"{half.beta_in_loss:.2g}", "tenth": f"{tenth.beta_in_loss:.2g}"}
        yield page.say("note", "std_in_loss", group=size, **numbers)
    cosines = (table.fact(f"length_cosine_{name}") for name in ("reward", "loss"))
    texts = [f"{median:.2g} ({worst:.2g} in one of twenty)" for median, worst in cosines]
    which = {"reward": f"{texts[0]} for k1 in the reward", "loss": f"{texts[1]} for k3 in the loss"}
    cosines_of = [which[each] for each in which if kl.placement in (each, "reward_and_loss")]
    yield page.say("note", "lengths", asked=", ".join(cosines_of))


def _off_policy_notes(kl: Kl, clip: Clip | None, case: Case, page: _Page) -> Iterator[str]:
    """Yield the effects of importance ratio, clip and staleness on the term, off-policy."""
    form = entry(kl.estimator)
    if kl.placement != "loss":
        if case.ratio == "token":
            yield page.say("note", "token_ratio")
        if case.ratio == "token" and clip is not None:
            yield page.say("note", "clip", low=1 - clip.low, high=1 + clip.high)
        if case.reward_kl_of == "rollout":
            yield page.say("note", "lag_of_k1" if form.base == "k1" else "lag")
    if kl.placement != "reward" and not (form.is_weighted or form.is_of_vocabulary):
        yield page.say("note", "no_ratio")
    if kl.placement != "reward" and form.is_weighted:
        near, far = (percent(table.fact("old_policy_ratio_off", at)[0]) for at in _REGIMES)
        yield page.say("note", "three_policies", near=near, far=far)


_REGIMES = ("near", "far")
_MULTIPLIED = {"policy_loss": "the policy loss", "kl": "the KL in the loss"}


def _other_notes(kl: Kl, correction: EngineCorrection | None, page: _Page) -> Iterator[str]:
    if correction is not None:
        both = "the policy loss and the KL in the loss"
        what = _MULTIPLIED.get(correction.applies_to, both)
        yield page.say("note", "correction", kind=correction.kind, what=what)
    if not table.is_stored(kl.estimator):
        yield page.say("note", "derived_now", estimator=kl.estimator)


# `orch explain`.


SYMBOLS = (
    "q is the policy, p the reference policy, μ the rollout policy; w_t = q/μ and s_t = ∇ log q\n"
    "of token t; c is the state before it. Noise is without a baseline."
)
"""The symbols of formulas and equations, in words."""
PLACEMENTS: Mapping[str, Placement] = {
    "reward": "reward",
    "loss": "loss",
    "both": "reward_and_loss",
    "reward_and_loss": "reward_and_loss",
}
"""A person's word for a placement -> the placement."""
_NOISE = (
    "near the reference policy one sequence's gradient scatters by {:.2g} lengths of the "
    "sequence-level reverse KL's"
)
_TRAINED = {"of": "as", "under": "under"}
"""What the paper trained, if it is not what was asked for -> the word before it."""
COLUMNS = ("estimator", "in", "policy", "gradient of", "bias near", "far", "noise", "paper")
"""The columns of `summary_row`."""


def explanation(
    estimator: str,
    placement: str | None,
    *,
    off_policy: bool,
    advantage: AdvantageEstimator,
    group_size: int | None,
    ratio: str,
    reward_kl_of: str,
) -> dict[str, Any]:
    """Return the verdict as plain data, with the estimator, the placement and the sampling.

    placement: a word of PLACEMENTS, or None for no KL.
    """
    if estimator == NONE or placement is None:
        kl = Kl(estimator=NONE)
    else:
        kl = Kl(estimator=estimator, placement=PLACEMENTS[placement], beta=1.0)
    result = verdict(
        kl,
        on_policy=not off_policy,
        advantage=advantage,
        group_size=group_size,
        clip=Clip(),
        ratio=ratio,
        reward_kl_of=reward_kl_of,
    )
    term = {"estimator": kl.estimator, "placement": kl.placement, "on_policy": not off_policy}
    words = ""
    if kl.placement is not None:
        case = Case(not off_policy, ratio, reward_kl_of, advantage, group_size)
        words = table.judged(kl.estimator, kl.placement, case).words
    paper = asdict(result.paper) | {"source": result.paper.source}
    own = {"bias": result.bias._asdict(), "gradient_of": words, "paper": paper}
    return term | asdict(result) | own


def every_explanation(*, off_policy: bool, **options: Any) -> list[dict[str, Any]]:
    """Return the explanation of every estimator of the table in every placement.

    Each is on-policy and off-policy, or only off-policy if `off_policy` is true. `options` are
    those of `explanation`.
    """
    return [
        explanation(estimator, placement, off_policy=off, **options)
        for off in ((True,) if off_policy else (False, True))
        for estimator in choices()
        for placement in (("reward", "loss", "both") if estimator != NONE else (None,))
    ]


def labelled_sentences(
    explained: Mapping[str, Any], *, everything: bool = True
) -> Iterator[tuple[str, str]]:
    """Yield label and text of each part of an explanation, in the order to print.

    The answer comes first: advice and notes. `everything`: what is behind it follows.
    """
    yield "advice", explained["advice"]["text"]
    for note in explained["notes"]:
        yield "note", note
    if everything:
        yield from _behind(explained)


def _behind(explained: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if explained["placement"]:
        form = TABLE[explained["estimator"]]
        yield "estimator", f"{form.name} = {form.formula}, with r = p/q ({form.source})"
    yield "objective", str(explained["objective"])
    if explained["placement"]:
        yield "equation", explained["equation"]
        yield "bias", explained["bias"]["text"]
        divided = ", before the deviation divides it" if explained["bias"]["near"] is None else ""
        yield "noise", _NOISE.format(explained["noise"]) + divided
    paper = explained["paper"]
    source = f" ({paper['source']})" if paper["source"] else ""
    yield "paper", f"{paper['behaviour']}: {paper['text']}{source}"
    for reason in explained["reasons"]:
        yield "because", reason
    for condition in explained["checked"]:
        yield "checked", condition


def summary_row(explained: Mapping[str, Any]) -> tuple[str, ...]:
    """Return one explanation as a row of the table with the columns COLUMNS."""
    placement, paper = explained["placement"], explained["paper"]
    biases = (explained["bias"]["near"], explained["bias"]["far"])
    return (
        explained["estimator"],
        (placement or "-").replace("reward_and_loss", "both"),
        "on" if explained["on_policy"] else "off",
        explained["gradient_of"] or "-",
        *("by prompt" if bias is None else percent(bias) for bias in biases),
        f"{explained['noise']:.2g}",
        ", ".join(
            (
                paper["behaviour"],
                *(f"{word} {paper[each]}" for each, word in _TRAINED.items() if paper[each]),
            )
        ),
    )
