"""The page docs/kl_in_libraries.md: what each KL term is in each release, from the evidence.

`python -m docs.tools.kl_in_libraries` prints it. The tables show the evidence, and `findings` says
in sentences what a user would not expect. A test compares the page with the output.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from orchestrator import plugins
from orchestrator.estimators import plain_names
from orchestrator.evidence import stored
from orchestrator.evidence.capabilities import STATUS_MARKS, CapabilityRow, matrix
from orchestrator.evidence.cells import Release, releases
from orchestrator.evidence.stored import (
    ALL_TOKENS,
    ReleaseEvidence,
    curve_of,
    curve_text,
    objective_text,
)
from orchestrator.lab.probes import read_only_releases
from orchestrator.lab.probes.matrix import (
    CORRECTION_COLUMNS,
    RATIO_OF,
    correction_rows,
    grouped,
    unmeasured_differences,
    weight_text,
)

TextTable = Sequence[Sequence[str]]


HEAD = """# What `kl` means in each library

This page is made by `python -m docs.tools.kl_in_libraries`; nothing on it was typed in. Every
entry, but for those under *Not measured*, was measured in the library's own functions, taken from
the released source and run in double precision on the CPU: its KL function, its reward penalty,
its advantages and its loss, on every sequence of a model whose gradients are known exactly. `x` is
log π/π_ref of a sampled token, `w` is π/π_rollout.

The same estimator, the same place and the same β are **different regularisers** in different rows.
"""


EVIDENCE = (
    "Each release's evidence lies in `backends/<library>/evidence/<version>.json`: the measured "
    "gradients, and the hash of each function they rest on. `python -m orchestrator.lab measure` "
    "measures again."
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
    "written in `backends/<library>/lab/kl_probe.py`, and `measured.json` of the library keeps the "
    "answers. "
    "A KL in the reward whose way into the advantage was not run is *not asked as a whole*. "
    "`python -m orchestrator.lab measure slime@0.3.1 --source CHECKOUT` measures again.\n"
)


CORRECTED = (
    "TIS, MIS, IcePop and rejection, in the library's own words, with the bounds that the row "
    "names. The library's gradient was measured on 600 responses of one to four tokens whose "
    "log-ratios lie on both sides of every bound, and compared with each weight that orch knows. A "
    "row `loss.correction.kind=...` is a cell of orch in the launch that orch writes for it. A "
    "launch in the library's own words that has the same meaning names that kind; `-`: no kind "
    "has it. A KL in the reward is weighted as the policy loss is.\n"
)


SURROUNDINGS = (
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
    known = [release for release in chosen if stored.read(*release)]
    rows = matrix(known)
    parts = [
        HEAD,
        "## In one table\n",
        markdown_table(_summary(known)),
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
        markdown_table(_advantages(known)),
        "## What the loss is averaged over\n",
        "Of one micro-batch that is the whole minibatch.\n",
        markdown_table(_averages(known)),
        "## What corrects the engine's mismatch\n",
        CORRECTED,
        markdown_table([CORRECTION_COLUMNS, *correction_rows(known)]),
        "## Ratio levels, controllers of β, and references that move\n",
        SURROUNDINGS,
        markdown_table([SURROUNDINGS_COLUMNS, *surroundings_rows(known)]),
        "## Names\n",
        markdown_table(_names(known)),
        "## Not measured\n",
        NOT_MEASURED,
        markdown_table(_unmeasured(known)),
        "## Libraries that are only read\n",
        ALONE,
        markdown_table(_alone(read_only)),
        "\n".join(f"- {each}" for each in _provenance(read_only)) + "\n",
        "## Evidence\n",
        _sources(known),
    ]
    return "\n".join(part.rstrip("\n") + "\n" for part in parts)


def _read(release: Release) -> Mapping[str, Any]:
    measured = stored.read(*release)
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
    rows = grouped(
        ((library, *_summarised((library, version))), version) for library, version in known
    )
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
    names = grouped(
        (curve_text(curve_of(each)).partition(", ")[2], each["name"])
        for each in measured["names"]
        if each.get("value_bound") and each["name"] in plain_names()
    )
    parts = (f"{', '.join(dict.fromkeys(same))} {text}" for text, same in names.items())
    return "; ".join(parts) or "none"


def _objectives(
    rows: Sequence[CapabilityRow], known: Sequence[Release], *, off_policy: bool
) -> str:
    """Return one row for each KL term. Releases of a library with equal columns share a column."""
    by = {(row.label, row.library, row.version): row for row in rows}
    labels = list(dict.fromkeys(row.label for row in rows))
    columns = grouped(
        ((library, *(_cell(by[label, library, version], off_policy) for label in labels)), version)
        for library, version in known
    )
    heads = [f"{column[0]} {', '.join(versions)}" for column, versions in columns.items()]
    body = [
        [f"`{label}`", *(column[1 + i] for column in columns)]
        for i, label in enumerate(labels)
        if any(column[1 + i] != "-" for column in columns)
    ]
    table = markdown_table([["KL term", *heads], *body])
    return table + (
        "\n≈ approximated, † through an extension of ours, - refused "
        "(`orch explain --libraries --json` says why), ! the verdict of `orch explain` says "
        "otherwise.\n"
    )


def _cell(row: CapabilityRow, off_policy: bool) -> str:
    verdict = row.off_policy if off_policy else row.on_policy
    if row.status == "refused" or verdict is None or "refused" in verdict:
        return "-"
    return (
        objective_text(verdict) + STATUS_MARKS[row.status] + ("" if verdict.get("agrees") else " !")
    )


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
    text = f"{WITHIN[each['within']]}, {OTHERS[each['others']]}"
    if each["divided_by_deviation"] and each["others"] == "none":
        return text + "; the task reward alone is divided by the deviation"
    return text + ("; divided by its deviation" if each["divided_by_deviation"] else "")


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
    return [head, *read_only_releases.table(releases)]


def _names(known: Sequence[Release]) -> TextTable:
    """Return a row for each estimator's name. Releases of a library that agree share a row."""
    rows = grouped(
        ((library, each["name"], each["place"], _per_token(each)), version)
        for library, version in known
        for each in _read((library, version))["names"]
    )
    merged = grouped(
        ((library, ", ".join(versions), name, text), place)
        for (library, name, place, text), versions in rows.items()
    )
    return [
        ("library", "name", "in", "per token"),
        *(
            (f"{library} {versions}", f"`{name}`", " and ".join(places), text)
            for (library, versions, name, text), places in merged.items()
        ),
    ]


def _per_token(name: Mapping[str, Any]) -> str:
    """Return the measured value and gradient of an estimator's name in words."""
    if "error" in name:
        return f"raises {name['error']}"
    weighted = ", weighted by w held fixed" if "rho" in name["gradient"] else ""
    return curve_text(curve_of(name)) + weighted


def _unmeasured(known: Sequence[Release]) -> TextTable:
    releases = grouped(
        (difference, f"{library} {version}")
        for library, version in known
        for difference in unmeasured_differences(library, version)
    )
    rows = [(*difference, "; ".join(of)) for difference, of in releases.items()]
    return [("what", "in the library", "why it is not measured", "releases"), *rows]


SURROUNDINGS_COLUMNS = ("library", "of", "launch", "measured")


SUBJECTS = {
    "level": "ratio level",
    "controller": "adaptive β",
    "reference": "reference that moves",
}


def surroundings_rows(known: Sequence[Release]) -> list[tuple[str, ...]]:
    """Return a row of SURROUNDINGS_COLUMNS for each level, controller and moving reference."""
    versions = grouped(
        ((library, SUBJECTS[each["subject"]], f"`{each['name']}`", _surrounding(each)), version)
        for library, version in known
        for each in (stored.read(library, version) or {}).get("beside", ())
    )
    rows = [(f"{key[0]} {', '.join(of)}", *key[1:]) for key, of in versions.items()]
    return sorted(rows, key=lambda row: list(SUBJECTS.values()).index(row[1]))


def _surrounding(each: Mapping[str, Any]) -> str:
    if "error" in each:
        return f"raises {each['error']}"
    if each["subject"] == "level":
        policy, kl = each["policy"], each.get("kl")
        text = f"policy loss: {_level(policy)}"
        return text if kl is None else f"{text}; KL in the loss: {_level(kl)}"
    if each["subject"] == "controller":
        return f"β follows {each['follows']}; a step counts {each.get('counts', '?')}"
    return "as the cell says" if each["agrees"] else "otherwise than the cell says"


def _level(part: Mapping[str, Any]) -> str:
    if part["level"] == "?":
        return "no level that orch knows"
    level = "no ratio" if part["level"] == "none" else f"`{part['level']}`"
    return level + ("" if part["divisor"] == ALL_TOKENS else f", divided by {part['divisor']}")


def markdown_table(table: TextTable) -> str:
    """Return a table as Markdown; its first row is the head."""
    head, *body = table
    rule = ["---"] * len(head)
    return "\n".join(_line(row) for row in (head, rule, *body)) + "\n"


def _line(row: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |"


def findings(known: Sequence[Release]) -> list[str]:
    """Return sentences about these releases. A sentence true of several names them together."""
    releases = grouped(
        (sentence, release)
        for release in known
        if (measured := stored.read(*release)) is not None
        for rule in RULES
        for sentence in rule(measured)
    )
    return [f"**{_releases(of)}**: {sentence}" for sentence, of in releases.items()]


def _releases(of: Sequence[Release]) -> str:
    return "; ".join(f"{library} {', '.join(of)}" for library, of in grouped(of).items())


def _silence(measured: ReleaseEvidence) -> Iterator[str]:
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


def _average_sentences(measured: ReleaseEvidence) -> Iterator[str]:
    for average, each in measured["loss"].items():
        if each.get("policy") and each["kl"] not in (each["policy"], "refused"):
            yield (
                f"asked for `{average}`, it averages the policy loss by `{each['policy']}` and the "
                f"KL in the loss by `{each['kl']}`: what β means depends on response lengths"
            )


def _credit(measured: ReleaseEvidence) -> Iterator[str]:
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


def _clamps(measured: ReleaseEvidence) -> Iterator[str]:
    for each in measured["names"]:
        plain = each["name"] in plain_names() and each["place"] == "loss"
        if plain and each.get("flat_below") is not None:
            yield (
                f"`{each['name']}` in the loss is held within ±{each['value_bound']:g}, and has no "
                f"gradient once log π/π_ref is below {each['flat_below']:g} or above "
                f"{each['flat_above']:g}: a policy that far away is not pulled back"
            )


def _straight_through(measured: ReleaseEvidence) -> Iterator[str]:
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


def _broken_names(measured: ReleaseEvidence) -> Iterator[str]:
    for each in measured["names"]:
        if "error" in each and each["place"] == "loss":
            yield f"`{each['name']}` is accepted by the configuration and raises {each['error']}"


def _objective_sentences(measured: ReleaseEvidence) -> Iterator[str]:
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


def _natives(measured: ReleaseEvidence) -> Iterator[str]:
    names = grouped(
        (
            (objective_text(each["on_policy"]), objective_text(each["off_policy"])),
            f"`{each['name']}`",
        )
        for each in measured["natives"]
    )
    for (on, off), own in names.items():
        is_ = "is" if len(own) == 1 else "are each"
        yield f"its own {', '.join(own)} {is_} {on} on-policy, and on older samples {off}"


def _ratio(measured: ReleaseEvidence) -> Iterator[str]:
    above = measured["ratio"]["flat_above"]
    if above is None:
        yield "without a clip the policy loss does not bound its importance ratio at all"


def _correction_sentences(measured: Mapping[str, Any]) -> Iterator[str]:
    """Yield what would surprise a user of a release's corrections."""
    own = [each for each in measured.get("corrections", {}).get("own", ()) if "policy" in each]
    for each in own:
        if each.get("silent") and each["policy"]["weight"] not in ("1", "?"):
            yield (
                f"a launch that says nothing of a correction (`{each['name']}`) weights tokens "
                f"all the same, by {weight_text(each['policy'])} ({RATIO_OF[each['policy']['of']]})"
            )
    inverse = [f"`{each['name']}`" for each in own if "the inverse of" in each["policy"]["weight"]]
    if inverse:
        yield (
            f"{', '.join(inverse)}: the bounds are of the inverse ratio, engine / proximal policy: "
            "0.5 and 3 keep ratios from 1/3 to 2"
        )
    corrected = [each for each in own if each["policy"]["weight"] != "1" and "kl" in each]
    smaller = [each for each in corrected if each["kl"]["weight"] != "1"]
    if smaller:
        listed = ", ".join(f"`{each['name'].split()[0]}`" for each in smaller)
        divided = all(each["policy"]["divisor"] != ALL_TOKENS for each in smaller)
        yield (
            f"{listed}: what is rejected in the policy loss is rejected in the KL in the loss too"
            f"{', and leaves the divisor of both means' if divided else ''}: β keeps its proportion"
        )
    alone = [each for each in corrected if each["kl"]["weight"] == "1"]
    if alone:
        yield (
            f"{_part(len(alone), len(corrected))} of its measured corrections of the engine's "
            "mismatch weight the policy loss and leave the KL in the loss as it is: where the "
            "weight is below 1, β counts more"
        )


def _part(count: int, of: int) -> str:
    return f"all {of}" if count == of else f"{count} of {of}"


def _level_sentences(measured: Mapping[str, Any]) -> Iterator[str]:
    """Yield what would surprise a user of a release's ratio levels."""
    of_levels = [each for each in measured.get("beside", ()) if each["subject"] == "level"]
    both = [each for each in of_levels if "policy" in each and "kl" in each]
    for each in both:
        if each["kl"]["level"] not in ("none", "token", "?"):
            yield (
                f"`{each['name']}` multiplies the KL in the loss by the ratio of the response too: "
                "no divergence with a name (`orch explain gspo+k3`)"
            )
        divisors = each["policy"].get("divisor"), each["kl"].get("divisor")
        if (
            each["policy"]["level"] != "token"
            and divisors[0] != ALL_TOKENS
            and divisors[1] == ALL_TOKENS
        ):
            yield (
                f"`{each['name']}` averages the policy loss by response and the KL in the loss by "
                "token: what β means depends on response lengths"
            )


RULES: tuple[Callable[[ReleaseEvidence], Iterator[str]], ...] = (
    _silence,
    _average_sentences,
    _credit,
    _clamps,
    _straight_through,
    _broken_names,
    _objective_sentences,
    _natives,
    _ratio,
    _correction_sentences,
    _level_sentences,
)


def _sources(known: Sequence[Release]) -> str:
    lines = [EVIDENCE]
    for library, version in known:
        measured = _read((library, version))
        commit = f", commit `{measured['commit'][:9]}`" if "commit" in measured else ""
        head = f"**{library} {version}**{commit} ({measured['arithmetic']})."
        lines.append(f"{head} Stood in for: {measured['stood_in']}.\n")
        files = grouped(
            (key.partition(":")[0], f"`{key.partition(':')[2]}` ({where['line']})")
            for key, where in measured["sources"].items()
        )
        lines += [f"- `{file}`: {', '.join(names)}" for file, names in files.items()]
        lines.append("")
    return "\n".join(lines)


def _provenance(releases: Sequence[tuple[str, str]]) -> list[str]:
    """Return a sentence for each release, with its commit and the functions that were measured."""
    sentences = []
    for library, version in releases:
        about = read_only_releases.read(library).get(version)
        if about is not None:
            functions = ", ".join(f"`{each}`" for each in sorted(about["sources"]))
            title = plugins.load_reader(library).title
            sentences.append(f"{title} {version}, commit {about['commit'][:10]}: {functions}")
    return sentences


if __name__ == "__main__":
    sys.stdout.write(page(releases(), read_only_releases.chosen(())))
