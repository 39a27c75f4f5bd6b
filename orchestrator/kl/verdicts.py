"""Verdicts on KL terms: the row of the table for the configuration that was asked for, in words.

`verdict` judges a term: the objective of its gradient, its bias and noise, the forms that do
better, and what the advantage, the clip and old samples do to it. `verdict_of` judges a cell.
`explanation` and the functions after it answer `orch explain`. The numbers are those of table.py.
The module does not import NumPy, because `orch plan` needs thousands of verdicts quickly.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any

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

CHECKED = """
objective: finite differences on random models of 2 to 5 words and 1 to 5 tokens, with and without \
an end token, of three policies
the headline's numbers and noise: exact, on the laboratory's model of two parameters, 32 tokens, \
0.08 (near) and 18 nats (far) from the reference policy, old samples from one tenth nearer it
signs, medians and cosines: random models of 2 to 5 words and 1 to 5 tokens, or of the laboratory, \
with a rollout policy that lags, leads or stands aside; a tenth of the true pull is a sign
groups: written out, rewards of 0 and 1, the deviation with the divisor G - 1
advice: by bias near the reference policy, then bias far from it, then noise""".strip().split("\n")
"""What the sentences and numbers were checked under."""


@dataclass(frozen=True, slots=True)
class Bias:
    """The distance of the expected gradient from the gradient of the sequence reverse KL.

    Its unit is the length of the gradient of the sequence reverse KL; 0 is unbiased. It is exact on
    the laboratory's model with T = 32, `near` the reference policy (0.08 nats) and `far` from it
    (18 nats). None if the group's deviation gives each prompt a number of its own.
    """

    text: str
    near: float | None
    far: float | None


@dataclass(frozen=True, slots=True)
class ComparedForm:
    """A term of the comparison behind advice: medians of biases over random models, where the term
    that was asked for has them, else those of the laboratory."""

    term: str
    near: float
    far: float
    noise: float
    needs: str = ""


@dataclass(frozen=True, slots=True)
class Remedy:
    """Advice in words, with the labels of the recommended terms (none: keep the term)."""

    text: str
    use: tuple[str, ...] = ()
    forms: tuple[ComparedForm, ...] = ()
    """The term that was asked for, and the forms that the order of advice puts before it."""
    over_models: bool = False
    """True if the biases of `forms` are medians over random models."""


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

    `ratio` and `reward_kl_of`: see table.Case. `regimes`: the paper's experiments to cite (empty:
    all on- or off-policy ones). `reference_at_one`: the temperature of the policy's
    log-probabilities where the reference policy's are at 1 instead. Raise LaboratoryError for a
    combination without meaning, for example the sequence ratio with both placements.

    Derive an estimator that verdicts.json lacks now. That loads NumPy and takes some tenths of a
    second.
    """
    like = regimes or (("on_policy",) if on_policy else ("minibatches", "async"))
    if kl.placement is None or kl.beta == 0:
        return _no_kl(kl, _studied("none", advantage, like))
    case = Case(on_policy, ratio, reward_kl_of, advantage, group_size)
    term = table.judged(kl.estimator, kl.placement, case)
    row = term.row
    paper = _observed(kl, case, like) if ratio == "token" else NOT_STUDIED
    notes = [*_of_advantage(kl, case), *_of_old_samples(kl, clip, case)]
    if correction is not None:
        notes.append(_of_correction(correction))
    if not table.is_stored(kl.estimator):
        notes.append(f"derived now by the laboratory: verdicts.json has no row on {kl.estimator}")
    if reference_at_one is not None:
        notes.append(_REFERENCE_AT_ONE.format(f"{reference_at_one:g}"))
    return GradientVerdict(
        objective=row.objective,
        summary=f"{_asked(kl, case)}: {_headline(term)}. Paper: {paper}",
        bias=_bias(term),
        paper=paper,
        equation=equation(term, kl.estimator, kl.placement),
        advice=advice(term),
        notes=tuple(notes),
        terms=row.terms,
        plain=_plain(term),
        pull=row.near.pull,
        noise=row.noise_near,
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
    why = "no KL term" if kl.estimator == NONE else f"{kl.label} with β = 0: no KL term"
    return GradientVerdict(
        objective=ObjectiveKind.NONE,
        summary=f"{why}: nothing keeps the policy near the reference policy. Paper: {paper}",
        bias=Bias("there is no KL term whose gradient could be biased", 0.0, 0.0),
        paper=paper,
        equation="0",
        advice=Remedy("Keep it as the baseline of the others."),
        plain="Nothing pulls the policy back.",
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
        return f"1 - 1/G ({case.kept:.3g} with G = {GROUP_SIZE})"
    return f"1 - 1/{case.group_size} = {case.kept:.3g}"


def _headline(term: Judged) -> str:
    row, case = term.row, term.case
    if row.is_noise:
        return "no gradient in expectation: noise, and no regularisation"
    if term.by_prompt and term.is_mixed:
        own = "each prompt has its own a: the group's deviation divides the reward's part"
        return f"{term.words}, where {own}"
    if term.by_prompt:
        return f"{term.words}, divided by the group's deviation: each prompt has a β of its own"
    text = f"{term.words}, a = {_kept(case)}" if term.is_mixed else term.words
    if row.is_unbiased:
        text += ", unbiased"
    else:
        text += (
            f"; biased: on the paper's small model {row.near.pull:.2g} × the reverse KL's gradient "
            f"near the reference policy (and {percent(row.near.across)} across it), "
            f"{row.far.pull:.2g} × far from it (and {percent(row.far.across)} across it)"
        )
    if case.kept == 1 or term.is_mixed:
        return text
    if row.placement != "loss":
        return f"{text}; scaled by {_kept(case)}, as the task reward is"
    if case.advantage == "grpo":
        return f"{text}, against rewards that are divided by the group's deviation"
    assumed = "" if case.group_size else f" with G = {GROUP_SIZE}"
    return f"{text}, and β counts × {1 / case.kept:.3g}{assumed}"


def _bias(term: Judged) -> Bias:
    row = term.row
    if row.is_unbiased:
        text = "unbiased: in expectation it is the gradient of the sequence-level reverse KL"
    else:
        near, far = percent(row.near.bias), percent(row.far.bias)
        text = f"off by {near} of that gradient's length near the reference policy and {far} far"
        if (medians := term.over_models) is not None:
            near, far = map(percent, medians)
            text += f"; over {table.models():,} random models by {near} and {far} (medians)"
    if term.by_prompt:
        return Bias(f"before the group's deviation divides it: {text}", None, None)
    return Bias(text, row.near.bias, row.far.bias)


MOST = 0.9
"""A sign is stated as a rule if it holds in this share of the random models or more."""
_SIGNS = {
    "attracts": ("it pulls back", 1),
    "repels": ("it pushes away", -1),
    "neither": ("it does not pull", 0),
}


def _plain(term: Judged) -> str:
    row = term.row
    if row.is_noise:
        return "Does not pull at all: it only adds noise."
    shares = None if term.is_mixed else table.signs(row)
    if row.is_unbiased:
        text = "Pulls as the true KL does, near the reference policy and far from it."
    elif shares is None:
        near, far = percent(row.near.pull), percent(row.far.pull)
        text = (
            f"On the paper's model of two parameters it has {near} of the true pull near the "
            f"reference policy and {far} far from it."
        )
    else:
        (near, of_near), (far, of_far) = (
            _sign(shares[at], getattr(row, at).pull) for at in ("near", "far")
        )
        of = f"{of_near} of {table.models():,} random models of 2 to 5 words"
        text = f"Near the reference policy {near} ({of}). Far from it, {far} ({of_far})."
    if any(key == "sampled_k1" for _, key in row.terms):
        it = "It" if len(row.terms) == 1 else "A part of it"
        text = f"{it} pushes away from the rollout policy, wherever that is. {text}"
    if term.by_prompt:
        return f"Pulls with a strength of each prompt's own. Before the division: {text}"
    return text


def _sign(shares: Mapping[str, float], in_laboratory: float) -> tuple[str, str]:
    """Return the sign in words and its share, or the shares where no sign is a rule.

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
    samples, score = ("q", "s_t") if case.on_policy else ("μ", "w_t s_t")
    loss = "Σ_t ∇KL_t"
    if case.ratio == "sequence_mean":
        reward = "(Π_t w_t)^(1/T) (Σ_t KL_t)(Σ_t s_t)"
    elif case.ratio == "sequence":
        reward = "Π_t w_t (Σ_t KL_t)(Σ_t s_t)"
    elif form.credit == "sequence":
        reward = f"(Σ_t KL_t)(Σ_t {score})"
    else:
        reward = f"Σ_t {score} Σ_(u{'≥' if form.credit == 'to_go' else '>'}t) KL_u"
    both = f"{'a ' if term.is_mixed else ''}{reward} + {loss}"
    expectation = {"reward": reward, "loss": loss, "reward_and_loss": both}[placement]
    known = case.ratio == "token" and not term.is_mixed
    known = known and (case.on_policy or (form.is_weighted and placement == "loss"))
    source = EQUATIONS.get(f"{estimator}.{placement}") if known else None
    where = f"KL_t = {estimator}; {source or 'the laboratory'}"
    return f"E_{samples}[{expectation}] = {term.formula}   ({where})"


# Advice: the first number of Judged.order in which the best form differs decides.


_GOOD_FOR = {
    "token_reverse_kl": "It is a reverse KL of each token at the states visited, and leaves out "
    "what a token does to later states. ",
    "token_forward_kl": "It pulls towards covering the reference policy, token by token. ",
    "zero": "It regularises nothing. ",
}
"""An objective -> what is said of it before another is advised."""


def advice(term: Judged) -> Remedy:
    """Return advice on a term: keep it, or the best forms by the order of advice."""
    if term.by_prompt:
        return _without_deviation(term)
    over, row = term.over_models is not None, term.row
    order = term.order(over_models=over)
    before = [
        each
        for each in table.advised(term.case, over_models=over)
        if each[0].order(over_models=over) < order
    ]
    forms = [_form("this", term, over)]
    forms += [_form(each.row.label, each, over, needs) for each, needs in before]
    forms += _elsewhere(term, over)
    less = [each for each, _ in before if each.order(over_models=over)[:2] < order[:2]]
    if not less:
        so = "it is unbiased" if row.is_unbiased else "no form that orch advises has less bias"
        while_ = " while training stays on-policy" if term.case.on_policy else ""
        less_noise = [each for each, _ in before]
        quieter = f" With less noise: {_listed(less_noise)}." if before else ""
        return Remedy(f"Keep it{while_}: {so}.{quieter}", forms=tuple(forms), over_models=over)
    least = less[0].order(over_models=over)[:2]
    best = [each for each in less if each.order(over_models=over)[:2] == least]
    lead = _GOOD_FOR.get(str(row.objective), "")
    if entry(row.estimator).credit == "later" and row.placement != "reward_and_loss":
        lead = f"{row.estimator} is made for the reward and the loss together. {lead}"
    how = "unbiased" if best[0].row.is_unbiased else "the least biased"
    how = f"it is {how}" if len(best) == 1 else f"all are {how}"
    text = f"{lead}For the response's reverse KL use {_listed(best)}: {how}."
    use = tuple(each.row.label for each in best)
    return Remedy(text, use, tuple(forms), over)


def _form(name: str, each: Judged, over: bool, needs: str = "") -> ComparedForm:
    return ComparedForm(name, *each.off(over_models=over), each.row.noise_near, needs)


def _elsewhere(term: Judged, over: bool) -> Iterator[ComparedForm]:
    """Yield the term under another option, where it has less bias."""
    row, case = term.row, term.case
    if term.is_mixed:
        other, needs = case._replace(advantage="rloo"), "the advantage rloo"
    elif not case.on_policy and row.reward_kl_of == "rollout":
        other, needs = case._replace(reward_kl_of="policy"), "--reward-kl-of policy"
    else:
        return
    each = table.judged(row.estimator, row.placement, other)
    if each.order(over_models=over)[:2] < term.order(over_models=over)[:2]:
        yield _form(row.label, each, over, needs)


def _without_deviation(term: Judged) -> Remedy:
    """Return advice on a term that the group's deviation divides: what to use under rloo."""
    row = term.row
    plain = advice(table.judged(row.estimator, row.placement, term.case._replace(advantage="rloo")))
    over = term.over_models is not None
    divided = [each for each, _ in table.advised(term.case, over_models=over)]
    least = divided[0].order(over_models=over)[:2]
    best = [each for each in divided if each.order(over_models=over)[:2] == least]
    instead = f" with {_either(list(map(_in_words, plain.use)))}" if plain.use else ""
    text = (
        f"Use the advantage rloo{instead}: then β is one number. Under grpo use {_listed(best)}: "
        "there the deviation divides the task reward alone."
    )
    return Remedy(
        text,
        tuple(each.row.label for each in best),
        tuple(replace(each, term=f"{each.term} under rloo") for each in plain.forms)
        + tuple(_form(f"{each.row.label} under grpo", each, over) for each in best),
        over,
    )


def _listed(best: list[Judged]) -> str:
    return _either([_in_words(each.row.label) for each in best])


def _in_words(label: str) -> str:
    """Return `k1 in the reward` for k1.reward."""
    estimator, _, place = label.partition(".")
    return f"{estimator} in {'both' if place == 'both' else f'the {place}'}"


def _either(texts: list[str]) -> str:
    return " or ".join(filter(None, (", ".join(texts[:-1]), *texts[-1:])))


# Notes: what the rest of a loss does to the term.

_REFERENCE_AT_ONE = (
    "the KL is of the policy at temperature {0} to the reference policy at temperature 1: it is "
    "not 0 where the two are equal, and is least where the policy's logits are {0} times the "
    "reference's"
)


def _of_advantage(kl: Kl, case: Case) -> Iterator[str]:
    """Yield what the advantage's baseline and normalisation do to the term."""
    in_reward, in_loss = kl.placement != "loss", kl.placement != "reward"
    if case.advantage == "reinforce" and in_reward:
        yield "reinforce subtracts no baseline: the KL keeps its full variance"
    if case.kept != 1:
        shrunk = "the task reward and the KL in the reward" if in_reward else "the task reward"
        own = ", but not a KL in the loss: its β counts that much more" if in_loss else ""
        yield f"the group's mean, its own rollout included, shrinks {shrunk} to {_kept(case)}{own}"
    if case.advantage != "grpo":
        return
    size = case.group_size or GROUP_SIZE
    half, tenth = (group_std(solved, size) for solved in (0.5, 0.1))
    if in_reward:
        yield (
            f"in the reward β 0.01 counts × {half.over_all(0.01):.2g} at 50% solved and × "
            f"{tenth.over_all(0.01):.2g} at 10% in groups of {size}, for a normal KL of deviation "
            f"1: in groups of equal rewards ({percent(half.equal)} at 50%, {percent(tenth.equal)} "
            "at 10%) the KL is scaled to unit size, whatever β; with a filter of such groups × "
            f"{half.beta_in_reward:.2g} and × {tenth.beta_in_reward:.2g} at every β"
        )
    if in_loss:
        yield (
            f"in the loss β counts in units of the group's deviation: × {half.beta_in_loss:.2g} at "
            f"50% solved and × {tenth.beta_in_loss:.2g} at 10% in groups of {size}"
        )
    cosines = []
    for place, which in (("reward", "k1 in the reward"), ("loss", "k3 in the loss")):
        if kl.placement in (place, "reward_and_loss"):
            median, worst = table.fact(f"length_cosine_{place}")
            cosines.append(f"{median:.2g} ({worst:.2g} in one of twenty) for {which}")
    yield (
        "GRPO's 1 / length turns the gradient where lengths vary: its cosine with that of token "
        f"sums is {', '.join(cosines)}"
    )


def _of_old_samples(kl: Kl, clip: Clip | None, case: Case) -> Iterator[str]:
    """Yield what importance ratio, clip and staleness do to the term, off-policy."""
    if case.on_policy:
        return
    form, by_token = entry(kl.estimator), case.ratio == "token"
    if kl.placement != "loss" and by_token:
        yield (
            "the token-level ratio biases a KL in the reward: it corrects a token, but not the "
            "states before it"
        )
    if kl.placement != "loss" and by_token and clip is not None:
        yield (
            f"a token whose ratio the clip [{1 - clip.low:g}, {1 + clip.high:g}] cuts gets no "
            "gradient at all from a KL in the reward"
        )
    if kl.placement != "loss" and case.reward_kl_of == "rollout":
        k1 = ", and is k1 to the reference policy minus k1 to the rollout policy"
        yield (
            "the KL in the reward is the rollout policy's, computed once per batch: it lags by "
            f"the staleness{k1 if form.base == 'k1' else ''}"
        )
    if kl.placement != "reward" and form.is_weighted:
        near, far = (percent(table.fact("old_policy_ratio_off", at)[0]) for at in ("near", "far"))
        yield (
            "its ratio must be policy / rollout policy: a ratio to the trainer's old policy, on "
            f"samples of an engine that rounds otherwise, is {near} off near the reference policy "
            f"and {far} far from it (medians of the random models); times old policy / engine it "
            "is exact"
        )
    elif kl.placement != "reward" and not form.is_of_vocabulary:
        yield "a loss without an importance ratio is a mean over the rollout policy"


def _of_correction(correction: EngineCorrection) -> str:
    what = {"policy_loss": "the policy loss", "kl": "the KL in the loss"}.get(
        correction.applies_to, "the policy loss and the KL in the loss"
    )
    return (
        f"the correction of the engine's mismatch ({correction.kind}) multiplies {what}, and so "
        "changes how much β counts"
    )


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
COLUMNS = ("estimator", "in", "policy", "gradient of", "bias near", "far", "noise", "paper")
"""The columns of `summary_row`."""
FORM_COLUMNS = ("", "bias near", "far", "noise", "needs")
"""The columns of `form_rows`."""


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
    case = Case(not off_policy, ratio, reward_kl_of, advantage, group_size)
    result = verdict(kl, clip=Clip(), **case._asdict())
    words = ""
    if kl.placement is not None:
        words = table.judged(kl.estimator, kl.placement, case).words
    return {
        "estimator": kl.estimator,
        "placement": kl.placement,
        "on_policy": not off_policy,
        **asdict(result),
        "gradient_of": words,
        "paper": asdict(result.paper) | {"source": result.paper.source},
        "checked": CHECKED,
    }


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


def form_rows(explained: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Return the rows of FORM_COLUMNS: what the term and the forms before it are."""
    return [
        (
            each["term"],
            percent(each["near"]),
            percent(each["far"]),
            f"{each['noise']:.2g}",
            each["needs"],
        )
        for each in explained["advice"]["forms"]
    ]


def form_caption(explained: Mapping[str, Any]) -> str:
    """Return what the numbers of `form_rows` are."""
    biases = "on the paper's small model"
    if explained["advice"]["over_models"]:
        biases = f"the median of {table.models():,} random models"
    return (
        f"Bias: in lengths of the reverse KL's gradient, {biases}; near the reference policy and "
        "far from it. Noise: one response's standard deviation, near, in the same lengths."
    )


def behind(explained: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield label and text of what stands behind an explanation."""
    if explained["placement"]:
        form = TABLE[explained["estimator"]]
        yield "estimator", f"{form.name} = {form.formula}, with r = p/q ({form.source})"
    yield "objective", str(explained["objective"])
    if explained["placement"]:
        yield "equation", explained["equation"]
        yield "bias", explained["bias"]["text"]
    paper = explained["paper"]
    source = f" ({paper['source']})" if paper["source"] else ""
    yield "paper", f"{paper['behaviour']}: {paper['text']}{source}"
    yield from (("checked", condition) for condition in explained["checked"])


def summary_row(explained: Mapping[str, Any]) -> tuple[str, ...]:
    """Return one explanation as a row of the table with the columns COLUMNS."""
    paper = explained["paper"]
    biases = (explained["bias"]["near"], explained["bias"]["far"])
    trained = [f"as {paper['of']}"] if paper["of"] else []
    trained += [f"under {paper['under']}"] if paper["under"] else []
    return (
        explained["estimator"],
        (explained["placement"] or "-").replace("reward_and_loss", "both"),
        "on" if explained["on_policy"] else "off",
        explained["gradient_of"] or "-",
        *("by prompt" if bias is None else percent(bias) for bias in biases),
        f"{explained['noise']:.2g}",
        ", ".join((paper["behaviour"], *trained)),
    )
