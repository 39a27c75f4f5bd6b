"""What surrounds the KL, function by function and release by release: value and gradient.

`lab/functions.py` of a library's folder names its policy losses, aggregations, advantages and KL
functions. Each is called on one batch, out of a wheel that is unpacked without its dependencies.
`evidence/functions.json` of the library keeps the answers, with the releases in which they hold:

    {"versions": ["0.8.0", ...],
     "functions": {name: [[first, last, {"function", "value", "gradient"}], ...]}}

first and last are indices of versions. "function" is the name of the library's function that was
called. There is another entry where the function or its numbers change.
"""

import json
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from orchestrator import plugins
from orchestrator.library import adopted
from orchestrator.library.key_tables import version_tuple

PROBE, KEPT = "lab/functions.py", "evidence/functions.json"
DIGITS = 7
"""Significant digits of a kept number."""
CLOSE = 1e-6
"""The largest difference of two numbers of a function that is no change, in units of its largest:
a release adds 1e-8 to a divisor."""
Functions = Mapping[str, Mapping[str, Any]]
"""Name of a measurement -> the library's function, its value and its gradient."""


def measure(library: str, version: str, package: Path) -> Functions:
    """Return what each function of a release measures, without those that raise an exception.

    `package`: the folder of its source.
    """
    from orchestrator.lab.probes.protocol import (  # NumPy
        Inquiry,
        ProbeBatch,
        ProbeTarget,
        two_groups,
    )

    inquiry = Inquiry(library, version)
    groups = two_groups()
    # Ratios on both sides of every clip, and advantages of both signs.
    lags = [[0.9, -0.6, 0.1], [-0.15, 0.35, 0.0], [1.3, 0.0, 0.0], [-1.2, 0.25, 0.0]]
    old = [
        [x - lag for x, lag in zip(row, lags[i % 4], strict=True)]
        for i, row in enumerate(groups["logp"])
    ]
    signs = [[(1.0, -0.7, 0.4, -1.3)[i % 4]] * len(row) for i, row in enumerate(old)]
    # The rollout policy is on both sides of every bound too, and some probabilities moved against
    # the advantage by more than 0.2. No log-probability is above -0.05.
    gaps = [[-0.4, 1.2, -1.6], [1.6, -1.1, 0.4], [-2.1, 0.3, 0.0], [0.02, 1.1, -0.6]]
    engine = [
        [min(x - gap, -0.05) for x, gap in zip(row, gaps[i % 4], strict=True)]
        for i, row in enumerate(old)
    ]
    inquiry.add_batch(
        "batch", ProbeBatch(**{**groups, "old": old, "engine": engine, "advantages": signs})
    )
    launch = inquiry.add_own_launch({"argv": [], "files": {}})
    inquiry.add_question("functions", "functions", launch, "batch")
    target = ProbeTarget(Path(sys.executable), package)
    answers, _ = inquiry.send(target, plugins.folder(library) / PROBE)
    measured: Mapping[str, Any] = answers["functions"]["functions"]
    return {n: _rounded(each) for n, each in sorted(measured.items()) if "error" not in each}


def _rounded(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _rounded(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_rounded(each) for each in value]
    if isinstance(value, float):
        return 0.0 if abs(value) < 1e-12 else float(f"{value:.{DIGITS}g}")
    return value


@cache
def read(library: str) -> Mapping[str, Functions]:
    """Return release -> its functions, oldest release first; {} if none was measured."""
    if library not in plugins.names():
        return {}
    every: dict[str, Functions] = {}
    for folder in adopted.folders(plugins.folder(library)):
        every = {**_read(folder / KEPT), **every}
    return {version: every[version] for version in sorted(every, key=version_tuple)}


def _read(file: Path) -> dict[str, Functions]:
    if not file.is_file():
        return {}
    plain = json.loads(file.read_text(encoding="utf-8"))
    releases: dict[str, dict[str, Any]] = {version: {} for version in plain["versions"]}
    for name, spans in plain["functions"].items():
        for first, last, answer in spans:
            for version in plain["versions"][first : last + 1]:
                releases[version][name] = answer
    return dict(releases)


def written(releases: Mapping[str, Functions]) -> str:
    """Return the text of the file, for releases in their order, oldest first."""
    versions = list(releases)
    lines = []
    for name in sorted({name for each in releases.values() for name in each}):
        spans: list[list[Any]] = []
        for at, version in enumerate(versions):
            answer = releases[version].get(name)
            if answer is None:
                continue
            before = spans[-1][2] if spans and spans[-1][1] == at - 1 else {}
            if before.get("function") == answer["function"] and is_same(before, answer):
                spans[-1][1] = at
            else:
                spans.append([at, at, answer])
        lines.append(f"  {json.dumps(name)}: {json.dumps(spans)}")
    body = ",\n".join(lines)
    return f'{{\n "versions": {json.dumps(versions)},\n "functions": {{\n{body}\n }}\n}}\n'


def libraries() -> tuple[str, ...]:
    """Return the libraries whose functions can be measured."""
    return tuple(name for name in plugins.names() if (plugins.folder(name) / PROBE).is_file())


def measure_again(library: str, version: str, package: Path, into: Path | None = None) -> Path:
    """Measure the functions of a release, and keep them beside those of others. Return the file.

    into: the folder that holds the library's tables; None: the library's own.
    """
    file = (into or plugins.folder(library)) / KEPT
    releases = {**_read(file), version: measure(library, version, package)}
    ordered = {each: releases[each] for each in sorted(releases, key=version_tuple)}
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(written(ordered), encoding="utf-8")
    read.cache_clear()
    return file


def changed(library: str, old: str, new: str) -> list[str] | None:
    """Return the functions that both releases have and that measure differently.

    Return None if one of the releases was not measured.
    """
    releases = read(library)
    if old not in releases or new not in releases:
        return None
    return differing(releases[old], releases[new])


def differing(before: Functions, after: Functions) -> list[str]:
    """Return the functions that both have and that measure differently."""
    return [n for n, each in before.items() if n in after and not is_same(each, after[n])]


def is_same(before: Any, after: Any) -> bool:
    """Return True if value and gradient of a function are equal, to CLOSE."""
    old, new = dict(_by_index(before)), dict(_by_index(after))
    if old.keys() != new.keys():
        return False
    most = CLOSE * max(map(abs, old.values()), default=0.0)
    return all(abs(each - new[at]) <= most for at, each in old.items())


def _by_index(answer: Any, at: str = "") -> Iterator[tuple[str, float]]:
    """Yield the place and the value of each number of an answer."""
    if isinstance(answer, Mapping):
        for name, each in answer.items():
            yield from _by_index(each, f"{at}.{name}")
    elif isinstance(answer, list):
        for index, each in enumerate(answer):
            yield from _by_index(each, f"{at}.{index}")
    elif isinstance(answer, int | float):
        yield at, float(answer)


def measured_in_both(library: str, old: str, new: str) -> set[str]:
    """Return the library's functions, by their names there, that were measured in both releases."""
    before, after = (read(library).get(version, {}) for version in (old, new))
    functions = {name: each["function"] for name, each in before.items()}
    return {each["function"] for n, each in after.items() if functions.get(n) == each["function"]}


def changed_text(library: str, old: str, new: str) -> str:
    """Return a sentence on the functions that measure differently; empty for none."""
    names = changed(library, old, new)
    if not names:
        return ""
    functions = "1 function measures" if len(names) == 1 else f"{len(names)} functions measure"
    return f"around the KL, {functions} differently in {new} than in {old}: {', '.join(names)}"
