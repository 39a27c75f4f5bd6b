"""The measured KL of releases that orch does not drive, in their own functions.

orch translates no cell for such a release, so launches in the library's own words select the
functions. They are called out of a checkout, whose path somebody gives; only its source is needed,
and nothing of it is imported. The trainer does not run: the probe repeats the code around each
function. `lab/kl_probe.py` of a library's folder calls the functions, and `measured.json` keeps the
results with their release and commit.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any

from orchestrator import plugins
from orchestrator.errors import EnvironmentFault
from orchestrator.evidence.stored import curve_of, curve_text, objective_text
from orchestrator.library.key_tables import version_tuple

PROBE, KEPT = "lab/kl_probe.py", "measured.json"


def libraries() -> tuple[str, ...]:
    """Return the libraries whose functions can be measured alone."""
    return tuple(name for name in plugins.only_read() if kept_file(name, PROBE).is_file())


def read(library: str) -> Mapping[str, Any]:
    """Return release -> measurement of a library, oldest release first; {} if none was measured."""
    file = kept_file(library, KEPT)
    plain: Mapping[str, Any] = json.loads(file.read_text("utf-8")) if file.is_file() else {}
    return plain


def variable(library: str, version: str) -> str:
    """Return the environment variable that names the checkout of a release."""
    return f"ORCH_{library.upper()}_{version.replace('.', '')}_SOURCE"


def checkout(library: str, version: str, source: Path | None = None) -> Path:
    """Return the checkout of a release. Raise EnvironmentFault if none is named."""
    named = source or os.environ.get(variable(library, version))
    if not named or not Path(named).is_dir():
        raise EnvironmentFault(
            f"{library} {version} is asked in its own source, which is not here: point "
            f"{variable(library, version)} or --source to a checkout of it"
        )
    return Path(named).resolve()


def chosen(wanted: Sequence[str]) -> list[tuple[str, str]]:
    """Return the chosen releases, each named as `slime` or `slime@0.3.1`; all if none is named.

    Raise EnvironmentFault for a library that has no release yet and is named without one.
    """
    if not wanted:
        return [(library, version) for library in libraries() for version in read(library)]
    releases = []
    for name in wanted:
        library, _, version = name.partition("@")
        if not version and not read(library):
            raise EnvironmentFault(f"nothing was measured of {library}: say {library}@VERSION")
        releases += [(library, each) for each in ([version] if version else read(library))]
    return releases


def table(releases: Sequence[tuple[str, str]]) -> list[tuple[str, ...]]:
    """Return rows of a table: release, name, place, estimator, objectives on- and off-policy."""
    rows = []
    for library, version in releases:
        for row in read(library).get(version, {"rows": ()})["rows"]:
            objectives = [
                "not asked as a whole"
                if when not in row
                else "nothing: it is dropped"
                if row[when].get("dropped")
                else objective_text(row[when])
                for when in ("on_policy", "off_policy")
            ]
            title = plugins.load_reader(library).title
            place = (f"{title} {version}", row["name"], row["place"])
            computed = row.get("error") or curve_text(curve_of(row["curve"])).replace(
                "gradient of ?", "the gradient of another"
            )
            rows.append((*place, computed, *objectives))
    return rows


def write(library: str, version: str, measurement: Mapping[str, Any]) -> Path:
    """Write the measurement of a release to its file, one row a line. Return the file."""
    file = kept_file(library, KEPT)
    releases = {**read(library), version: measurement}
    parts = []
    for release in sorted(releases, key=version_tuple):
        about = releases[release]
        rows = ",\n".join(f"   {json.dumps(row, ensure_ascii=False)}" for row in about["rows"])
        head = {key: value for key, value in about.items() if key != "rows"}
        shown = json.dumps(head, indent=1)[1:-2].replace("\n", "\n ")
        parts.append(f' "{release}": {{{shown},\n  "rows": [\n{rows}\n  ]\n }}')
    file.write_text("{\n" + ",\n".join(parts) + "\n}\n", encoding="utf-8")
    return file


def kept_file(library: str, name: str) -> Path:
    """Return a file beside the library's reader."""
    return plugins.reader_folder(library) / name


BETA = 1.0


def measure(
    library: str, version: str, folder: Path, python: Path | None = None
) -> Mapping[str, Any]:
    """Return the measurement of each launch in a library's kl_probe.py, out of a checkout."""
    from orchestrator.lab.probes.measure import WEIGHTS, add_models, ask_for_update  # NumPy
    from orchestrator.lab.probes.protocol import Inquiry, ProbeTarget, curve

    inquiry = Inquiry(library, version)
    add_models(inquiry)
    for name, weight in WEIGHTS.items():
        inquiry.add_batch(f"curve {name}", curve(weight))
    # launches(version): name for people, place of the KL, words; WHOLE: the places of which the
    # probe runs the whole update.
    probe: Any = import_module(f"backends.{library}.lab.kl_probe")
    launches = probe.launches(version)
    for label, place, argv in launches:
        number = inquiry.add_own_launch({"argv": list(argv), "files": {}})
        for name in WEIGHTS:
            key = (label, place, "curve", name)
            inquiry.add_question(key, "kl", number, f"curve {name}", place=place)
        if place in probe.WHOLE:
            for on_policy in (True, False):
                ask_for_update(inquiry, (label, place, on_policy), number, on_policy)
    target = ProbeTarget(python or Path(sys.executable), folder)
    answers, sources = inquiry.send(target, kept_file(library, PROBE))
    return {
        "commit": _commit(folder),
        "sources": {name: each["sha256"] for name, each in sources.items()},
        "rows": [
            {"name": label, "place": place, **_row(answers, label, place, probe.WHOLE)}
            for label, place, _ in launches
        ],
    }


def measure_again(
    releases: Sequence[tuple[str, str]],
    python: Path | None,
    source: Path | None,
    say: Callable[[str], None],
    *,
    named: bool,
) -> Iterator[Path]:
    """Measure releases in their checkouts, and keep the results. Yield each file.

    named: True if a person named the libraries: then raise EnvironmentFault for one without a
    checkout, instead of leaving it out with a message.
    """
    for library, version in releases:
        try:
            folder = checkout(library, version, source)
        except EnvironmentFault as error:
            if named:
                raise
            say(f"not measured again: {error}")
            continue
        say(f"{library} {version}: asking its own functions")
        yield write(library, version, measure(library, version, folder, python))


def _row(
    answers: Mapping[Any, Mapping[str, Any]], label: str, place: str, whole: Sequence[str]
) -> dict[str, Any]:
    """Return the curve of an estimator's name, and the objective of its whole update."""
    from orchestrator.lab.probes.measure import (  # NumPy
        REGIMES,
        WEIGHTS,
        classify,
        measured_objective,
    )
    from orchestrator.lab.probes.protocol import first_error

    curves = {name: answers[label, place, "curve", name] for name in WEIGHTS}
    if error := first_error(curves.values()):
        return {"error": error}
    # A library may clamp the value after it weights it. The gradient is then 0 at a large weight,
    # which does not show a bound of the weight.
    known = {k: v for k, v in asdict(classify(curves)).items() if v is not None}
    if known.get("weight_bound") == 0:
        del known["weight_bound"]
    row: dict[str, Any] = {"curve": known}
    at = (label, place)
    for name, on_policy in REGIMES.items() if place in whole else ():
        answer = measured_objective(answers, (label, place, on_policy), on_policy, BETA)
        kept = {key: value for key, value in answer.items() if key != "gradient"}
        if not any(_has_gradient(answers[key]) for key in answers if key[:3] == (*at, on_policy)):
            kept["dropped"] = True
        row[name] = kept
    return row


def _has_gradient(answer: Mapping[str, Any]) -> bool:
    """Return True if any token of an update has a gradient."""
    return any(each for row in answer.get("gradient", ()) for each in row)


def _commit(folder: Path) -> str:
    """Return the commit of a checkout or of an archive with a file COMMIT; else an empty text."""
    note = folder / "COMMIT"
    if note.is_file():
        return note.read_text(encoding="utf-8").strip()
    done = subprocess.run(
        [str(shutil.which("git")), "-C", str(folder), "rev-parse", "HEAD"],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip()
