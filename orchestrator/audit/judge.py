"""Judge a library's reading of a launch, using the verdicts of the KL laboratory.

The result is an `AuditFinding`: verdict, reasons, problems, changes.
"""

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from typing import Literal, NamedTuple

from orchestrator.analysis.text import MOST_NAMED, few
from orchestrator.audit import own_code
from orchestrator.audit.bounds import Bound, bound, bound_notes
from orchestrator.audit.checkout import DECIDES, ChangedCode, is_off, may_decide
from orchestrator.audit.code_beside import CodeBeside
from orchestrator.audit.key_check import KeyFinding, key_findings
from orchestrator.audit.libraries import marks
from orchestrator.audit.surroundings import (
    Effect,
    EffectiveBeta,
    effective_betas,
    effects,
    estimator_name,
    is_rescaled,
)
from orchestrator.audit.verdicts import PROBLEMS
from orchestrator.estimators import entry
from orchestrator.kl.catalogue import ObjectiveKind
from orchestrator.kl.table import Case, Judged, judged
from orchestrator.library.key_tables import version_tuple
from orchestrator.library.launches import (
    UNKNOWN,
    UNSET,
    AuditNote,
    AuditVerdict,
    BoundNote,
    CommandWord,
    Given,
    Inactive,
    InLoss,
    InReward,
    Launch,
    LaunchChange,
    LaunchReading,
    NamedRelease,
    OwnCode,
    ReadSetting,
    TrainingRegime,
)
from orchestrator.settings import AdvantageEstimator, Placement


@dataclass(frozen=True, slots=True)
class ConditionalVerdict:
    """The verdict on a launch under a condition, where one unknown fact decides."""

    when: str
    """The condition in words: `init_kl_coef ($KL) is 0`."""
    verdict: AuditVerdict
    term_verdict: AuditVerdict
    terms: str
    """The active KL terms: `k3 in the loss`; empty without one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditFinding(LaunchReading):
    """The finding for one launch of a file, in one case it can take: its reading, judged.

    `contradictions`, `rules` and `assumes` are the reading's, and more. `changes` has at most one:
    the first change after which the launch, read again, is not criticised.
    """

    file: str
    line: int
    case: str | None
    verdict: AuditVerdict
    why: str
    lines: tuple[int, ...]
    """Lines of the file that the verdict depends on, ascending."""
    term_verdict: AuditVerdict = "undetermined"
    """The on-policy verdict on the KL terms alone, without the effects of the rest of the loss."""
    otherwise: AuditVerdict | None = None
    """The verdict off-policy, if the regime is not known and the verdict depends on it."""
    effects: tuple[Effect, ...] = ()
    """Effects of the rest of the loss on the KL term."""
    effective_beta: tuple[EffectiveBeta, ...] = ()
    own: tuple[OwnCode, ...] = ()
    """Somebody's own code around the loss, which makes the verdict undetermined."""
    conditional: tuple[ConditionalVerdict, ...] = ()
    """For an undetermined launch: its verdict for every value of the unknown facts, if these are
    few. Empty if the verdict is known, or if some value leaves it unknown."""
    key_findings: tuple[KeyFinding, ...] = ()
    """Keys and values that the release does not accept in the intended way."""
    release_guessed: bool = False
    """True if nothing names the release: the launch's keys led to it."""
    of_release: str = ""
    """`as in verl 0.9.1`, where the code that trains may not be that release's: nothing names
    it, a fork's keys or functions are there, or a program that is not the library's. The number of
    updates, the bound and the mistakes are then told as the release has them."""
    bias: tuple[float | None, float | None] | None = None
    """The distance of the KL's gradient from that of the reverse KL, near the reference policy and
    far from it, in lengths of the latter (kl.table). None: the laboratory has no number."""

    order: tuple[float, float] | None = None
    """What the order of advice compares (kl.table): the KL's bias near and far, as medians over
    random models or in the laboratory. None: each prompt has its own, or there is no number."""

    hint: str = ""
    """Where a comment names a release, of a launch that nothing else names one of."""
    unverified: bool = False
    """True if the release that is named is newer than every release that orch has a table of."""
    changed_code: tuple[ChangedCode, ...] = ()
    """Functions of the library beside the script that are as in no release, and own loops."""
    moving_reference: str = ""
    """How the reference of a KL that acts follows the policy, a clause; empty: it stays."""
    bound: Bound | None = None
    """What holds the policy to what beside a KL to a reference policy; None: it is not read."""
    bound_notes: tuple[BoundNote, ...] = ()
    """Where a bound does not do what its name says."""
    for_a_kl: LaunchChange | None = None
    """Of a launch without a KL to a reference policy: the best change that gives it one."""

    @property
    def confidence(self) -> Literal["certain", "assumed", "conditional", "none"]:
        """Return `none`, `conditional`, `assumed` or `certain`.

        `none`: the verdict is undetermined. `conditional`: it is undetermined, and known for every
        value of the facts that decide. `assumed`: the verdict depends on the assumptions in
        `assumes`, or on a release that nothing names. `certain`: the verdict depends only on the
        file and the release that it, or its project, names.
        """
        if self.verdict == "undetermined":
            return "conditional" if self.conditional else "none"
        return "assumed" if self.assumes or self.release_guessed else "certain"

    @property
    def stops(self) -> list[str]:
        """Return why the launch would not start, the surest first; empty if nothing says so."""
        keys = [e.text for e in self.key_findings if e.consequence == "would not start"]
        return [each.text for each in self.contradictions if each.stops] + keys

    @property
    def problem(self) -> bool:
        """Return True if the KL term does not do what its name says, or the file has a mistake."""
        return (
            self.verdict in PROBLEMS
            or bool(self.contradictions)
            or any(each.mistake for each in self.key_findings)
        )


class Judgement(NamedTuple):
    """A verdict on the KL of a launch in one regime, its reason, and the laboratory's numbers."""

    name: AuditVerdict
    why: str
    measured: Judged | None = None


_OF_KIND: dict[ObjectiveKind, tuple[AuditVerdict, str]] = {
    ObjectiveKind.ZERO: (
        "zero_mean_noise",
        "its gradient is zero in expectation: it adds noise and regularises nothing",
    ),
    ObjectiveKind.TOKEN_FORWARD_KL: (
        "token_forward_kl",
        "its gradient is that of the forward KL of each token, not of the reverse KL it estimates",
    ),
    ObjectiveKind.TOKEN_REVERSE_KL: (
        "token_reverse_kl",
        "the gradient of the reverse KL of each token at the states visited",
    ),
    ObjectiveKind.SEQUENCE_REVERSE_KL: (
        "unbiased_reverse_kl",
        "the gradient of the sequence's reverse KL",
    ),
}
_OF_TERM: dict[str, tuple[AuditVerdict, str]] = {
    "sampled_k1": (
        "unlikelihood_of_old_samples",
        "it makes the rollout policy's samples less likely, whatever the reference policy",
    ),
    "sampled_k2": (
        "k2_of_old_samples",
        "the gradient of the mean of k2 over old samples, near that of each token's reverse KL",
    ),
    "sampled_k3": (
        "k3_of_old_samples",
        "the gradient of the mean of k3 over old samples, near that of each token's forward KL",
    ),
}
"""Verdict and words for a KL of old samples, by the term's key in the catalogue of objectives."""
_SURROGATES = ("ppo_k1", "ppo_k1@rollout_kl", "ppo_rho_k1", "frozen_k1")
"""Keys of PPO's surrogates of the sequence reverse KL."""
_CLOSES = ("fi", "done", "esac", "}")
"""Words that close what a shell script opens, on a line of their own."""
_SIZE = re.compile(
    r"(?!.*(?:\.rollout\.|micro|reward|_val)).*(?:batch_?size|num_updates|(ppo|train)_epochs)", re.I
)
"""A fork's key that may give the number of updates of a batch, and not of sampling or a part."""
_AGE = re.compile(r"partial_rollout|stale|off_?policy|async", re.I)
"""A fork's key that may train on samples of a policy before the present one."""
_ADVISED = re.compile(r"([A-Za-z_][\w.]*\.[\w.]+)=([\w.+-]+)")
"""A setting in the advice of a note: `a.b=c`."""


def judge(reading: LaunchReading, launch: Launch, file: str) -> AuditFinding:
    """Return the finding on a launch: its verdict, the reasons and the laboratory's numbers.

    The verdict is the on-policy one if the regime is not known. The finding then also has the
    off-policy verdict, if the two differ.
    """
    wrong_keys = tuple(_wrong_keys(reading, launch))
    reading = _with_fork_sizes(reading, wrong_keys)
    on, old = _judgement(reading, on_policy=True), _judgement(reading, on_policy=False)
    chosen = old if reading.regime.on_policy is False else on
    beside = CodeBeside(reading, launch)
    forks = _deciding(reading, wrong_keys, beside)
    if_left: tuple[ConditionalVerdict, ...] = ()
    if forks and chosen.name != "undetermined":
        if_left = (_if_left(reading, chosen, forks),)
        on = old = chosen = Judgement("undetermined", beside.forks_decide(forks))
    if launch.own:
        if_left, on = (), Judgement("undetermined", own_code.why(launch.own, reading.sampler))
        old = chosen = on
    depends = reading.regime.on_policy is None and (on.name, on.measured) != (
        old.name,
        old.measured,
    )
    if_old = (
        f"training is on-policy ({reading.regime.because}). Off-policy: {old.name}, for {old.why}"
    )
    why = chosen.why
    cut = launch.cut_off
    if cut is not None and not cut.refused and any("kl" in flag.lower() for flag in cut.flags):
        why += f" (its KL flags from line {cut.line} on are cut off: see the conflict)"
    contradictions = tuple(_contradictions(reading, launch))
    cited: list[ReadSetting | AuditNote | Inactive | KeyFinding] = [
        *reading.settings,
        *contradictions,
        *reading.inactive,
        *wrong_keys,
    ]
    has_kl = chosen.name not in ("no_kl", "undetermined")
    own_loops = (
        ChangedCode(f"its own {e.name}", ("kl",)) for e in launch.apart if e.kind == "trainer"
    )
    assumes = dict.fromkeys(
        (
            *(f"{e.name} ({e.where or e.how}) has no KL of its own" for e in launch.apart),
            *reading.assumes,
            *launch.caveats,
            *_mended(launch, contradictions),
            *own_code.taken_for_granted(launch, reading),
            *beside.changed(),
            *_assumed(wrong_keys, beside),
            *(_unread(reading) if has_kl else ()),
            *_without_a_table(reading, launch),
            *([if_old] if depends else ()),
        )
    )
    judged_too = {
        "contradictions": contradictions,
        "changes": () if launch.own else tuple(e for e in reading.changes if beside.takes(e)),
        "assumes": tuple(assumes),
    }
    return AuditFinding(
        **{each.name: getattr(reading, each.name) for each in fields(reading)} | judged_too,
        file=file,
        line=launch.line,
        case=launch.case,
        verdict=chosen.name,
        why=why,
        lines=tuple(sorted({launch.line, *(n for each in cited for n in each.lines)})),
        term_verdict=_term(reading).name,
        otherwise=old.name if depends else None,
        effects=() if launch.own else effects(reading),
        effective_beta=() if launch.own else effective_betas(reading),
        key_findings=wrong_keys,
        release_guessed=_is_guessed(reading, launch),
        of_release=_of_release(reading, launch, beside, wrong_keys),
        bias=_bias(chosen.measured),
        order=_order(chosen.measured),
        own=launch.own,
        conditional=if_left,
        unverified=_is_newer(reading, launch),
        moving_reference=_moving_reference(reading),
        changed_code=(*beside.changed_code, *own_loops),
        bound=None if own_code.called(launch.own) == "loss" else bound(reading),
        bound_notes=tuple(_bound_notes(reading, launch)),
    )


def _bound_notes(reading: LaunchReading, launch: Launch) -> Iterator[BoundNote]:
    """Yield the notes on a bound whose advice the release's own table takes."""
    keys = reading.held
    for note in bound_notes(reading) if own_code.called(launch.own) != "loss" else ():
        advised = [] if keys is None else _ADVISED.findall(note.instead)
        given = {key: (Given(value),) for key, value in advised if keys and key not in keys.given}
        if not given or not keys or not [*key_findings(replace(keys, given=given))]:
            yield note


def _moving_reference(reading: LaunchReading) -> str:
    acts = reading.in_reward.active or (reading.in_loss.active and not reading.no_gradient)
    return reading.surroundings.moving_reference if acts and reading.surroundings else ""


def _deciding(
    reading: LaunchReading, keys: Iterable[KeyFinding], beside: CodeBeside
) -> tuple[str, ...]:
    """Return the keys of a fork that name the KL, its reference, its size or the policy loss, and
    that the checkout's code of these, where it is at hand, reads."""
    given = reading.given
    return tuple(
        each.key
        for each in keys
        if each.fork and may_decide(each.key, given[each.key][-1]) and beside.decides(each.key)
    )


def _with_fork_sizes(reading: LaunchReading, keys: Iterable[KeyFinding]) -> LaunchReading:
    """Return the reading; of unknown regime if a key of a fork may be the batch or age samples."""
    own = [each.key for each in keys if each.fork]
    whys = [f"{key} is a fork's key and may be the batch" for key in own if _SIZE.match(key)]
    if reading.regime.on_policy is not False:
        old = (key for key in own if _AGE.search(key) and not is_off(reading.given[key][-1]))
        whys += [f"{key} is a fork's key and may make the samples old" for key in old]
    if not whys:
        return reading
    around = reading.surroundings
    around = around and replace(around, one_update=False)
    return replace(reading, regime=TrainingRegime(None, whys[0]), surroundings=around)


def _if_left(
    reading: LaunchReading, chosen: Judgement, keys: tuple[str, ...]
) -> ConditionalVerdict:
    """Return the verdict where a fork's keys leave the KL as the library has it."""
    when = f"{', '.join(keys[:MOST_NAMED])} leaves the KL as the library has it"
    return ConditionalVerdict(
        when, chosen.name, _term(reading).name, terms_text(reading.in_reward, reading.in_loss)
    )


def terms_text(in_reward: InReward, in_loss: InLoss) -> str:
    """Return the active KL terms without their weights, which may be those of a case."""
    places = (("reward", in_reward), ("loss", in_loss))
    return " and ".join(f"{term.estimator} in the {place}" for place, term in places if term.active)


def _wrong_keys(reading: LaunchReading, launch: Launch) -> Iterator[KeyFinding]:
    """Yield the findings on the keys, without names that the code beside the script registers."""
    keys = reading.held
    if keys is None:
        return
    registered = " ".join(each.how for each in launch.own if each.path)
    named = _named_as(reading, launch) == "named"
    for each in key_findings(
        replace(keys, pinned=named and keys.exact and not (keys.guessed or keys.open))
    ):
        texts = [repr(given.text) for given in keys.given.get(each.key, ())]
        if not texts or texts[-1] not in registered:
            yield each


def _is_newer(reading: LaunchReading, launch: Launch) -> bool:
    keys = reading.held
    if keys is None or _named_as(reading, launch) is None or not reading.version[:1].isdigit():
        return False
    tables = [each.version for each in (keys.table, *keys.others) if each.version[:1].isdigit()]
    named = version_tuple(keys.named or reading.version)
    return bool(tables) and named > max(map(version_tuple, tables))


def _named_as(reading: LaunchReading, launch: Launch) -> str | None:
    """Return how the release is known (NamedRelease); None if nothing names it."""
    mark = marks().get(reading.library)
    names = (reading.library, *(mark.aliases if mark is not None else ()))
    said = (launch.versions[each] for each in names if each in launch.versions)
    return next(map(NamedRelease.how_of, said), None)


def _is_guessed(reading: LaunchReading, launch: Launch) -> bool:
    """Return True if neither the script, nor its project, nor a person names the release."""
    return not reading.own_release and _named_as(reading, launch) is None


def _of_release(
    reading: LaunchReading, launch: Launch, beside: CodeBeside, keys: Iterable[KeyFinding]
) -> str:
    is_own = beside.changed_code or any(own_code.taken_for_granted(launch, reading))
    has_fork = any(each.fork or each.consequence == "unknown" for each in keys)
    if not (is_own or has_fork or _is_guessed(reading, launch)):
        return ""
    return f"as in {reading.library} {reading.version}"


def _unread(reading: LaunchReading) -> tuple[str, ...]:
    """Return the assumptions about the parts of the loss that orch does not read."""
    if reading.surroundings is not None:
        return reading.surroundings.unread
    if reading.decided is not None or reading.rollout_kl is not None:
        return ()
    return ("the advantage and the loss around the KL leave it as it is: orch does not read them",)


def _without_a_table(reading: LaunchReading, launch: Launch) -> Iterator[str]:
    """Yield the assumption about the release, or about the keys of one without a key table."""
    launch_keys = reading.held
    if launch_keys is not None and launch_keys.named:
        yield (
            f"{reading.library} {launch_keys.named}, of which orch has no table, has the keys and "
            f"defaults of {reading.version}"
        )
    elif launch_keys is not None and launch_keys.guessed:
        yield f"the release is {reading.version}: nothing names it"
    elif launch_keys is not None and launch_keys.exact:
        return
    elif _is_guessed(reading, launch):
        yield f"the release is {reading.version}: {reading.version_because}"
    else:
        name = f"{reading.library} {reading.version}"
        yield f"{name} has the keys and defaults of the releases that orch has a table of"


def _ratio(reading: LaunchReading) -> str | None:
    """Return the importance ratio of the policy loss, or None if it is not known."""
    return None if reading.surroundings is None else reading.surroundings.ratio


def _bias(measured: Judged | None) -> tuple[float | None, float | None] | None:
    if measured is None:
        return None
    if measured.by_prompt:
        return None, None
    return measured.row.near.bias, measured.row.far.bias


def _order(measured: Judged | None) -> tuple[float, float] | None:
    return None if measured is None or measured.by_prompt else measured.order()[:2]


def _contradictions(reading: LaunchReading, launch: Launch) -> Iterator[AuditNote]:
    """Yield contradictions: the library's own, a negative β, a KL without gradient, lost flags."""
    yield from _refused_by_bash(launch)
    yield from _refused_by_ray(launch.words)
    cut = launch.cut_off
    if cut is not None and cut.refused:
        text = (
            f"a blank after the `\\` before line {cut.line} is handed to the program as a word, "
            "which it refuses: as it stands, nothing starts"
        )
        yield AuditNote(text, (cut.line,))
    elif cut is not None:
        named = ", ".join([flag for flag in cut.flags if "kl" in flag.lower()][:MOST_NAMED])
        text = (
            f"the command ends before line {cut.line}, at a comment or a line without `\\`: the "
            "flags that follow are not handed to it"
        )
        text = f"{text} ({named} among them)" if named else text
        yield AuditNote(text, (cut.line,), of_text=True)
    is_pinned = _named_as(reading, launch) == "named"
    says = "the launch would not start" if is_pinned else f"{reading.version} refuses it"
    for note in reading.contradictions:
        if not note.of_advantage or {"loss"}.issuperset(each.kind for each in launch.own):
            text = f"{says}: {note.text}" if note.stops and not note.apart else note.text
            yield replace(note, text=text, stops=note.stops and (is_pinned or note.apart))
    for each in _bound_notes(reading, launch):
        if each.wrong:
            yield AuditNote(f"{each.text}. Write {each.instead}", each.lines)
    for term in (reading.in_reward, reading.in_loss):
        if term.active and (term.beta or 0) < 0:
            yield AuditNote(
                f"β = {term.beta:g} is negative: it pays for leaving the reference policy"
            )
    if reading.no_gradient and reading.in_loss.active:
        lines = sorted({n for each in reading.settings for n in each.lines if "kl" in each.key})
        text = f"a KL in the loss is asked for, and {reading.no_gradient}"
        yield AuditNote(text, tuple(lines))


def _refused_by_bash(launch: Launch) -> Iterator[AuditNote]:
    """Yield a note on each place of a shell script that bash does not take as it is meant."""
    if (ends := launch.carriage_return) is not None:
        yield AuditNote(
            f"lines end in CR LF from line {ends.line} on, and are read as if they ended in LF; "
            "bash takes each CR for text, so no `\\` before one continues a line: take them out "
            "(dos2unix)",
            (ends.line,),
            stops=ends.breaks,
        )
    if launch.placeholder is not None:
        place, line = launch.placeholder
        text = f"line {line} has a place for a value, {place}, and bash reads redirections there"
        yield AuditNote(f"{text}: put the value in", (line,), stops=True)
    before, last = (CommandWord(""), CommandWord(""), *launch.words)[-2:]
    if last.text in _CLOSES and last.lines and last.lines != before.lines:
        text = f"`{last.text}` follows a `\\` and ends nothing: bash refuses the whole file"
        yield AuditNote(text, last.lines, stops=True)


def _refused_by_ray(words: Iterable[CommandWord]) -> Iterator[AuditNote]:
    """Yield a note on a runtime environment whose text is known and is no JSON."""
    for word, after in pairwise((*words, CommandWord(""))):
        name, is_set, value = word.text.partition("=")
        text = value if is_set else after.text
        if name == "--runtime-env-json" and not {UNKNOWN, UNSET} & {*text}:
            try:
                json.loads(text)
            except ValueError as error:
                why = f"the launch would not start: ray refuses {name}, which is no JSON: {error}"
                yield AuditNote(why, word.lines[:1], stops=True, apart=True)


def _mended(launch: Launch, contradictions: Iterable[AuditNote]) -> Iterator[str]:
    """Yield the assumption that what keeps a launch from a start is mended."""
    if any(each.stops for each in contradictions):
        yield "the launch is mended so that it starts, and nothing else of it changes"
    if launch.cut_off is not None and launch.cut_off.refused:
        yield f"the blank after the `\\` before line {launch.cut_off.line} is taken out"


def _assumed(wrong_keys: tuple[KeyFinding, ...], beside: CodeBeside) -> Iterator[str]:
    """Yield the assumptions that a verdict makes about keys that the release does not accept."""
    unknown = [each.key for each in wrong_keys if each.consequence == "unknown"]
    unknown.sort(key=lambda key: DECIDES.search(key) is None)
    if unknown:
        yield (
            f"{few(unknown)}: not keys of this release; a fork that has them leaves the KL as "
            f"the library has it {beside.names(unknown)}".rstrip()
        )
    yield from beside.divides(each.key for each in wrong_keys if each.fork)
    refused = [each.key for each in wrong_keys if each.consequence.endswith("not start")]
    if refused:
        yield f"{', '.join(refused[:MOST_NAMED])}, which the release refuses, left out"
    texts = [each.key for each in wrong_keys if each.consequence == "means something else"]
    if texts:
        yield f"{', '.join(texts[:MOST_NAMED])} counts as what it says, and not as what was meant"


def _judgement(reading: LaunchReading, *, on_policy: bool) -> Judgement:
    """Return the verdict in a regime, with the division by the group's deviation included."""
    judgement = _term(reading, on_policy=on_policy)
    if judgement.name in ("unbiased_reverse_kl", "surrogate_reverse_kl") and is_rescaled(reading):
        why = (
            f"{judgement.why}, but divided by the standard deviation of its group, the KL "
            "included: each prompt has a β of its own"
        )
        return Judgement("rescaled_reverse_kl", why)
    return judgement


def _term(reading: LaunchReading, *, on_policy: bool = True) -> Judgement:
    """Return the verdict on the KL terms alone, without the effects of the rest of the loss."""
    reward, loss = reading.in_reward, reading.in_loss
    if reading.unknown:
        return Judgement("undetermined", "; ".join(reading.unknown))
    if reading.decided is not None:
        return Judgement(*reading.decided)
    if any(term.active and (term.beta or 0) < 0 for term in (reward, loss)):
        why = "β is negative: minimised, the loss leads away from the reference policy"
        return Judgement("other_objective", why)
    if reward.active and loss.active and not reading.no_gradient:
        return _both(reading, on_policy=on_policy)
    if reward.active:
        return _in_reward(reading, on_policy=on_policy)
    if loss.active and reading.no_gradient:
        why = (
            f"{loss.estimator} stands in the loss with β = {loss.beta:g}, but without gradient: "
            f"{reading.no_gradient}. The policy is not regularised"
        )
        return Judgement("no_kl", why)
    if loss.active:
        return _in_loss(reading, on_policy=on_policy)
    if reading.rollout_kl:
        why = (
            f"its only KL is to the policy that sampled (weight {reading.rollout_kl:g}); nothing "
            "keeps the policy near a reference policy"
        )
        return Judgement("rollout_policy_kl_only", why)
    return Judgement("no_kl", _no_kl(reward, loss))


def _no_kl(reward: InReward, loss: InLoss) -> str:
    for place, term in (("reward", reward), ("loss", loss)):
        if term.beta == 0:
            return f"the KL in the {place} is multiplied by 0"
    return "no KL term is switched on: nothing keeps the policy near a reference policy"


def _in_reward(reading: LaunchReading, *, on_policy: bool) -> Judgement:
    term = reading.in_reward
    case = _case(reading, "reward", on_policy=on_policy)
    plain = judged(estimator_name(term), "reward", Case(on_policy)).row
    text = f"{term.estimator} in the reward, β = {term.beta:g}"
    known = on_policy or _ratio(reading) in ("token", "sequence", "sequence_mean")
    row = judged(estimator_name(term), "reward", case) if known else None
    if plain.objective is ObjectiveKind.SEQUENCE_REVERSE_KL:
        why = f"{text}: the gradient of the sequence's reverse KL"
        return Judgement("unbiased_reverse_kl", why, row)
    if any(key in _SURROGATES for _, key in plain.terms):
        old = f"{text}, from old samples ({reading.regime.because})"
        if _ratio(reading) != "token":
            unknown = _ratio(reading) is None
            how = (
                "with a ratio that is not known" if unknown else "without PPO's ratio of each token"
            )
            number = "" if known else "; the laboratory has no number for it"
            why = f"{old}: a policy gradient of the reverse KL {how}{number}"
            return Judgement("surrogate_reverse_kl", why, row)
        why = (
            f"{old}: PPO's surrogate of the sequence's reverse KL, whose bias goes to zero with "
            "the lag"
        )
        return Judgement("surrogate_reverse_kl", why, row)
    why = f"{text}: the policy gradient of that reward is not the gradient of the reverse KL"
    return Judgement("biased_reward", why, row)


def _in_loss(reading: LaunchReading, *, on_policy: bool) -> Judgement:
    term = reading.in_loss
    case = _case(reading, "loss", on_policy=on_policy)
    measured = judged(estimator_name(term), "loss", case)
    text = f"{_estimator_of(term)} in the loss, β = {term.beta:g}"
    if not on_policy:
        text += f", from old samples ({reading.regime.because})"
    keys = [key for _, key in measured.row.terms]
    if len(keys) == 1 and keys[0] in _OF_TERM:
        name, words = _OF_TERM[keys[0]]
    elif measured.row.objective in _OF_KIND:
        name, words = _OF_KIND[measured.row.objective]
    else:
        name, words = "other_objective", measured.words
    return Judgement(name, f"{text}: {words}", measured)


def _both(reading: LaunchReading, *, on_policy: bool) -> Judgement:
    reward, loss = reading.in_reward, reading.in_loss
    why = (
        f"{reward.estimator} in the reward (β = {reward.beta:g}) and {_estimator_of(loss)} in the "
        f"loss (β = {loss.beta:g}): two KL terms add up"
    )
    measured = None
    same = reward.estimator == loss.estimator and not (loss.straight_through or loss.weighted)
    if same and reward.beta == loss.beta and (on_policy or _ratio(reading) == "token"):
        case = _case(reading, "reward_and_loss", on_policy=on_policy)
        measured = judged(estimator_name(loss), "reward_and_loss", case)
        of_states = entry(estimator_name(loss)).is_of_vocabulary
        plain = judged(estimator_name(loss), "reward_and_loss", Case(on_policy)).row
        if of_states and plain.objective is ObjectiveKind.SEQUENCE_REVERSE_KL:
            why = (
                f"{loss.estimator} in the reward and in the loss, β = {loss.beta:g}: its two parts "
                "are the gradient of the sequence's reverse KL"
            )
            return Judgement("unbiased_reverse_kl", why, measured)
    return Judgement("both", why, measured)


def _estimator_of(term: InLoss) -> str:
    if term.weighted:
        return f"{term.estimator} with k2's gradient times the importance ratio"
    return f"{term.estimator} with k2's gradient" if term.straight_through else str(term.estimator)


def _case(reading: LaunchReading, placement: Placement, *, on_policy: bool) -> Case:
    """Return what the KL term's gradient depends on, from the facts of the launch.

    A KL in the loss keeps its own ratio. A KL in the reward has the policy loss's, and passes
    through the group's mean and deviation where they include it.
    """
    around = reading.surroundings
    if around is None:
        return Case(on_policy)
    in_loss = placement == "loss"
    ratio = around.ratio if placement == "reward" and around.ratio != "none" else None
    if reading.group_size == 1:  # no group, whose mean and deviation would rescale it
        return Case(on_policy, ratio or "token")
    advantage: AdvantageEstimator = "rloo"
    if around.own_rollout_in_mean and (in_loss or around.baseline_includes_kl):
        advantage = "dr_grpo"
    if around.advantage_divided_by == "group_std" and (in_loss or around.division_includes_kl):
        advantage = "grpo"
    return Case(on_policy, ratio or "token", advantage=advantage, group_size=reading.group_size)
