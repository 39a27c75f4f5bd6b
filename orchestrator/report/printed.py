"""Tables of a publication, each row beside what holds here: its KL terms, its libraries' arguments.

What a library makes of printed arguments is asked of its backend, for every release that orch
drives: a launch of this experiment is read back (`Backend.parse`), with the printed arguments in
the place of those of its KL term.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain

from orchestrator import plugins
from orchestrator.analysis.compare import Comparison
from orchestrator.analysis.phases import state_of
from orchestrator.analysis.text import counted, listed
from orchestrator.errors import OrchError, SpecError
from orchestrator.kl.table import Case, judged
from orchestrator.library.neighbour import NOWHERE
from orchestrator.library.protocol import Backend
from orchestrator.records import Cell, PublishedTerm, Record, Spec
from orchestrator.report.model import ReportTable, Section
from orchestrator.report.words import section
from orchestrator.settings import BackendRef, Kl, Placement

PLACES: Mapping[str, Placement] = {"reward": "reward", "loss": "loss", "both": "reward_and_loss"}


def printed_section(
    comparison: Comparison, records: Sequence[Record], spec: Spec
) -> Section | None:
    """Return a section with the publication's tables, or None if the spec has none."""
    terms, settings = spec.published.terms, spec.published.settings
    if not terms and not settings:
        return None
    tables = []
    if terms:
        titles = ("KL", "gradient, printed", "bias here", "training, printed", "training here")
        own = tuple(_term_row(term, comparison) for term in terms)
        tables.append(ReportTable("KL terms and their gradients (Table 1)", titles, own))
    launch = _with_k1_in_reward(records)
    if settings and launch is not None:
        columns = ("library", "arguments", "release", "what they ask for")
        rows = tuple(
            row
            for each in settings
            for words in ((), each.sets)
            for row in _library_rows(each.library, words, launch)
        )
        tables.append(ReportTable("k1 in the reward in each library (Table 2)", columns, rows))
    return section("printed", tables=tuple(tables))


def _term_row(term: PublishedTerm, comparison: Comparison) -> tuple[str, ...]:
    estimator, _, place = term.kl.partition(".")
    row = judged(estimator, PLACES[place], Case()).row
    bias = f"{row.near.bias:.2g} near, {row.far.bias:.2g} far"
    runs = [
        run
        for c in comparison.configurations
        if c.study == term.study and c.kl == term.kl
        for run in c.runs
    ]
    states = [state[0] for run in runs if (state := state_of(run)) is not None]
    counts = [f"{states.count(s)} {s}" for s in dict.fromkeys(sorted(states))]
    outcomes = (
        f"{listed(counts)} of {counted(len(states), 'run')}" if counts else "no run has ended"
    )
    return term.kl, "unbiased" if term.unbiased else "biased", bias, term.behaviour, outcomes


def _with_k1_in_reward(records: Iterable[Record]) -> Cell | None:
    """Return the first cell with k1 in the reward, on policy, as it was declared."""
    for record in records:
        cell, declared = record.cell, record.cell.declared or record.cell.settings
        if declared.kl.label == "k1.reward" and not declared.max_staleness_steps:
            return cell.but(settings=declared, declared=None)
    return None


def _library_rows(
    library: str, words: Sequence[str], launch: Cell
) -> Iterator[tuple[str, str, str, str]]:
    """Yield a row for each answer: the releases of a library that give it."""
    backend = plugins.load(library)
    answers: dict[str, list[str]] = {}
    for version in backend.versions:
        answers.setdefault(_asked_for(backend, version, words, launch), []).append(version)
    for answer, versions in answers.items():
        yield backend.title, " ".join(words) or "none", ", ".join(versions), answer


def _asked_for(backend: Backend, version: str, words: Sequence[str], launch: Cell) -> str:
    reference = BackendRef(name=backend.name, version=version)
    own = launch.settings.but(backend=reference)
    other = own.but(kl=Kl(estimator="k3", placement="loss", beta=2 * own.kl.beta))
    try:
        plan, elsewhere = (
            backend.translate(launch.but(settings=settings), NOWHERE) for settings in (own, other)
        )
        # The arguments of the KL term are those in which two terms differ.
        kept = [
            argument for argument in _arguments(plan.argv) if argument in _arguments(elsewhere.argv)
        ]
        kl = backend.parse([*chain(*kept), *words], plan.files).kl
    except SpecError as error:
        return f"refused: {'; '.join(fault.message for fault in error.faults)}"
    except OrchError as error:
        return f"not known: {error}"
    return "no KL" if kl.placement is None else f"{kl.label}, β {kl.beta:g}"


def _arguments(argv: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the arguments of a launch: `key=value`, or a flag with its values."""
    arguments: list[tuple[str, ...]] = []
    for word in argv:
        if arguments and arguments[-1][0].startswith("--") and not word.startswith("--"):
            arguments[-1] += (word,)
        else:
            arguments.append((word,))
    return arguments
