"""Two launch scripts as two questions about training: what differs, and what each difference does.

A script is read by orchestrator.audit. What it says of the KL, the advantage and the group becomes
a cell of the paper's recipe, in the dialect of its library; all else is equal.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from orchestrator import plugins
from orchestrator.analysis.ablation import Ablation, AblationStep, rehearsed_in
from orchestrator.audit.findings import AuditFinding
from orchestrator.errors import SelectionError
from orchestrator.estimators import plain_names
from orchestrator.identity import fingerprint
from orchestrator.kl.differences import DIFFERENCES, describe, differing, with_difference
from orchestrator.kl.library_semantics import Dialect, relevant
from orchestrator.records import Cell
from orchestrator.settings import (
    Advantage,
    AdvantageEstimator,
    BackendRef,
    Batch,
    Data,
    Kl,
    Loss,
    Model,
    Optimizer,
    Rollout,
    Settings,
)

ADVANTAGES: Mapping[str, AdvantageEstimator] = {
    "rloo": "rloo",
    "rloo_vectorized": "rloo",
    "grpo": "grpo",
    "group_norm": "grpo",
    "dr_grpo": "dr_grpo",
    "default": "dr_grpo",
    "grpo_vectorized": "grpo",
}
"""Names of libraries -> ours, of those the embedded trainer has. Prime-RL's default is the reward
less the group's mean."""
ESTIMATORS: Mapping[str, str] = {
    **{name: name for name in plain_names()},
    "kl": "k1",
    "mse": "k2",
    "low_var_kl": "k3",
}


_SETTINGS = Settings(
    model=Model(name="qwen2.5-7b", path="Qwen/Qwen2.5-7B"),
    data=Data(name="math", path="math"),
    advantage=Advantage(estimator="rloo"),
    loss=Loss(),
    kl=Kl(estimator="none"),
    rollout=Rollout(group_size=5, max_response_tokens=1024),
    batch=Batch(num_prompts=256),
    optimizer=Optimizer(learning_rate=1e-6, weight_decay=0.01),
    num_train_steps=250,
    backend=BackendRef(name="micro"),
)
RECIPE = Cell(
    id=fingerprint(_SETTINGS), slug="script", studies=("scripts",), axes={}, settings=_SETTINGS
)
"""What two scripts share where an audit does not read it: the paper's on-policy recipe (§4.1)."""


@dataclass(frozen=True)
class Script:
    """One launch of a file, as it can be trained here."""

    name: str
    finding: AuditFinding
    dialect: Dialect
    notes: tuple[str, ...]


@dataclass(frozen=True)
class ScriptDifference:
    """One line of the table."""

    what: str
    left: str
    right: str


def read_script(finding: AuditFinding, name: str) -> Script:
    """A finding with the dialect of its library's nearest release that orch has facts of."""
    backend = plugins.load(finding.library)
    version = nearest_release(finding.version, backend.versions)
    notes = []
    if version != finding.version:
        notes.append(
            f"{name}: orch has no facts of the mathematics of {finding.library} "
            f"{finding.version} ({finding.version_because}); it is taken for {version}"
        )
    found = backend.semantics(version)
    return Script(name, finding, found.native or found.dialect, (*notes, *finding.notes))


def nearest_release(version: str, known: Sequence[str]) -> str:
    """The known release nearest to a version, the newer where two are as near."""
    return version if version in known else min(known, key=lambda k: _distance(k, version))


def _distance(one: str, other: str) -> tuple[int, ...]:
    a, b = (
        [int(part) for part in x.replace("post", "").split(".") if part.isdigit()]
        for x in (one, other)
    )
    return tuple(abs(x - y) for x, y in zip([*a, 0, 0], [*b, 0, 0], strict=False))


def script_differences(left: Script, right: Script) -> list[ScriptDifference]:
    """What two launches ask for, and what their libraries mean, wherever it differs."""
    rows = [
        (
            "library",
            f"{left.finding.library} {left.finding.version}",
            f"{right.finding.library} {right.finding.version}",
        ),
        *((what, words(left.finding), words(right.finding)) for what, words in _FIELDS.items()),
        *(
            (
                DIFFERENCES[cause].title,
                describe(left.dialect, cause),
                describe(right.dialect, cause),
            )
            for cause in differing(left.dialect, right.dialect)
        ),
    ]
    return [ScriptDifference(what, a, b) for what, a, b in rows if a != b]


def unverified_differences(left: Script, right: Script) -> list[str]:
    """A sentence for each difference of the libraries that was read and not compared by running."""
    found = [DIFFERENCES[cause] for cause in differing(left.dialect, right.dialect)]
    return [
        f"{each.title}, not compared: {each.not_compared}" for each in found if each.not_compared
    ]


def _term(active: bool | None, estimator: str | None, beta: float | None) -> str:
    if active is None:
        return "not known"
    if not active:
        return "none"
    return f"{estimator or 'an estimator not known'}, β={'not known' if beta is None else beta}"


_FIELDS: Mapping[str, Callable[[AuditFinding], str]] = {
    "KL in the reward, as asked": lambda f: _term(
        f.kl_in_reward.active, f.kl_in_reward.estimator, f.kl_in_reward.beta
    ),
    "KL in the loss, as asked": lambda f: _term(
        f.kl_in_loss.active, f.kl_in_loss.estimator, f.kl_in_loss.beta
    ),
    "advantage": lambda f: f.advantage_estimator or "not known",
    "group": lambda f: "not known" if f.group_size is None else str(f.group_size),
    "KL to the rollout policy": lambda f: "none" if not f.rollout_kl else f"{f.rollout_kl:g}",
    "what the KL does": lambda f: f.verdict.replace("_", " "),
}


def script_settings(made: Script, base: Settings) -> Settings:
    """The base with the script's KL, advantage and group. Raises SelectionError, with every reason,
    for what the embedded trainer has no word for."""
    finding, faults = made.finding, []
    advantage = ADVANTAGES.get((finding.advantage_estimator or "").lower())
    if advantage is None:
        faults.append(
            f"advantage {finding.advantage_estimator or 'that is not known'} (it has: "
            f"{', '.join(sorted(set(ADVANTAGES.values())))})"
        )
    kl = _kl(finding)
    if kl is None:
        faults.append("a KL term whose estimator or beta is not known, or two different ones")
    group = finding.group_size or base.rollout.group_size
    if advantage is not None and group < 2:
        faults.append(f"groups of {group}")
    if faults or kl is None or advantage is None:
        raise SelectionError(
            f"{made.name} cannot be rehearsed: {'; '.join(faults)}. Without --ablate the table of "
            "differences is printed all the same"
        )
    return base.model_copy(
        update={
            "kl": kl,
            "advantage": Advantage(estimator=advantage),
            "rollout": base.rollout.model_copy(update={"group_size": group}),
            "backend": BackendRef(name=finding.library, version=finding.version),
        }
    )


def _kl(finding: AuditFinding) -> Kl | None:
    reward, loss = finding.kl_in_reward, finding.kl_in_loss
    if reward.active is None or loss.active is None:
        return None
    terms = [term for term in (reward, loss) if term.active]
    if not terms:
        return Kl(estimator="none")
    named = {(ESTIMATORS.get(t.estimator or ""), t.beta) for t in terms}
    if len(named) > 1:
        return None
    ((estimator, beta),) = named
    if estimator is None or beta is None:
        return None
    place = "reward_and_loss" if len(terms) == 2 else "reward" if reward.active else "loss"
    if place == "loss" and loss.straight_through:
        estimator = "k3+" if estimator == "k3" else "k2"
    return Kl(estimator=estimator, placement=place, beta=beta)  # type: ignore[arg-type]


_SECTIONS = {"kl": "the KL asked for", "advantage": "advantage estimator", "rollout": "group size"}


def script_ablation(left: Script, right: Script, base: Cell, seeds: Sequence[int]) -> Ablation:
    """From one script towards the other: what is asked and what it means, one at a time."""
    one, other = (script_settings(s, base.settings) for s in (left, right))
    question = f"{left.name} to {right.name}"
    steps: list[AblationStep] = []
    ends = []
    for seed in seeds:
        a, b = (s.model_copy(update={"seed": seed}) for s in (one, other))
        first, last = _script_cell(a, base), _script_cell(b, base)
        start = rehearsed_in(first, left.dialect, left.name)
        ends.append((question, seed, start, rehearsed_in(last, right.dialect, right.name)))
        for cause, title, settings, dialect in _ablation_steps(a, b, left.dialect, right.dialect):
            cell = rehearsed_in(_script_cell(settings, base), dialect, f"{left.name} {cause}")
            steps.append(AblationStep(question, cause, title, seed, cell))
    return Ablation(left.name, right.name, tuple(steps), tuple(ends))


def _ablation_steps(
    a: Settings, b: Settings, one: Dialect, other: Dialect
) -> Iterator[tuple[str, str, Settings, Dialect]]:
    for section, title in _SECTIONS.items():
        if getattr(a, section) != getattr(b, section):
            yield section, title, a.model_copy(update={section: getattr(b, section)}), one
    apart = differing(one, other)
    matters = dict.fromkeys(
        cause
        for settings in (a, b)
        for cause in differing(relevant(one, settings), relevant(other, settings))
        if cause in apart
    )
    for cause in matters:
        yield cause, DIFFERENCES[cause].title, a, with_difference(one, cause, other)


def _script_cell(settings: Settings, base: Cell) -> Cell:
    own = base.model_copy(update={"settings": settings, "id": fingerprint(settings)})
    kl = settings.kl
    words = [kl.label, f"b{kl.beta:g}", settings.advantage.estimator, settings.backend.name]
    return own.model_copy(update={"slug": "-".join([*words, f"s{settings.seed}"])})
