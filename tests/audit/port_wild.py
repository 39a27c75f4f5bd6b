"""What `orch port` makes of launches that other people wrote and labelled scripts name.

port_wild.jsonl has facts about them (address, commit, path, the number of keys in each kind of row,
and the refusal), not their text. ORCH_WILD_TEXTS names a folder that has the text of each in
<owner>+<name>/<first 8 of the commit>/<path>.

    ORCH_WILD_TEXTS=folder PYTHONPATH=. python tests/audit/port_wild.py LABELS...   writes the facts
"""

import json
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from orchestrator.audit.port import launch_of, moved, ported
from orchestrator.errors import OrchError

FACTS = Path(__file__).with_name("port_wild.jsonl")
TARGETS = {"verl": ("skyrl", "0.4.0")}
"""Library of a script -> where it is ported to; the others to verl."""
OTHERWISE = ("verl", "0.9.1")


def text_of(folder: Path, label: dict[str, Any]) -> str | None:
    """The text of a labelled script; None: it is not in the folder."""
    home = label["repo"].replace("/", "+", 1)
    path = folder / home / label["commit"][:8] / label["path"]
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else None


def facts(label: dict[str, Any], text: str) -> dict[str, Any]:
    """The answer of `orch port` to one script, as numbers of rows and keys."""
    answer: dict[str, Any] = {name: label[name] for name in ("repo", "commit", "path")}
    try:
        read, reading, _ = launch_of(text, Path(label["path"]).name, {}, {})
        launch = ported(read, reading)
    except OrchError as error:
        return answer | {"refused": _sentence(error)}
    target, version = TARGETS.get(launch.library, OTHERWISE)
    answer |= {"library": launch.library, "release": launch.version, "keys": len(launch.given)}
    answer |= {"to": f"{target}@{version}", "not_held": len(launch.left)}
    try:
        plan, rows = moved(launch, target, version, {})
    except OrchError as error:
        return answer | {"refused": _sentence(error)}
    if plan is None:
        return answer | {"refused": rows[0].note}
    sources = ", ".join(row.source for row in rows)
    answer["rows"] = dict(sorted(Counter(row.kind for row in rows).items()))
    answer["without_row"] = sum(f"{key}=" not in sources for key in launch.given)
    return answer


def _sentence(error: OrchError) -> str:
    return " ".join(" ".join(str(error).splitlines()[:2]).split())


def kept() -> list[dict[str, Any]]:
    """The facts that are committed."""
    return [json.loads(line) for line in FACTS.read_text(encoding="utf-8").splitlines()]


def main(labels: list[str]) -> None:
    """Write the facts of the scripts that files of labels name and whose text is in the folder."""
    folder = Path(os.environ["ORCH_WILD_TEXTS"])
    with FACTS.open("w", encoding="utf-8") as file:
        for name in labels:
            for line in Path(name).read_text(encoding="utf-8").splitlines():
                label = json.loads(line)
                if (text := text_of(folder, label)) is not None:
                    file.write(json.dumps(facts(label, text)) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
