"""What is asked of a release once its keys are tables: in a process that starts with them.

`python -m lab.adopt.child` reads a ReleaseQuestion as JSON and prints a
MeasuredRelease as JSON. A manifest is built at import, so the process that wrote the tables has the
old one.
"""

import json
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from lab.adopt import keys
from lab.adopt.adoption import Adoption, adoption_of
from lab.adopt.changes import unmeasured
from lab.libraries import folder
from lab.probes import written
from lab.probes.measure import REGIMES, measure
from lab.prove.real import release_runs
from lab.prove.text import store
from orchestrator import plugins
from orchestrator.errors import OrchError
from orchestrator.evidence import stored
from orchestrator.evidence.cells import accepted, terms, translated
from orchestrator.files import read_json, write_text
from orchestrator.records import LaunchPlan

BATCHES = 8


class ReleaseQuestion(NamedTuple):
    """A release whose keys are tables, and where it can be asked."""

    library: str
    version: str
    neighbour: str
    package: str
    """The folder of its source."""
    python: str
    """The Python in which its parser runs."""
    above: str
    """The folder above the package, where that Python has another release; else empty."""
    train: bool


class MeasuredRelease(NamedTuple):
    """What a release answered to its parser's, functions' and training's questions."""

    launches: int
    """Different launches that its parser was given."""
    refused: tuple[str, ...]
    """What its parser refused, or made another value of."""
    sent: tuple[str, ...]
    """The keys of these launches."""
    unmeasured: tuple[str, ...]
    """What its functions did not answer, though those of the nearest release did."""
    files: tuple[str, ...]
    trained: bool = False
    predicted: bool = False
    why: str = ""
    """Why it was not trained, or what was predicted otherwise."""


def measured(question: ReleaseQuestion) -> MeasuredRelease:
    """Ask a release, write what it answers, and return the outcome.

    Its parser runs in its own environment; its functions run in this Python, from its source.
    """
    library, version = question.library, question.version
    adoption, own = adoption_of(library), plugins.folder(library)
    plans = list(_plans(library, version))
    refused = tuple(_refused(question, adoption, plans))
    evidence = measure(library, version, Path(question.package))
    files = [own / "evidence" / f"{version}.json"]
    _write(files[0], evidence)
    outcome = MeasuredRelease(
        len(plans),
        refused,
        tuple(sorted({key for plan in plans for key in adoption.sent(plan)})),
        tuple(unmeasured(stored.read(library, question.neighbour) or {}, evidence)),
        tuple(map(str, files)),
    )
    return _trained(question, outcome) if question.train else outcome


def _write(file: Path, evidence: Mapping[str, Any]) -> None:
    """Write the evidence, unless the file says the same but for last digits."""
    if not file.exists() or written.differences(read_json(file), evidence):
        write_text(file, written.as_text(evidence))


def _plans(library: str, version: str) -> Iterator[LaunchPlan]:
    """Yield the different launches of one small run with each KL term that orch can send."""
    known = set()
    adoption = adoption_of(library)
    for kl in terms():
        for on_policy in REGIMES.values():
            settings = accepted(library, version, kl, on_policy)
            if isinstance(settings, str):
                continue
            plan = translated(settings)
            text = json.dumps(adoption.configuration(plan))
            if text not in known:
                known.add(text)
                yield plan


def _refused(
    question: ReleaseQuestion, adoption: Adoption, plans: list[LaunchPlan]
) -> Iterator[str]:
    """Yield what the release's own parser refuses of launches, or resolves to another value."""
    answers = keys.ask(
        Path(question.python),
        folder(question.library) / adoption.PARSER,
        Path(question.above) if question.above else None,
        json.dumps([adoption.configuration(plan) for plan in plans]),
    )
    faults: dict[str, str] = {}
    for plan, answer in zip(plans, answers, strict=True):
        if "error" in answer:
            faults[answer["error"].strip().splitlines()[-1]] = ""
            continue
        for key, value in json.loads(json.dumps(adoption.sent(plan))).items():
            resolved = _at(answer["values"], key)
            if not _holds(value, resolved):
                faults[f"{key}: orch sends {value!r}, it resolves to {resolved!r}"] = ""
    yield from faults


def _at(values: Any, key: str) -> object:
    """Return the value of a dotted key, in values that are nested or have the whole key."""
    while isinstance(values, Mapping):
        if key in values:
            return values[key]
        first, _, key = key.partition(".")
        values = values.get(first)
    return None


def _holds(sent: object, resolved: object) -> bool:
    """Return True if a value is the one that was sent, with defaults where it left keys out."""
    if isinstance(sent, Mapping) and isinstance(resolved, Mapping):
        return all(_holds(value, resolved.get(key)) for key, value in sent.items())
    if isinstance(sent, list) and isinstance(resolved, list):
        return len(sent) == len(resolved) and all(map(_holds, sent, resolved))
    return sent == resolved


def _trained(question: ReleaseQuestion, outcome: MeasuredRelease) -> MeasuredRelease:
    """Train the small cells of a release's proof, and keep the proof if it holds."""
    library, version = question.library, question.version
    with tempfile.TemporaryDirectory(prefix="orch-adopt-") as place:
        try:
            runs = release_runs(library, version, Path(place), _say, batches=BATCHES)
        except OrchError as error:
            return outcome._replace(why=str(error))
        proofs = [(name, run.proof()) for name, run in runs]
    wrong = [
        f"{name}, {each.name}: predicted {each.predicted:g}, found {each.observed:g}"
        for name, proof in proofs
        for each in proof.quantities
        if not each.holds
    ]
    if wrong or not all(proof.holds for _, proof in proofs):
        return outcome._replace(trained=True, why="; ".join(wrong) or "nothing could be compared")
    file = store(library, version, proofs)
    return outcome._replace(trained=True, predicted=True, files=(*outcome.files, str(file)))


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def main() -> None:
    """Answer the question on standard input."""
    question = ReleaseQuestion(**json.load(sys.stdin))
    sys.stdout.write(keys.ANSWER + json.dumps(measured(question)._asdict()) + "\n")


if __name__ == "__main__":
    try:
        main()
    except OrchError as fault:
        sys.exit(str(fault))
