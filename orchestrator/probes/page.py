"""The page docs/kl_in_libraries.md, made from the evidence: what `kl` means in each library.

`findings` are its sentences on what a user would not expect.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from orchestrator.estimators import plain_names
from orchestrator.kl.differences import DIFFERENCES, describe, differing
from orchestrator.kl.library_semantics import PLAIN
from orchestrator.probes import alone, corrections, evidence
from orchestrator.probes.capability import CapabilityRow, Release, matrix, words
from orchestrator.probes.evidence import EstimatorCurve, curve_text
from orchestrator.settings import BackendRef
from orchestrator.spec.rehearse import semantics

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

BESIDE = (
    "Measured in the library's own functions after a train step, on the same responses; a release "
    "has no row for what it lacks, or for what none of its functions does alone. `token`, "
    "`sequence` and `sequence_mean` (GSPO) are the values of `loss.ratio_level` and "
    "`kl.ratio_level`. A controller was run at five targets, a moving reference for four steps.\n"
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
        "## Ratio levels, controllers of β, and references that move\n",
        BESIDE,
        _markdown([corrections.BESIDE, *corrections.beside_rows(known)]),
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


EvidenceMapping = Mapping[str, Any]


def findings(known: Sequence[Release]) -> list[str]:
    """Return sentences about these releases. A sentence true of several names them together."""
    releases_by_sentence: dict[str, list[Release]] = {}
    for release in known:
        measured = evidence.read(*release)
        if measured is None:
            continue
        for rule in RULES:
            for sentence in rule(measured):
                releases_by_sentence.setdefault(sentence, []).append(release)
    return [f"**{_releases(of)}**: {sentence}" for sentence, of in releases_by_sentence.items()]


def _releases(of: Sequence[Release]) -> str:
    by: dict[str, list[str]] = {}
    for library, version in of:
        by.setdefault(library, []).append(version)
    return "; ".join(f"{library} {', '.join(versions)}" for library, versions in by.items())


def _silence(measured: EvidenceMapping) -> Iterator[str]:
    silent = measured["silent"]
    for place in ("reward", "loss"):
        if silent[place]:
            each = silent[place]
            yield (
                f"a launch that says nothing about KL trains with {each['estimator']} in the "
                f"{place}, β = {each['beta']:g}"
            )
    if silent["proximal"]:
        each = silent["proximal"]
        yield (
            "a launch that says nothing about KL has a penalty in its loss, but towards the policy "
            f"that sampled, not the reference policy ({each['estimator']}, weight {each['beta']:g})"
        )


def _average_sentences(measured: EvidenceMapping) -> Iterator[str]:
    for average, each in measured["loss"].items():
        if each.get("policy") and each["kl"] not in (each["policy"], "refused"):
            yield (
                f"asked for `{average}`, it averages the policy loss by `{each['policy']}` and the "
                f"KL in the loss by `{each['kl']}`: what β means depends on response lengths"
            )


def _credit(measured: EvidenceMapping) -> Iterator[str]:
    each = measured["reward"].get("rloo", {})
    if each.get("within") == "to_go":
        yield (
            "a KL in the reward is subtracted token by token after the baseline and summed from "
            "each token on: the expected gradient of the whole sum, with another variance"
        )
    if each.get("within") == "response" and each.get("others") == "leave_one_out":
        yield "a KL in the reward is summed over the response and lies inside the group's baseline"
    if each.get("within") == "response" and each.get("others") == "none":
        yield (
            "a KL in the reward is summed over the response and subtracted after the baseline, "
            "which does not see it: the KL keeps its full variance"
        )
    grpo = measured["reward"].get("grpo", {})
    if grpo.get("divided_by_deviation") and grpo.get("others") == "group":
        yield (
            "with grpo the KL in the reward is inside what is divided by the group's deviation: "
            "where task rewards are equal, the KL alone is scaled to unit size, whatever β"
        )
    elif grpo.get("divided_by_deviation"):
        yield (
            "with grpo only the task reward is divided by the group's deviation, the KL is not: β "
            "counts in units of that deviation"
        )


def _clamps(measured: EvidenceMapping) -> Iterator[str]:
    for each in measured["names"]:
        plain = each["name"] in plain_names() and each["place"] == "loss"
        if plain and each.get("flat_below") is not None:
            yield (
                f"`{each['name']}` in the loss is held within ±{each['value_bound']:g}, and has no "
                f"gradient once log π/π_ref is below {each['flat_below']:g} or above "
                f"{each['flat_above']:g}: a policy that far away is not pulled back"
            )


def _straight_through(measured: EvidenceMapping) -> Iterator[str]:
    names = [each for each in measured["names"] if each.get("straight_through")]
    loss = [each for each in names if each["place"] == "loss"]
    weighted = [each for each in loss if each["gradient"] == "sg_rho_k2"]
    plain = [each for each in loss if each["gradient"] == "k2"]
    if plain:
        listed = ", ".join(f"`{each['name']}`" for each in plain)
        yield f"{listed} in the loss log their own value and have the gradient of k2, all the same"
    if weighted:
        bound = weighted[0]["weight_bound"]
        limit = f", w at most {bound:g}" if bound else ""
        listed = ", ".join(f"`{each['name']}`" for each in weighted)
        yield f"{listed} log their own value and have the gradient w x{limit}: one and the same"


def _broken_names(measured: EvidenceMapping) -> Iterator[str]:
    for each in measured["names"]:
        if "error" in each and each["place"] == "loss":
            yield f"`{each['name']}` is accepted by the configuration and raises {each['error']}"


def _objective_sentences(measured: EvidenceMapping) -> Iterator[str]:
    native = [each for each in measured["cells"] if each["on_policy"] and "objective" in each]
    noise = [f"`{_label(c)}`" for c in native if c["objective"] == "zero"]
    if noise:
        yield f"{', '.join(noise)}: no gradient in expectation, it is noise and regularises nothing"
    off = [each for each in measured["cells"] if not each["on_policy"]]
    policy = [each for each in off if each.get("reward_kl_of") == "policy"]
    if policy:
        yield (
            "a KL in the reward is computed with the policy being updated, not once per rollout "
            "batch with the policy that sampled: off-policy it is another surrogate"
        )
    wrong = [f"`{_label(c)}`" for c in measured["cells"] if c.get("agrees") is False]
    if wrong:
        yield f"measured otherwise than `orch explain` says: {', '.join(dict.fromkeys(wrong))}"


def _label(cell: Mapping[str, Any]) -> str:
    return f"{cell['estimator']}.{str(cell['placement']).replace('reward_and_loss', 'both')}"


def _natives(measured: EvidenceMapping) -> Iterator[str]:
    names: dict[tuple[str, str], list[str]] = {}
    for each in measured["natives"]:
        objectives = (words(each["on_policy"]), words(each["off_policy"]))
        names.setdefault(objectives, []).append(f"`{each['name']}`")
    for (on, off), own in names.items():
        is_ = "is" if len(own) == 1 else "are each"
        yield f"its own {', '.join(own)} {is_} {on} on-policy, and on older samples {off}"


def _ratio(measured: EvidenceMapping) -> Iterator[str]:
    above = measured["ratio"]["flat_above"]
    if above is None:
        yield "without a clip the policy loss does not bound its importance ratio at all"


RULES: tuple[Callable[[EvidenceMapping], Iterator[str]], ...] = (
    _silence,
    _average_sentences,
    _credit,
    _clamps,
    _straight_through,
    _broken_names,
    _objective_sentences,
    _natives,
    _ratio,
    corrections.sentences,
    corrections.levels,
)


# Mathematics of a release that was not measured: read in its source, or left out of rehearsals.


Unmeasured = tuple[str, str, str]
"""The property, its value in the release, and the reason why it was not measured."""
LEFT_OUT = "left out of the rehearsal"


def unmeasured_differences(library: str, version: str) -> list[Unmeasured]:
    """Return the differences that were only read in the source, then those no rehearsal has."""
    meaning = semantics(BackendRef(name=library, version=version))
    read = [
        (
            DIFFERENCES[cause].title,
            describe(meaning.dialect, cause),
            DIFFERENCES[cause].not_compared,
        )
        for cause in differing(meaning.dialect, PLAIN)
        if DIFFERENCES[cause].not_compared
    ]
    return read + [("not imitated", sentence, LEFT_OUT) for sentence in meaning.omits]


def grouped_by_releases(known: Sequence[Release]) -> dict[Unmeasured, list[Release]]:
    """Return each unmeasured difference of these releases, with the releases that share it."""
    by: dict[Unmeasured, list[Release]] = {}
    for release in known:
        for sentence in unmeasured_differences(*release):
            by.setdefault(sentence, []).append(release)
    return by
