"""The page docs/drift.md: where a release of a library changed the objective.

`python -m docs.tools.drift` prints it. For libraries that orch drives it shows measurements: the
evidence of each release, and a backend's defaults.json. For libraries that orch only audits, it
shows the audit of a launch in each release. A test compares the page with the output.
"""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from backends.nemo_rl.audit.reader import tables
from backends.openrlhf.lab import adoption as openrlhf
from backends.skyrl.lab import adoption as skyrl
from backends.trl.lab import adoption as trl
from backends.verl.lab import adoption as verl
from docs.tools.kl_in_libraries import markdown_table
from orchestrator import plugins
from orchestrator.estimators import TABLE
from orchestrator.evidence import stored
from orchestrator.evidence.cells import Release, releases
from orchestrator.evidence.stored import objective_text
from orchestrator.kl.catalogue import ObjectiveKind
from orchestrator.lab.adopt import loss_code
from orchestrator.lab.adopt.adoption import Adoption, history
from orchestrator.lab.probes import functions
from orchestrator.lab.probes.defaults import DefaultLaunches, read_defaults
from orchestrator.lab.probes.drift import script_changes
from orchestrator.library import adopted
from orchestrator.library.key_tables import (
    Option,
    Options,
    load_options,
    load_releases,
    version_tuple,
)

HEAD = """# Where a release changed the objective

This page is made by `python -m docs.tools.drift`; nothing on it was typed in. The
same launch, run on two releases of a library, may optimise two things. `orch audit SCRIPT --from
LIBRARY@VERSION --to LIBRARY@VERSION` says so of a script of yours.

Gradients are measured: the library's own functions, taken from each release's source, in double
precision on the CPU, over every sequence of a model whose gradients are known exactly. They are the
expected gradients in that model's two parameters, per unit of β.
"""


SAID = {"nothing": "a launch that says nothing of KL", "beta": "with β alone"}


FUNCTIONS = """## What surrounds the KL

Each policy loss, correction, aggregation, advantage and KL function on one batch, with the
library's defaults: its value, and its gradient in the log-probabilities. Every response of the
batch has a token. *Newly measured*: the release before lacks it, or it does not run there alone
(OpenRLHF's advantages before 0.9.10). TRL's loss is measured above, through its trainer.
"""
CHANGELOGS = """## Held against the changelogs

What a library's changelog says of the objective, read by hand, and whether this page shows it.
"""


CODE = """## Where the code itself is another one

Functions of the KL, the advantage and the policy loss that have another syntax tree than in the
release before it, of all releases that were read. Comments, annotations and line breaks do not
count. Another code may compute the same: only the sections above are measured.
"""
KEYS = """## Keys of what is optimised that came and went

By the release's own parser or, of a release that orch does not drive, by its source. TRL: options
of GRPOConfig with their defaults. Of the other libraries, defaults are known of driven releases.
"""
ADOPTIONS: Mapping[str, Adoption] = {
    "openrlhf": openrlhf,
    "skyrl": skyrl,
    "trl": trl,
    "verl": verl,
}
"""The libraries whose releases are adopted. mypy holds each module to the protocol here."""
WITH_DEFAULTS: Mapping[str, DefaultLaunches] = {"trl": trl}
"""Those of them whose default launches are measured, held to their protocol likewise."""
REGIMES = {"on_policy": "on-policy", "off_policy": "on samples of an older policy"}


def page(drives: Sequence[Release]) -> str:
    """Return the page as Markdown."""
    parts = [HEAD]
    kept = {library: read_defaults(library) for library in WITH_DEFAULTS}
    parts += [
        "\n".join(_of_defaults(plugins.load(library).title, measured))
        for library, measured in kept.items()
        if measured
    ]
    parts.append("## Releases that orch drives\n")
    parts += ["\n".join(f"- {line}" for line in _of_evidence(drives))]
    parts.append(FUNCTIONS)
    parts.append("\n".join(f"- {x}" for n in functions.libraries() for x in function_lines(n)))
    parts.append(CODE)
    parts.append("\n".join(f"- {x}" for name in loss_code.libraries() for x in code_lines(name)))
    parts.append(KEYS)
    parts.append("\n".join(f"- {x}" for name in plugins.names() for x in key_lines(name)))
    read = list(_of_audit())
    if read:
        parts.append("## Read, not measured\n")
        parts.append("The audit's reading of one launch, release by release.\n")
        parts.append("\n".join(f"- {line}" for line in read))
    parts.append(CHANGELOGS)
    parts.append(changelog_table("\n".join(parts)))
    return "\n".join(part.rstrip("\n") + "\n" for part in parts)


def _of_defaults(title: str, releases: Mapping[str, Any]) -> Iterator[str]:
    yield f"## {title}: {len(releases)} releases\n"
    spans: list[list[str]] = []
    for version, each in releases.items():
        if spans and _statement(releases[spans[-1][-1]]) == _statement(each):
            spans[-1].append(version)
        else:
            spans.append([version])
    keys = list(next(iter(releases.values()))["defaults"])
    head = [
        *(f"`{key}`" for key in keys),
        *SAID.values(),
        "the same, on samples of an older policy",
    ]
    rows = [["releases", *head]]
    for span in spans:
        last = releases[span[-1]]
        objectives = [_objective_text(last[default]["on_policy"]) for default in SAID]
        name = span[0] if len(span) == 1 else f"{span[0]} to {span[-1]}"
        settings = [_value(last["defaults"].get(key)) for key in keys]
        rows.append([name, *settings, *objectives, _objective_text(last["beta"]["off_policy"])])
    yield markdown_table(rows)
    for before, after in pairwise(spans):
        yield from _measured_changes(before[-1], after[0], releases[before[-1]], releases[after[0]])
    yield ""


def _statement(each: Mapping[str, Any]) -> object:
    """Return the objectives and defaults of a release. Releases with equal ones share a row."""
    objectives = [_objective_text(each[default][regime]) for default in SAID for regime in REGIMES]
    return objectives, each["defaults"]


def _measured_changes(
    old: str, new: str, before: Mapping[str, Any], after: Mapping[str, Any]
) -> Iterator[str]:
    defaults_ = [
        f"`{key}` was {_value(before['defaults'].get(key))} and is {_value(value)}"
        for key, value in after["defaults"].items()
        if before["defaults"].get(key) != value
    ]
    because = f" ({'; '.join(defaults_)})" if defaults_ else ""
    lines = []
    for default, label in SAID.items():
        for regime, where in REGIMES.items():
            was, now = before[default][regime], after[default][regime]
            if _objective_text(was) != _objective_text(now):
                lines.append(
                    f"  - {label}, {where}: {_objective_text(was)} → "
                    f"**{_objective_text(now)}**; gradient {_vector(was)} → {_vector(now)}"
                )
    headline = "the objective changes" if lines else "no objective changes on the measured launches"
    yield f"- **{old} → {new}**: {headline}{because}"
    yield from lines


def _objective_text(each: Mapping[str, Any]) -> str:
    """Return a measured objective in words, or `nothing` for a KL whose gradient is zero."""
    return "nothing" if each.get("objective") == ObjectiveKind.ZERO else objective_text(each)


def _vector(each: Mapping[str, Any]) -> str:
    return f"({', '.join(f'{x:.4g}' for x in each['gradient'])})" if "gradient" in each else "-"


def _value(value: object) -> str:
    return "not there" if value is None else str(value)


def _of_evidence(drives: Sequence[Release]) -> Iterator[str]:
    """Yield a sentence for each pair of neighbouring releases that were measured."""
    for library in dict.fromkeys(name for name, _ in drives):
        versions = [v for name, v in drives if name == library and stored.read(library, v)]
        known = sorted(versions, key=version_tuple)
        for old, new in pairwise(known):
            yield _pair(library, old, new)


def _pair(library: str, old: str, new: str) -> str:
    before, after = (stored.read(library, version) or {} for version in (old, new))
    differences = []
    if before["silent"] != after["silent"]:
        differences.append(f"a launch that says nothing: {before['silent']} → {after['silent']}")
    cells = [_by_term(each["cells"]) for each in (before, after)]
    both = [key for key in cells[0] if key in cells[1]]
    for key in both:
        was, now = cells[0][key], cells[1][key]
        if objective_text(was) != objective_text(now):
            estimator, place, on = key
            regime = "on-policy" if on else "off-policy"
            symbol = TABLE[estimator].symbol if estimator in TABLE else estimator
            differences.append(
                f"{symbol} in the {place}, {regime}: {objective_text(was)} → "
                f"**{objective_text(now)}**; gradient {_first(was)} → {_first(now)}"
            )
    same = f"none of the {len(both)} KL terms that were measured in both has another objective"
    sentence = "; ".join(differences) or (
        same if both else "what a launch does that says nothing is the same"
    )
    return f"**{library} {old} → {new}**: {sentence}"


def _by_term(cells: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str, bool], Any]:
    return {
        (each["estimator"], each["placement"], each["on_policy"]): each
        for each in cells
        if "objective" in each and each["placement"]
    }


def _first(each: Mapping[str, Any]) -> str:
    return _vector({"gradient": each["gradient"][0]})


def _of_audit() -> Iterator[str]:
    """Yield the changes that the audit finds in NeMo-RL's launches, release by release."""
    reader = plugins.load_reader("nemo_rl")
    for kind in ("k1", "k2", "k3"):
        text = (
            "uv run examples/run_grpo_math.py loss_fn.reference_policy_kl_penalty=0.01 "
            f"loss_fn.reference_policy_kl_type={kind}"
        )
        for old, new in pairwise(tables().versions):
            pair = (("nemo_rl", old), ("nemo_rl", new))
            for each in script_changes(text, "launch.sh", {}, {}, pair).changes:
                if each.objective:
                    why = f" ({'; '.join(each.because)})" if each.because else ""
                    yield (
                        f"**{reader.title} {old} → {new}**, {kind} in the loss: {each.before} → "
                        f"**{each.after}**{why}"
                    )


def changelog_table(shown: str) -> str:
    """Return what changelogs say of the objective, and whether a page shows it."""
    rows = [["release", "its changelog", "this page"]]
    for each in json.loads(CHANGES.read_text(encoding="utf-8")):
        pair = f"{each['old']} → {each['new']}**"
        starts = (f"- **{each['library']} {pair}", *([f"- **{pair}"] * (each["library"] == "trl")))
        lines = [line for line in shown.splitlines() if line.startswith(starts)]
        if "shows" in each and any(each["shows"] in line for line in lines):
            answer = each["shows"]
        else:
            answer = f"**missed**: {each.get('missed', 'no line of it')}"
        rows.append([f"{each['library']} {each['new']}", each["says"], answer])
    return markdown_table(rows)


CHANGES = Path(__file__).with_name("changelogs.json")
"""library, old, new, says, and what a line of this page has of it (`shows`), or why none has."""


def function_lines(library: str) -> Iterator[str]:
    """Yield a sentence for each pair of neighbouring releases: what measures differently."""
    measured = functions.read(library)
    for old, new in pairwise(measured):
        names = functions.changed(library, old, new) or []
        added = [name for name in measured[new] if name not in measured[old]]
        dropped = [name for name in measured[old] if name not in measured[new]]
        parts = [
            f"{what}: {', '.join(f'`{name}`' for name in listed)}"
            for what, listed in (
                ("**other numbers**", names),
                ("newly measured", added),
                ("no longer measured", dropped),
            )
            if listed
        ]
        same = f"the {len(measured[new])} functions measure the same"
        yield f"**{library} {old} → {new}**: {'; '.join(parts) or same}"


def code_lines(library: str) -> Iterator[str]:
    """Yield a sentence for each pair of neighbouring releases whose code differs."""
    for old, new in pairwise(loss_code.releases_of(library)):
        if names := loss_code.rewritten(library, old, new):
            listed = ", ".join(f"`{name.rpartition(': ')[2]}`" for name in names)
            yield f"**{library} {old} → {new}**: {listed}"


def key_lines(library: str) -> Iterator[str]:
    """Yield a sentence for each pair of neighbouring releases whose keys differ."""
    if library not in ADOPTIONS:
        return
    releases_ = _keys_of(library)
    for old, new in pairwise(releases_):
        before, after = releases_[old], releases_[new]
        parts = [
            f"{what}: {_few(listed)}"
            for what, listed in (
                ("new", sorted(after.keys() - before.keys())),
                ("gone", sorted(before.keys() - after.keys())),
            )
            if listed
        ]
        parts[:0] = [
            f"`{key}` was {before[key].default} and is {after[key].default}"
            for key in sorted(before.keys() & after.keys())
            if UNSAID not in (before[key], after[key]) and before[key].default != after[key].default
        ]
        if parts:
            yield f"**{library} {old} → {new}**: {'; '.join(parts)}"


def _few(keys: Sequence[str]) -> str:
    more = f" and {len(keys) - MOST} more" if len(keys) > MOST else ""
    return ", ".join(f"`{key}`" for key in keys[:MOST]) + more


MOST = 12
"""Keys that a sentence names."""
UNSAID = Option("")
"""A key of which only the name is known."""


def _keys_of(library: str) -> Mapping[str, Options]:
    """Return release -> its keys of the objective, oldest first."""
    adoption, folder = ADOPTIONS[library], plugins.folder(library)
    if kept := history(adoption):
        return {
            version: {k: each for k, each in options.items() if k.startswith("grpo.")}
            for version, options in load_options(folder / kept).items()
        }
    driven = load_options(folder / "options.json")
    names: dict[str, Options] = {}
    if (folder / "audit" / "keys.json").is_file():
        spans = adopted.releases(
            load_releases(folder / "audit" / "keys.json"), folder / "options.json"
        )
        for version in spans.versions:
            table = spans.table(version)
            names[version] = dict.fromkeys(table.keys if table else (), UNSAID)
    every = {**names, **driven}
    return {
        version: adoption.watched_options(folder, every[version]) for version in names or driven
    }


if __name__ == "__main__":
    sys.stdout.write(page(releases()))
