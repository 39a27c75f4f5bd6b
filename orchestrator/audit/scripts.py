"""Compare two launch scripts: `orch compare --configs a.sh b.sh`.

orchestrator.audit reads each script. Its KL, advantage and group size become a cell with the
paper's recipe, in the dialect of the script's library. Everything else is equal. A table lists the
differences, and an ablation measures the effect of each.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from orchestrator import plugins
from orchestrator.analysis.ablation import Ablation, AblationEnds, AblationStep, rehearsed_in
from orchestrator.audit import UnreadableScript, audit, libraries
from orchestrator.audit.judge import AuditFinding
from orchestrator.errors import EnvironmentFault, SelectionError
from orchestrator.estimators import plain_names
from orchestrator.identity import fingerprint
from orchestrator.kl.library_semantics import (
    DIFFERENCES,
    Dialect,
    describe,
    differing,
    relevant,
    with_difference,
)
from orchestrator.library.launches import InLoss, InReward
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

LARGEST_BYTES = 2_000_000
"""Maximum number of bytes that are read from a script."""
SEEDS = (0, 1, 2)
"""Default seeds of an ablation."""
ADVANTAGES: Mapping[str, AdvantageEstimator] = {
    "rloo": "rloo",
    "rloo_vectorized": "rloo",
    "grpo": "grpo",
    "group_norm": "grpo",
    "dr_grpo": "dr_grpo",
    "default": "dr_grpo",
    "grpo_vectorized": "grpo",
}
"""A library's name -> orch's name, for the estimators that the embedded trainer has. Prime-RL's
default is the reward minus the group's mean."""
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
"""The settings that an audit does not read: the paper's on-policy recipe (§4.1)."""


@dataclass(frozen=True)
class Script:
    """A launch of a script, with the dialect of its release or the nearest release that orch knows.

    dialect: None for a library or a fork that orch can only audit.
    """

    name: str
    finding: AuditFinding
    dialect: Dialect | None
    notes: tuple[str, ...]


def read_script(path: str, pinned: Mapping[str, str] | None = None) -> Script:
    """Return the launch of a script in its usual case. Also read files in its folder.

    pinned: library -> release, for scripts that do not name one. Raise EnvironmentFault for a file
    that cannot be read, and SelectionError for a file without a launch.
    """
    file = Path(path)
    try:
        text = file.read_bytes()[:LARGEST_BYTES].decode(errors="replace")
    except OSError as error:
        raise EnvironmentFault(f"{path} cannot be read: {error.strerror or error}") from error
    try:
        around = libraries.versions(file) | dict(pinned or {})
        findings = audit(text, path, files=libraries.NeighbourFiles(file), versions=around)
    except UnreadableScript as error:
        raise SelectionError(f"{path}: {error}") from error
    usual = ([finding for finding in findings if finding.usual] or findings)[0]
    notes = []
    if len(findings) > 1:
        notes.append(
            f"{path} holds {len(findings)} launches or cases: the one of line {usual.line} is used"
        )
    dialect, note = _dialect(usual)
    notes += [f"{file.stem}: {each}" for each in (*([note] if note else []), *usual.notes)]
    return Script(file.stem, usual, dialect, tuple(notes))


def _dialect(finding: AuditFinding) -> tuple[Dialect | None, str]:
    """Return the dialect of a launch's library, and a note if it is another release's.

    The dialect is None for a library that orch can only audit, and for a fork without a release.
    The note then gives the reason.
    """
    title = plugins.load_reader(finding.library).title
    if finding.library not in plugins.names() or not finding.version[:1].isdigit():
        name = title if finding.library not in plugins.names() else finding.version
        return None, (
            f"orch reads launches of {name} and does not drive it: the table holds what its reader "
            "knows, and no clamps, denominators and precisions"
        )
    backend = plugins.load(finding.library)
    version = nearest_release(finding.version, backend.versions)
    semantics = backend.semantics(version)
    dialect = semantics.native or semantics.dialect
    if version == finding.version:
        return dialect, ""
    return dialect, (
        f"orch has no facts of the mathematics of {finding.library} {finding.version} "
        f"({finding.version_because}); it is taken for {version}"
    )


def read_pair(
    left: str, right: str, pinned: Mapping[str, str] | None = None
) -> tuple[Script, Script]:
    """Return two scripts. Their names are their full paths if their file names are equal."""
    scripts = read_script(left, pinned), read_script(right, pinned)
    if scripts[0].name != scripts[1].name:
        return scripts
    return replace(scripts[0], name=str(Path(left))), replace(scripts[1], name=str(Path(right)))


def nearest_release(version: str, known: Sequence[str]) -> str:
    """Return the known release that is nearest to a version, or the first of equally near ones."""
    return version if version in known else min(known, key=lambda k: _distance(k, version))


def _distance(one: str, other: str) -> tuple[int, ...]:
    a, b = (
        [int(part) for part in x.replace("post", "").split(".") if part.isdigit()]
        for x in (one, other)
    )
    return tuple(abs(x - y) for x, y in zip([*a, 0, 0], [*b, 0, 0], strict=False))


def script_differences(left: Script, right: Script) -> list[dict[str, str]]:
    """Return what, left and right of each difference, in settings and in libraries' dialects."""
    rows = [
        (
            "library",
            f"{left.finding.library} {left.finding.version}",
            f"{right.finding.library} {right.finding.version}",
        ),
        *((what, text(left.finding), text(right.finding)) for what, text in _FIELDS.items()),
        *(
            (DIFFERENCES[cause].title, describe(one, cause), describe(other, cause))
            for one, other in _dialects(left, right)
            for cause in differing(one, other)
        ),
    ]
    return [{"what": what, "left": a, "right": b} for what, a, b in rows if a != b]


def unverified_differences(left: Script, right: Script) -> list[str]:
    """Return a sentence for each difference that was read in a library's source and never run."""
    causes = [
        DIFFERENCES[cause]
        for one, other in _dialects(left, right)
        for cause in differing(one, other)
    ]
    return [
        f"{cause.title}, not compared: {cause.not_compared}"
        for cause in causes
        if cause.not_compared
    ]


def _dialects(left: Script, right: Script) -> list[tuple[Dialect, Dialect]]:
    """Return a list with the pair of dialects, or an empty list if one of them is not known."""
    if left.dialect is None or right.dialect is None:
        return []
    return [(left.dialect, right.dialect)]


def scripts_data(left: Script, right: Script) -> dict[str, Any]:
    """Return the data that `orch compare --configs --json` prints, also used for its text."""
    return {
        "left": left.name,
        "right": right.name,
        "differences": script_differences(left, right),
        "why": {script.name: script.finding.why for script in (left, right)},
        "notes": [*left.notes, *right.notes, *unverified_differences(left, right)],
    }


def _term(finding: AuditFinding, term: InReward | InLoss) -> str:
    """Return a term in words. For an undetermined launch, add the release that was assumed."""
    if term.active is None:
        return "not known"
    text = "none"
    if term.active:
        beta = "not known" if term.beta is None else term.beta
        text = f"{term.estimator or 'an estimator not known'}, β={beta}"
    if finding.verdict == "undetermined":
        return f"not determined: {text} in {finding.version}, see below"
    return text


def _samples(finding: AuditFinding) -> str:
    words = {True: "of the policy itself", False: "of an older policy", None: "not known"}
    return words[finding.regime.on_policy]


_FIELDS: Mapping[str, Callable[[AuditFinding], str]] = {
    "KL in the reward, as asked": lambda f: _term(f, f.kl_in_reward),
    "KL in the loss, as asked": lambda f: _term(f, f.kl_in_loss),
    "advantage": lambda f: f.advantage_estimator or "not known",
    "group": lambda f: "not known" if f.group_size is None else str(f.group_size),
    "KL to the rollout policy": lambda f: "none" if not f.rollout_kl else f"{f.rollout_kl:g}",
    "samples": _samples,
    "what the KL does": lambda f: f.verdict.replace("_", " "),
    "what changes its force": lambda f: (
        "; ".join(each.headline for each in f.effects if each.headline) or "nothing"
    ),
}


def script_settings(script: Script, base: Settings) -> Settings:
    """Return the base with the script's KL, advantage and group.

    Raise SelectionError with every reason for a script that the embedded trainer cannot express.
    """
    finding, faults = script.finding, []
    if script.dialect is None:
        faults.append(f"orch has not measured the mathematics of {finding.library}")
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
            f"{script.name} cannot be rehearsed: {'; '.join(faults)}. Without --ablate the table "
            "of differences is printed all the same"
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
    placement = "reward_and_loss" if len(terms) == 2 else "reward" if reward.active else "loss"
    if placement == "loss" and loss.straight_through:
        estimator = "k3+" if estimator == "k3" else "k2"
    return Kl(estimator=estimator, placement=placement, beta=beta)  # type: ignore[arg-type]  # Kl checks


_SECTIONS = {"kl": "the KL asked for", "advantage": "advantage estimator", "rollout": "group size"}


def script_ablation(left: Script, right: Script, base: Cell, seeds: Sequence[int]) -> Ablation:
    """Return the ablation from one script towards the other.

    Each step changes one setting, or one field of the dialect.
    """
    one, other = (script_settings(s, base.settings) for s in (left, right))
    ((first_dialect, last_dialect),) = _dialects(left, right)  # script_settings refuses others
    question = f"{left.name} to {right.name}"
    steps: list[AblationStep] = []
    ends: list[AblationEnds] = []
    for seed in seeds:
        a, b = (s.model_copy(update={"seed": seed}) for s in (one, other))
        first, last = _script_cell(a, base), _script_cell(b, base)
        start = rehearsed_in(first, first_dialect, left.name)
        end = rehearsed_in(last, last_dialect, right.name)
        ends.append(AblationEnds(question, seed, start, end))
        for cause, title, settings, dialect in _ablation_steps(a, b, first_dialect, last_dialect):
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
    parts = [kl.label, f"b{kl.beta:g}", settings.advantage.estimator, settings.backend.name]
    return own.model_copy(update={"slug": "-".join([*parts, f"s{settings.seed}"])})
