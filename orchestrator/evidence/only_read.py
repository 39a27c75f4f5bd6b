"""What libraries that orch only reads make of a KL, measured once in their own functions.

`backends/<library>/measured.json` keeps it with release and commit. The functions were called out
of a checkout; the trainer did not run.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from orchestrator import plugins
from orchestrator.evidence.stored import curve_text, objective_text


def libraries() -> dict[str, tuple[str, ...]]:
    """Return the libraries that are only read and were measured -> their releases."""
    measured = {name: tuple(read(name)) for name in plugins.only_read()}
    return {name: versions for name, versions in measured.items() if versions}


def read(library: str) -> Mapping[str, Any]:
    """Return release -> measurement of a library, oldest release first; {} if none was measured."""
    file = plugins.reader_folder(library) / "measured.json"
    plain: Mapping[str, Any] = json.loads(file.read_text("utf-8")) if file.is_file() else {}
    return plain


def table(releases: Sequence[tuple[str, str]], when: str) -> Iterator[tuple[str, ...]]:
    """Yield rows of a table: release, name, place, estimator, and the objective `when`."""
    for library, version in releases:
        for row in read(library).get(version, {"rows": ()})["rows"]:
            objective = "not asked as a whole"
            if when in row:
                dropped = row[when].get("dropped")
                objective = "nothing: it is dropped" if dropped else objective_text(row[when])
            title = plugins.load_reader(library).title
            computed = row.get("error") or curve_text(row["curve"])
            yield f"{title} {version}", row["name"], row["place"], computed, objective
