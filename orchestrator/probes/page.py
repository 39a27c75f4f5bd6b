"""The page docs/kl_in_libraries.md, made from the evidence: what `kl` means in each library."""

from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.estimators import plain_names
from orchestrator.probes import alone, corrections, evidence
from orchestrator.probes.capability import CapabilityRow, Release, matrix, words
from orchestrator.probes.evidence import EstimatorCurve, curve_text
from orchestrator.probes.findings import findings, grouped_by_releases

TextTable = Sequence[Sequence[str]]

HEAD = """# What `kl` means in each library

This page is made by `orch matrix --format md`; nothing on it was typed in. Every entry, but for
those under *Not measured*, was measured in the library's own functions, taken from the released
source and run in double precision on the CPU: its KL function, its reward penalty, its advantages
and its loss, on every sequence of a model whose gradients are known exactly. `x` is log π/π_ref of
a sampled token, `w` is π/π_rollout.

The same estimator, the same place and the same β are **different regularisers** in different rows.
"""

EVIDENCE = (
    "Each release's evidence lies in `backends/<library>/evidence/<version>.json`: the measured "
    "gradients, and the hash of each function they rest on. `orch matrix --measure` measures again."
    "\n"
)

NOT_MEASURED = (
    "Differences that training would show and that no function of the library could be run for: "
    "read in its source, or left out of the embedded trainer's dialect. `orch compare --by "
    "backend` repeats them beside its numbers.\n"
)

ALONE = (
    "orch does not train with these. The functions that compute their KL were taken out of a "
    "checkout and run alone; what the trainer puts around them (a weight, a mean over tokens) is "
    "written in `backends/<library>/kl_probe.py`, and `measured.json` beside it keeps the answers. "
    "A KL in the reward whose way into the advantage was not run is *not asked as a whole*. "
    "`orch matrix --measure --library slime@0.3.1 --source CHECKOUT` measures again.\n"
)

CORRECTED = (
    "TIS, MIS, IcePop and rejection, in the library's own words, with the bounds that the row "
    "names. The library's gradient was measured on 600 responses of one to four tokens whose "
    "log-ratios lie on both sides of every bound, and compared with each weight that orch knows. A "
    "row `loss.correction.kind=...` is a cell of orch in the launch that orch writes for it. A "
    "launch in the library's own words that has the same meaning names that kind; `-`: no kind "
    "has it. A KL in the reward is weighted as the policy loss is.\n"
)

SUMMED = (
    "With rloo and a mean over tokens; with the sum over a response where a release trains that KL "
    "with no other loss (TRL's RLOOTrainer).\n"
)

WITHIN = {
    "response": "every token of the response (summed)",
    "to_go": "its token and those before it (reward-to-go)",
    "token": "its own token only",
    "none": "-",
    "other": "an uneven share of its response",
}
OTHERS = {
    "none": "outside the baseline",
    "leave_one_out": "inside the leave-one-out baseline",
    "group_mean": "inside the group's mean",
    "group": "inside the group's normalisation",
    "batch": "inside the batch's whitening",
}
MEANS = {
    "token_mean": "mean over tokens",
    "sequence_mean": "mean over sequences",
    "constant": "sum over a constant",
    "other": "other weights",
    "refused": "refused",
}


def page(chosen: Sequence[Release], read_only: Sequence[Release] = ()) -> str:
    """Return the page about these releases, as Markdown. `read_only`: of libraries only read."""
    known = [release for release in chosen if evidence.read(*release)]
    rows = matrix(known)
    parts = [
        HEAD,
        "## In one table\n",
        _markdown(_summary(known)),
        _reading(),
        "## What was found\n",
        "\n".join(f"- {line}" for line in findings(known)) + "\n",
        "## What each term optimises, on-policy\n",
        SUMMED,
        _objectives(rows, known, off_policy=False),
        "## ... and on samples of an older policy\n",
        "Minibatches after the first, or a staleness of one step; π_rollout wrote the samples.\n",
        _objectives(rows, known, off_policy=True),
        "## How a KL in the reward enters the advantage\n",
        _markdown(_advantages(known)),
        "## What the loss is averaged over\n",
        "Of one micro-batch that is the whole minibatch.\n",
        _markdown(_averages(known)),
        "## What corrects the engine's mismatch\n",
        CORRECTED,
        _markdown([corrections.COLUMNS, *corrections.rows(known)]),
        "## Names\n",
        _markdown(_names(known)),
        "## Not measured\n",
        NOT_MEASURED,
        _markdown(_unmeasured(known)),
        "## Libraries that are only read\n",
        ALONE,
        _markdown(_alone(read_only)),
        "\n".join(f"- {each}" for each in alone.provenance(read_only)) + "\n",
        "## Evidence\n",
        _sources(known),
    ]
    return "\n".join(part.rstrip("\n") + "\n" for part in parts)


def _read(release: Release) -> Mapping[str, Any]:
    measured = evidence.read(*release)
    if measured is None:
        raise LookupError(release)
    return measured


def _reading() -> str:
    return (
        "**A launch that says nothing** about KL: the KL term that is on all the same. **In the "
        "reward** (rloo): which tokens' advantages one token's KL changes, and whether the other "
        "rollouts' baseline sees it. **Bounds**: where one binds there is no gradient. **In the "
        "loss** (token mean asked for): what the KL term is averaged over, beside the policy loss. "
        "**Weight**: whether a KL in the loss is corrected for samples of an older policy.\n"
    )


def _summary(known: Sequence[Release]) -> TextTable:
    head = (
        "library",
        "a launch that says nothing",
        "in the reward: one token's KL moves",
        "baseline",
        "in the loss",
        "policy loss",
        "weight of the KL loss off-policy",
        "bounds",
    )
    rows: dict[tuple[str, ...], list[str]] = {}
    for library, version in known:
        rows.setdefault((library, *_summarised((library, version))), []).append(version)
    return [
        head,
        *((f"**{row[0]}** {', '.join(versions)}", *row[1:]) for row, versions in rows.items()),
    ]


def _summarised(release: Release) -> list[str]:
    measured = _read(release)
    reward = measured["reward"].get("rloo", {})
    loss = measured["loss"].get("token_mean", {})
    weighted = [n["name"] for n in measured["names"] if "rho" in str(n.get("gradient"))]
    return [
        _silent(measured["silent"]),
        WITHIN.get(reward.get("within"), "refused"),
        OTHERS.get(reward.get("others"), "-"),
        MEANS.get(loss.get("kl"), "refused"),
        MEANS.get(loss.get("policy"), "refused"),
        "only by " + ", ".join(f"`{name.partition(' ')[2]}`" for name in weighted[:1])
        if weighted
        else "none"
        if measured["names"]
        else "as the hook asks",
        _bounds(measured),
    ]


def _silent(silent: Mapping[str, Any]) -> str:
    on = [
        f"{each['estimator']} in the {place}, β = {each['beta']:g}"
        for place, each in silent.items()
        if each and place != "proximal"
    ]
    if silent["proximal"]:
        each = silent["proximal"]
        on.append(
            f"{each['estimator']} to the *rollout* policy in the loss, weight {each['beta']:g}"
        )
    return "; ".join(on) or "no KL"


def _bounds(measured: Mapping[str, Any]) -> str:
    names_by_words: dict[str, list[str]] = {}
    for each in measured["names"]:
        if each.get("value_bound") and each["name"] in plain_names():
            words_ = curve_text(_curve(each)).partition(", ")[2]
            names_by_words.setdefault(words_, [])
            if each["name"] not in names_by_words[words_]:
                names_by_words[words_].append(each["name"])
    return (
        "; ".join(f"{', '.join(names)} {text}" for text, names in names_by_words.items()) or "none"
    )


def _curve(name: Mapping[str, Any]) -> EstimatorCurve:
    return EstimatorCurve(
        **{key: value for key, value in name.items() if key not in ("place", "name")}
    )


def _objectives(
    rows: Sequence[CapabilityRow], known: Sequence[Release], *, off_policy: bool
) -> str:
    """Return one row for each KL term. Releases of a library with equal columns share a column."""
    by = {(row.label, row.library, row.version): row for row in rows}
    labels = list(dict.fromkeys(row.label for row in rows))
    columns: dict[tuple[str, ...], list[Release]] = {}
    for library, version in known:
        column = tuple(_cell(by[label, library, version], off_policy) for label in labels)
        key = (library, *column)
        columns.setdefault(key, []).append((library, version))
    heads = [f"{of[0][0]} {', '.join(version for _, version in of)}" for of in columns.values()]
    body = [
        [f"`{label}`", *(column[1 + i] for column in columns)]
        for i, label in enumerate(labels)
        if any(column[1 + i] != "-" for column in columns)
    ]
    table = _markdown([["KL term", *heads], *body])
    return table + (
        "\n≈ approximated, † through an extension of ours, - refused (`orch matrix --format json` "
        "says why), ! the verdict of `orch explain` says otherwise.\n"
    )


def _cell(row: CapabilityRow, off_policy: bool) -> str:
    verdict = row.off_policy if off_policy else row.on_policy
    if row.status == "refused" or verdict is None or "refused" in verdict:
        return "-"
    mark = {"exact": "", "approximated": " ≈", "extension": " †"}[row.status]
    return words(verdict) + mark + ("" if verdict.get("agrees") else " !")


def _advantages(known: Sequence[Release]) -> TextTable:
    advantages = ("rloo", "grpo", "dr_grpo", "reinforce")
    return [
        ("library", *advantages),
        *(
            (f"{release[0]} {release[1]}", *(_entering(_read(release), a) for a in advantages))
            for release in known
        ),
    ]


def _entering(measured: Mapping[str, Any], advantage: str) -> str:
    each = measured["reward"][advantage]
    if "refused" in each:
        return "-"
    if "error" in each:
        return f"raises {each['error'].partition(':')[0]}"
    told_ = f"{WITHIN[each['within']]}, {OTHERS[each['others']]}"
    if each["divided_by_deviation"] and each["others"] == "none":
        return told_ + "; the task reward alone is divided by the deviation"
    return told_ + ("; divided by its deviation" if each["divided_by_deviation"] else "")


def _averages(known: Sequence[Release]) -> TextTable:
    averages = ("token_mean", "sequence_mean", "constant")
    return [
        ("library", *(f"asked for {name}: policy loss / KL in the loss" for name in averages)),
        *(
            (f"{release[0]} {release[1]}", *(_average(_read(release)["loss"][a]) for a in averages))
            for release in known
        ),
    ]


def _average(each: Mapping[str, Any]) -> str:
    if "refused" in each or "error" in each:
        return "-"
    same = each["kl"] in (each["policy"], "refused")
    return f"{MEANS[each['policy']]} / {MEANS[each['kl']]}" + ("" if same else " **(differ)**")


def _alone(releases: Sequence[Release]) -> TextTable:
    head = ("library", "name", "KL in the", "computes", "objective on-policy", "on old samples")
    return [head, *alone.table(releases)]


def _names(known: Sequence[Release]) -> TextTable:
    """Return a row for each estimator's name. Releases of a library that agree share a row."""
    rows: dict[tuple[str, str, str, str], list[str]] = {}
    for library, version in known:
        for each in _read((library, version))["names"]:
            text = f"raises {each['error']}" if "error" in each else curve_text(_curve(each))
            if "error" not in each and "rho" in each["gradient"]:
                text += ", weighted by w held fixed"
            rows.setdefault((library, each["name"], each["place"], text), []).append(version)
    merged: dict[tuple[str, str, str, str], list[str]] = {}
    for (library, name, place, text), versions in rows.items():
        merged.setdefault((library, ", ".join(versions), name, text), []).append(place)
    return [
        ("library", "name", "in", "per token"),
        *(
            (f"{library} {versions}", f"`{name}`", " and ".join(places), text)
            for (library, versions, name, text), places in merged.items()
        ),
    ]


def _unmeasured(known: Sequence[Release]) -> TextTable:
    rows = [
        (*sentence, "; ".join(f"{library} {version}" for library, version in of))
        for sentence, of in grouped_by_releases(known).items()
    ]
    return [("what", "in the library", "why it is not measured", "releases"), *rows]


def _sources(known: Sequence[Release]) -> str:
    lines = [EVIDENCE]
    for library, version in known:
        measured = _read((library, version))
        commit = f", commit `{measured['commit'][:9]}`" if "commit" in measured else ""
        head = f"**{library} {version}**{commit} ({measured['arithmetic']})."
        lines.append(f"{head} Stood in for: {measured['stood_in']}.\n")
        files: dict[str, list[str]] = {}
        for key, where in measured["sources"].items():
            file, _, name = key.partition(":")
            files.setdefault(file, []).append(f"`{name}` ({where['line']})")
        lines += [f"- `{file}`: {', '.join(names)}" for file, names in files.items()]
        lines.append("")
    return "\n".join(lines)


def _markdown(table: TextTable) -> str:
    head, *body = table
    rule = ["---"] * len(head)
    return "\n".join(_line(row) for row in (head, rule, *body)) + "\n"


def _line(row: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |"
