"""Measured experiments for the docs: their stored data, and the Markdown made from it.

`python -m docs.tools.measured SPEC` prints the data of a run as JSON: the files in `measured_runs/`
are such output. `python -m docs.tools.measured` prints docs/comedy.md, with `anchors.svg`
docs/pictures/anchors.svg, and beyond.py prints docs/beyond_the_paper.md: every number, verdict and
place in the sections on runs is of the files.
"""

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import inf
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from orchestrator.analysis.claims import reason, statement
from orchestrator.analysis.compare import Comparison
from orchestrator.analysis.configurations import Configuration
from orchestrator.analysis.phases import (
    RULE,
    STATES,
    phase_data,
    phase_maps,
    state_of,
)
from orchestrator.analysis.stats import Estimate, estimate
from orchestrator.analysis.text import estimate_text
from orchestrator.charts.files import converted, sheet, svg_of
from orchestrator.charts.marks import ChartView, Rows, field_map
from orchestrator.kl.shares import wilson
from orchestrator.losses.table import policy_loss_entry
from orchestrator.pipeline import stages
from orchestrator.records import Published, Record
from orchestrator.report.figures import rounded
from orchestrator.report.results import axis_title
from orchestrator.runs.experiment import open_experiment

STORED_METRICS = (
    "eval/accuracy_in_domain",
    "eval/accuracy_out_of_domain",
    "eval/kl_reverse",
)
ACCURACY, KL = "eval/accuracy_in_domain", "eval/kl_reverse"
QUIET = "rb.both"
"""The unbiased term with the least noise, according to the laboratory."""
HALF = 0.5
NOWHERE = "no field"
StoredData = Mapping[str, Any]
"""The data of an experiment as `stored_data` returns it, or a part of it."""


# ---------------------------------------------------------------- what is stored


def stored_data(
    comparison: Comparison, records: Sequence[Record], published: Published
) -> dict[str, Any]:
    """Return an experiment's data for the page: claims, phase maps, final values, states."""
    statements = {each.claim: each for each in published.statements}
    ends = [end for record in records for end in record.attempts if end]
    return {
        "cells": len(records),
        "finished": sum(record.state == "succeeded" for record in records),
        "seeds": sorted({run.seed for run in comparison.runs if state_of(run)}),
        "cpu_seconds": round(sum(end.cpu_seconds for end in ends)),
        "claims": [
            {
                "name": each.name,
                **({"says": w.says, "where": w.where} if (w := statements.get(each.name)) else {}),
                "verdict": each.verdict,
                "statement": statement(each.claim),
                "reason": reason(each),
            }
            for each in comparison.claims
        ],
        "phases": [_plain_map(one) for one in phase_data(phase_maps(comparison.configurations))],
        "configurations": [_configuration(c) for c in comparison.configurations],
    }


def as_text(stored: StoredData) -> str:
    """Return the data as JSON, with one line for each claim, map and configuration."""
    parts = []
    for key, value in stored.items():
        text = json.dumps(value, ensure_ascii=False)
        if isinstance(value, list) and value and isinstance(value[0], dict):
            text = "[\n" + ",\n".join(json.dumps(v, ensure_ascii=False) for v in value) + "\n]"
        parts.append(f"{json.dumps(key)}: {text}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _plain_map(one: Mapping[str, Any]) -> dict[str, Any]:
    """Return a map with only the counts of its fields. The intervals follow from the counts."""
    rows = [[f and {"counts": f["counts"]} for f in row] for row in one["fields"]]
    return {**one, "fields": rows}


def _configuration(c: Configuration) -> dict[str, Any]:
    states = [judged[0] for run in c.runs if (judged := state_of(run))]
    values: dict[str, Estimate] = {m: c.finals[m] for m in STORED_METRICS if m in c.finals}
    if KL in values:
        values[KL] = values[KL].within(0.0, inf)
    accuracy, kl = c.by_seed(ACCURACY), c.by_seed(KL)
    both = {seed: accuracy[seed] - (c.beta or 0.0) * kl[seed] for seed in accuracy if seed in kl}
    lengths = [
        fmean(points.values()) for run in c.runs if (points := run.series.get("train/grad_norm"))
    ]
    values |= {"value": estimate(both.values())} if both else {}
    values |= {"gradient": estimate(lengths)} if lengths else {}
    return {
        "study": c.study,
        "traits": dict(c.traits),
        "kl": c.kl,
        "beta": c.beta,
        "learning_rate": c.runs[0].declared.optimizer.learning_rate,
        "predicted": rounded(c.predicted),
        "states": [states.count(state) for state in STATES],
        "values": {
            name: [rounded(e.mean), rounded(e.low), rounded(e.high)] for name, e in values.items()
        },
        "by_seed": {
            name: {str(seed): rounded(v) for seed, v in of_seeds.items()}
            for name, of_seeds in ((ACCURACY, accuracy), (KL, kl), ("value", both))
        },
    }


# ---------------------------------------------------------------- the page


def sections() -> Iterator[str]:
    """Yield the lines of the measured sections of docs/beyond_the_paper.md."""
    yield ""
    yield from phase_lines(_read("phase_diagram"), _read("comedy_full"))
    yield ""
    yield from quiet_lines(_read("quiet"))
    yield ""
    yield from anchor_lines(_read("anchors"))


def comedy_page() -> str:
    """Return docs/comedy.md: the paper's claims and the results of experiments/comedy_full.yaml."""
    return "\n".join(comedy_lines(_read("comedy_full"))) + "\n"


def _read(name: str) -> StoredData:
    file = Path(__file__).parent / "measured_runs" / f"{name}.json"
    stored: StoredData = json.loads(file.read_text(encoding="utf-8"))
    return stored


class PaperObservation(NamedTuple):
    """An observation of the paper, with its claims and term in experiments/phase_diagram.yaml."""

    says: str
    claims: tuple[str, ...]
    at_its_points: tuple[str, ...]
    """Its claims in experiments/comedy_full.yaml, at the paper's own points, with more seeds."""
    term: str = ""
    """The term whose instability the map shows, in comparison with no KL."""
    steadied: bool = False
    """True: look for fields in which no KL is unstable and this term is stable."""


OBSERVATIONS = (
    PaperObservation(
        "k1 in the loss regularises nothing and is unstable; with four updates a batch it "
        "collapses (§4.1, Fig. 2)",
        ("k1_loss_is_unstable_with_four_updates", "k1_loss_is_no_better_than_none"),
        ("k1_loss_is_unstable_offpolicy", "k1_loss_does_what_none_does"),
        "k1.loss",
    ),
    PaperObservation(
        "k3 in the reward collapses, partly or wholly (§4.1, Fig. 3)",
        ("k3_reward_collapses",),
        ("k3_reward_collapses", "k3_reward_collapses_offpolicy"),
        "k3.reward",
    ),
    PaperObservation(
        "k1 in the reward, the unbiased one, is stable and scores higher than k3 in the loss, in "
        "and out of domain; a larger β costs accuracy (§4.1, Fig. 4 to 6)",
        (
            "unbiased_wins_in_domain",
            "unbiased_wins_out_of_domain",
            "larger_beta_costs_k1_reward",
            "larger_beta_costs_k3_loss",
        ),
        (
            "unbiased_wins_in_domain",
            "unbiased_wins_out_of_domain",
            "larger_beta_costs_k1_reward",
            "larger_beta_costs_k3_loss",
        ),
    ),
    PaperObservation(
        "asynchronous training is unstable without KL, with k1 in the loss and with k3 in the "
        "reward; k1 in the reward keeps it stable and scores higher than k3 in the loss (§4.2, "
        "Fig. 7 and 8)",
        (
            "kl_stabilises_async",
            "k1_loss_is_unstable_async",
            "k3_reward_is_unstable_async",
            "unbiased_wins_async",
        ),
        (
            "kl_stabilises_async",
            "k1_loss_is_unstable_async",
            "k3_reward_is_unstable_async",
            "unbiased_wins_async",
        ),
        "k1.reward",
        steadied=True,
    ),
    PaperObservation(
        "in both places either estimator does as k1 in the reward, and better than k3 in the loss "
        "(§4.3, Fig. 9)",
        ("k3_both_beats_k3_loss", "both_matches_k1_reward"),
        ("k1_both_beats_k3_loss", "k3_both_beats_k3_loss", "both_matches_k1_reward"),
    ),
)
APPEARS = {
    "holds": "appears",
    "contradicted": "does not appear: the interval says otherwise",
    "no effect": "no effect larger than 0.05",
}


STUDIES_WITHOUT_MAP = (
    ("minibatch4", "Four updates a batch"),
    ("async10", "The paper's β when asynchronous, staleness 10"),
    ("both", "KL in both places, on policy"),
)
"""Studies that no map shows, and their titles."""
QUIET_COLUMNS = (
    *("term", "β", "accuracy in domain", "predicted", "out of domain", "reverse KL", "value"),
    *("length", "stable / unstable / collapsed"),
)
STUDY_COLUMNS = (
    "term",
    "stable / unstable / collapsed",
    "accuracy in domain",
    "reverse KL",
)


def phase_lines(stored: StoredData, points: StoredData) -> Iterator[str]:
    """Yield the section on phase maps from the data of experiments/phase_diagram.yaml.

    `points`: the data of experiments/comedy_full.yaml.
    """
    yield "## Where training is stable"
    yield ""
    yield (
        "Measured at micro scale by `orch run experiments/phase_diagram.yaml "
        f"'seeds=[{','.join(map(str, stored['seeds']))}]'`: {stored['finished']} of "
        f"{stored['cells']} cells, {stored['cpu_seconds']:,} CPU seconds. These are not the "
        "paper's numbers. What of its runs is kept, and what cannot be, was written before the "
        "first run, and so were the states."
    )
    yield ""
    yield RULE
    yield ""
    yield (
        "A field has its seeds: stable / unstable / collapsed. Wilson's 95 % intervals of a share: "
        f"{_intervals(stored)}."
    )
    for one in stored["phases"]:
        yield ""
        yield f"**{one['kl']}: β over {axis_title(one['axis'])}**"
        yield ""
        rows = [
            ("no KL" if beta is None else f"{beta:g}", *map(_counts, fields))
            for beta, fields in zip(one["beta"], one["fields"], strict=True)
        ]
        yield from _table(("β", *(f"{float(x):g}" for x in one["x"])), rows)
    for study, title in STUDIES_WITHOUT_MAP:
        own = [c for c in stored["configurations"] if c["study"] == study and sum(c["states"])]
        if own:
            yield ""
            yield f"**{title}**"
            yield ""
            rows = [
                (
                    _name(c),
                    " / ".join(map(str, c["states"])),
                    _value(c, ACCURACY),
                    _value(c, KL),
                )
                for c in own
            ]
            yield from _table(STUDY_COLUMNS, rows)
    yield from _observations(stored, points)


def _summary_table(stored: StoredData, points: StoredData) -> Iterator[str]:
    """Yield a table: does each observation appear at the paper's own points, and where else."""
    claims = {claim["name"]: claim for claim in points["claims"]}
    rows = []
    for number, one in enumerate(OBSERVATIONS, 1):
        own = [claims[name] for name in one.at_its_points]
        holding = sum(claim["verdict"] == "holds" for claim in own)
        refuted = sum(claim["verdict"] == "contradicted" for claim in own)
        answer = "appears" if holding == len(own) else "appears in part" if holding else ""
        if not answer:
            answer = "does not appear" if refuted == len(own) else "not seen"
        none = sum(claim["verdict"] == "no effect" for claim in own)
        open_ = len(own) - holding - refuted - none
        counts = f"{holding} hold, {refuted} do not, {open_} not decided"
        counts += f", {none} no effect larger than 0.05" if none else ""
        where = ""
        if one.term and not one.steadied:
            lost = _places(stored["phases"], one.term, _collapses)
            where = f"collapses at {lost}" if lost != NOWHERE else "collapses at no field"
        elif one.steadied:
            steady = _places(stored["phases"], one.term, _steadies)
            where = f"{one.term} steadies at {steady}"
        rows.append((str(number), one.says, f"{answer}: {counts}", where))
    yield from _table(
        (
            "",
            "the paper says",
            f"at its own points, {len(points['seeds'])} seeds ([each claim](comedy.md))",
            f"on the maps, {len(stored['seeds'])} seeds or fewer",
        ),
        rows,
    )


def _observations(stored: StoredData, points: StoredData) -> Iterator[str]:
    yield ""
    yield "### The paper's five observations, here"
    yield ""
    yield from _summary_table(stored, points)
    yield ""
    yield (
        "Not seen and not decided is not refuted: the page on the claims has each interval. "
        "Collapses: in at least half of the seeds, and no KL in none. Steadies: more than half are "
        "stable, and without a KL no more than half. Below, the claims on the maps' own seeds."
    )
    claims = {claim["name"]: claim for claim in stored["claims"]}
    for number, one in enumerate(OBSERVATIONS, 1):
        yield ""
        yield f"**{number}. The paper: {one.says}.**"
        yield ""
        for name in one.claims:
            claim = claims.get(name)
            if claim:
                word = APPEARS.get(claim["verdict"], f"not decided ({claim['verdict']})")
                yield f"- *{word}*: {claim['statement']} {claim['reason']}"


def _collapses(own: Sequence[float], base: Sequence[float]) -> bool:
    return own[2] >= HALF and base[2] == 0


def _steadies(own: Sequence[float], base: Sequence[float]) -> bool:
    return own[0] > HALF and base[0] <= HALF


def _places(maps: Sequence[StoredData], term: str, holds: Any) -> str:
    """Return the fields of a term for which `holds(shares, shares of no KL)` is True, as text."""
    places = []
    for one in maps:
        if one["kl"] != term or None not in one["beta"]:
            continue
        base = one["fields"][one["beta"].index(None)]
        for i, x in enumerate(one["x"]):
            betas = [
                f"{beta:g}"
                for beta, fields in zip(one["beta"], one["fields"], strict=True)
                if beta is not None and _has_seeds(fields[i], base[i])
                if holds(_shares(fields[i]), _shares(base[i]))
            ]
            if betas:
                axis = axis_title(one["axis"]).partition(" (")[0]
                places.append(f"{axis} {float(x):g} with β {_joined(betas)}")
    return "; ".join(places) or NOWHERE


def _has_seeds(*fields: StoredData | None) -> bool:
    return all(field is not None and sum(field["counts"]) for field in fields)


def _shares(field: StoredData) -> list[float]:
    counts = field["counts"]
    return [count / sum(counts) for count in counts]


VERDICT_WORDS = {
    "holds": "holds",
    "contradicted": "does not hold",
    "no effect": "no effect larger than 0.05",
    "seen": "seen, not yet certain",
    "too few runs": "too few runs",
}
COMEDY_STUDIES = (
    ("onpolicy", "On policy (Fig. 2 to 6, 10 and 12)"),
    ("minibatch4", "Four updates a batch (Fig. 2 centre, 11)"),
    ("async10", "Asynchronous, level 10 (Fig. 7 and 8)"),
    ("both", "KL in the reward and in the loss (Fig. 9)"),
)


def comedy_lines(stored: StoredData) -> Iterator[str]:
    """Yield the page on the paper's claims from the data of experiments/comedy_full.yaml."""
    claims, seeds = stored["claims"], stored["seeds"]
    counts = {word: sum(c["verdict"] == word for c in claims) for word in VERDICT_WORDS}
    yield "# The paper's claims at micro scale"
    yield ""
    yield "Written by `python -m docs.tools.measured > docs/comedy.md`; a test holds the two equal."
    yield ""
    yield (
        f"`orch run comedy_full 'seeds=[{seeds[0]},...,{seeds[-1]}]'`, each seed written out, "
        f"trained {stored['finished']:,} of {stored['cells']:,} cells with {len(seeds)} seeds in "
        f"{stored['cpu_seconds']:,} CPU seconds: every sub-study of the paper, rehearsed by the "
        "embedded trainer on a policy of 50,000 parameters and tasks of its size. **These are not "
        "the paper's numbers.** What of its runs is kept, and what cannot be, is in "
        "[the decisions](decisions.md)."
    )
    yield ""
    yield (
        f"Of {len(claims)} claims, {counts['holds']} hold here, {counts['contradicted']} do not, "
        f"for {counts['no effect']} no effect larger than 0.05 is left, and "
        f"{counts['seen'] + counts['too few runs']} are open. Verdicts are corrected for the "
        "number of claims. Open is not refuted: the interval beside each claim says what these "
        "seeds leave open. Where nothing collapses, a claim on collapse cannot be decided; "
        "[beyond the paper](beyond_the_paper.md) has maps of where training collapses."
    )
    yield ""
    yield "![The first screen of the report of these runs](pictures/comedy.png)"
    yield ""
    rows = [
        (
            f"{c['says']} ({c['where']})" if "says" in c else "",
            VERDICT_WORDS.get(c["verdict"], c["verdict"]),
            f"{c['statement']} {c['reason']}",
        )
        for c in claims
    ]
    yield from _table(("the paper says", "here", "asked, and the numbers"), rows)
    for study, title in COMEDY_STUDIES:
        own = [c for c in stored["configurations"] if c["study"] == study and sum(c["states"])]
        yield ""
        yield f"## {title}"
        yield ""
        yield from _table(
            ("model", *STUDY_COLUMNS[:2], "accuracy in domain", "out of domain", "reverse KL"),
            [
                (
                    c["traits"]["model"],
                    _name(c),
                    " / ".join(map(str, c["states"])),
                    *(_value(c, m) for m in STORED_METRICS),
                )
                for c in own
            ],
        )


def _measured_by(name: str, stored: StoredData) -> str:
    """Return the sentence on the run of a spec: cells, seeds, CPU seconds."""
    return (
        f"Measured at micro scale by `orch run experiments/{name}.yaml`: {stored['finished']} of "
        f"{stored['cells']} cells, seeds {_joined(stored['seeds'])}, {stored['cpu_seconds']:,} CPU "
        "seconds."
    )


def quiet_lines(stored: StoredData) -> Iterator[str]:
    """Yield the section on less noise from the data of experiments/quiet.yaml."""
    yield "## What less noise buys"
    yield ""
    yield (
        f"{_measured_by('quiet', stored)} Equal budgets: the same train steps, "
        "rollouts and prompts, and the same random "
        "numbers by seed. Mean and 95 % interval over seeds; value is accuracy - β × reverse KL, "
        "which an unbiased gradient climbs; length is that of the gradient before clipping, mean "
        "over training."
    )
    rates = dict.fromkeys(c["learning_rate"] for c in stored["configurations"] if sum(c["states"]))
    for rate in rates:
        own = [c for c in stored["configurations"] if c["learning_rate"] == rate]
        yield ""
        yield f"**Learning rate {rate:g}**"
        yield ""
        lines = [
            (
                c["kl"],
                f"{c['beta']:g}",
                _value(c, ACCURACY),
                "" if c["predicted"] is None else f"{c['predicted']:.3f}",
                *(_value(c, m) for m in ("eval/accuracy_out_of_domain", KL, "value", "gradient")),
                " / ".join(map(str, c["states"])),
            )
            for c in sorted(own, key=lambda c: c["beta"] or 0.0)
            if sum(c["states"])
        ]
        yield from _table(QUIET_COLUMNS, lines)
        yield ""
        yield f"Collapsed, all β together, with Wilson's interval: {_collapsed(own)}."
        yield from _differences(own)
    yield ""
    yield (
        "The claims are on study noise, the first rate. Of the other rate the spec claims nothing: "
        "its differences are a hint, and no test."
    )
    yield ""
    for claim in stored["claims"]:
        yield f"- *{claim['verdict']}*: {claim['statement']} {claim['reason']}"


_EXACT = {"none": "as the trainer"}
"""A format of the engine that no spec names."""


def anchor_lines(stored: StoredData) -> Iterator[str]:
    """Yield the section on KL and bounds from the data of experiments/anchors.yaml."""
    yield "## What a KL buys beside a bound to the sampler"
    yield ""
    yield (
        f"{_measured_by('anchors', stored)} The claims were written before the first "
        "run; one was worded anew after it, "
        "because it compared nothing. Each loss has its usual bounds, β "
        "is 0.05, and all have one learning rate."
    )
    lag = [c for c in stored["configurations"] if c["study"] == "lag"]
    yield ""
    yield from _what_a_kl_bought(lag)
    yield ""
    yield f"![{PICTURED}](pictures/anchors.svg)"
    yield ""
    yield (
        "The same with intervals. A field has the accuracy in domain, its 95 % interval over "
        "seeds, and stable / unstable / collapsed seeds."
    )
    yield ""
    bare = [c for c in lag if c["traits"]["loss.policy"] == "reinforce"]
    yield (
        f"Collapsed, with Wilson's interval: {_collapsed(lag)}; of these without a ratio: "
        f"{_collapsed(bare)}. Of k3 in the loss only its accuracy was claimed before looking: what "
        "it does to stability here is a hint, and no test."
    )
    yield from _by_loss_and_kl(lag, "async", "{} steps behind", _outcome)
    yield ""
    yield "How far each ended from the reference policy (reverse KL), and its accuracy elsewhere:"
    yield from _by_loss_and_kl(lag, "async", "{} steps behind", _distance)
    yield ""
    yield "The same losses without a KL, ten steps behind, by the engine's format:"
    engine = [c for c in stored["configurations"] if c["study"] == "engine"]
    yield from _by_loss_and_kl(engine, "precision.rollout", "{}", _outcome)
    yield ""
    for claim in stored["claims"]:
        yield f"- *{claim['verdict']}*: {claim['statement']} {claim['reason']}"


TERMS = {"none": "no KL", "k1.reward": "k1 in the reward", "k3.loss": "k3 in the loss"}
STOPS = ("cut", "mask")
"""Bounds with which a token beyond them has no gradient."""
PICTURED = (
    "A KL buys accuracy where nothing stops a token; beside a clip or a mask it costs some in "
    "domain, and keeps more out of domain"
)
"""The picture's title. What it says is in the sentences above it, with intervals."""


def _stops(c: StoredData) -> bool:
    return policy_loss_entry(c["traits"]["loss.policy"]).bound in STOPS


def _what_a_kl_bought(lag: Sequence[StoredData]) -> Iterator[str]:
    """Yield what each KL adds to the accuracy, by what bounds the loss, and elsewhere."""
    groups = (
        ([c for c in lag if not _stops(c)], "Where nothing stops a token ({})"),
        ([c for c in lag if _stops(c)], "beside a loss that stops tokens ({})"),
    )
    parts = []
    for own, title in groups:
        losses = _joined(dict.fromkeys(c["traits"]["loss.policy"] for c in own))
        parts.append(
            f"{title.format(losses)} k3 in the loss adds {_added(own, 'k3.loss')}, and k1 in the "
            f"reward {_added(own, 'k1.reward')}"
        )
    cispo = [c for c in lag if c["traits"]["loss.policy"] == "cispo"]
    near, far = ([c for c in cispo if (c["traits"]["async"] == "3") is at] for at in (True, False))
    rose, apart, n = _elsewhere(lag, "k3.loss")
    yield (
        f"**{PICTURED}.** What a KL adds to the accuracy in domain (against no KL, paired by seed, "
        "mean over lags, Student's 95 % interval; the groups were formed after looking): "
        f"{'; '.join(parts)}. It depends on the lag: beside cispo k3 in the loss adds "
        f"{_added(near, 'k3.loss')} three steps behind, and {_added(far, 'k3.loss')} further "
        f"behind. Out of domain k3 in the loss is more accurate in {rose} of {n} settings, in "
        f"{apart} of them with intervals that do not meet. k1 in the reward, of the same β, has "
        "no gain that was seen."
    )


def _added(own: Sequence[StoredData], term: str) -> str:
    """Return what a term adds to the accuracy in domain, mean over settings, paired by seed."""
    by_seed: dict[str, list[float]] = {}
    for c, base in _with_base(own, term):
        for seed, value in c["by_seed"][ACCURACY].items():
            if seed in base["by_seed"][ACCURACY]:
                by_seed.setdefault(seed, []).append(value - base["by_seed"][ACCURACY][seed])
    return estimate_text(estimate(map(fmean, by_seed.values())), signed=True)


def _elsewhere(own: Sequence[StoredData], term: str) -> tuple[int, int, int]:
    """Return in how many settings a term's accuracy out of domain is higher, in how many of these
    the intervals do not meet, and the number of settings."""
    metric = "eval/accuracy_out_of_domain"
    pairs = [(c["values"][metric], b["values"][metric]) for c, b in _with_base(own, term)]
    rose = [(high, low) for high, low in pairs if high[0] > low[0]]
    return len(rose), sum(high[1] > low[2] for high, low in rose), len(pairs)


def _with_base(own: Sequence[StoredData], term: str) -> Iterator[tuple[StoredData, StoredData]]:
    """Yield each configuration of a term, and the same without a KL."""
    bases = {_setting(c): c for c in own if c["kl"] == "none"}
    yield from ((c, bases[_setting(c)]) for c in own if c["kl"] == term)


def _setting(c: StoredData) -> tuple[str, str]:
    return c["traits"]["loss.policy"], c["traits"]["async"]


def anchors_picture() -> str:
    """Return docs/pictures/anchors.svg: a map of states for each KL, by policy loss and lag."""
    lag = [c for c in _read("anchors")["configurations"] if c["study"] == "lag"]
    losses = list(dict.fromkeys(c["traits"]["loss.policy"] for c in lag))
    losses.sort(key=lambda name: (policy_loss_entry(name).bound in STOPS, name != "reinforce"))
    lags = list(dict.fromkeys(c["traits"]["async"] for c in lag))
    names = [f"{name}: {policy_loss_entry(name).bound}" for name in losses]
    drawn: list[tuple[ChartView, Rows]] = []
    for term, title in TERMS.items():
        rows: Rows = [
            {
                "column": lags.index(c["traits"]["async"]),
                "row": losses.index(c["traits"]["loss.policy"]),
                "z": (c["states"][1] / 2 + c["states"][2]) / sum(c["states"]),
                "text": f"{c['values'][ACCURACY][0]:.2f}  ({'/'.join(map(str, c['states']))})",
            }
            for c in lag
            if c["kl"] == term
        ]
        spec = field_map(lags, names, "steps that the sampler is behind", "")
        drawn.append(({"title": title, "spec": spec, "least": 260}, rows))
    notes = [
        "That is k3 in the loss. Of k1 in the reward no gain was seen.",
        "A field: accuracy in domain (seeds stable / unstable / collapsed).",
        "Green: all stable; yellow: all unstable; brown: all collapsed.",
    ]
    picture = sheet(drawn, title=PICTURED, notes=notes, columns=3, width=1080)
    return converted(svg_of(picture), "svg").decode()


def _by_loss_and_kl(
    own: Sequence[StoredData], axis: str, title: str, field: Callable[[StoredData], str]
) -> Iterator[str]:
    """Yield a table with a row for each policy loss and KL, and a column for each value of an
    axis."""
    columns = list(dict.fromkeys(c["traits"][axis] for c in own))
    rows: dict[tuple[str, str], dict[str, str]] = {}
    for c in own:
        row = rows.setdefault((c["traits"]["loss.policy"], _name(c)), {})
        row[c["traits"][axis]] = field(c)
    yield ""
    yield from _table(
        ("loss", "KL", *(title.format(_EXACT.get(each, each)) for each in columns)),
        [(*key, *(row.get(each, "") for each in columns)) for key, row in rows.items()],
    )


def _outcome(c: StoredData) -> str:
    return f"{_value(c, ACCURACY)}; {' / '.join(map(str, c['states']))}"


def _distance(c: StoredData) -> str:
    return f"{_value(c, KL)}; {_value(c, 'eval/accuracy_out_of_domain')}"


def _collapsed(own: Sequence[StoredData]) -> str:
    """Return how many runs of each term collapsed, as text."""
    states = {
        term: [c["states"] for c in own if c["kl"] == term and sum(c["states"])]
        for term in dict.fromkeys(c["kl"] for c in own)
    }
    return "; ".join(
        f"{term} {_share(sum(of[-1] for of in runs), sum(map(sum, runs)))}"
        for term, runs in states.items()
        if runs
    )


def _differences(own: Sequence[StoredData]) -> Iterator[str]:
    """Yield a table of the differences between QUIET and each other term, paired by seed."""
    rows = []
    for c in sorted(own, key=lambda c: c["beta"] or 0.0):
        quiet = next((q for q in own if (q["kl"], q["beta"]) == (QUIET, c["beta"])), None)
        if quiet is None or c["kl"] == QUIET or not sum(c["states"]):
            continue
        cells = [c["kl"], f"{c['beta']:g}"]
        for metric in (ACCURACY, KL, "value"):
            ours, theirs = quiet["by_seed"][metric], c["by_seed"][metric]
            pairs = [ours[seed] - theirs[seed] for seed in ours if seed in theirs]
            cells.append(estimate_text(estimate(pairs), signed=True) if pairs else "")
        rows.append(cells)
    if not rows:
        return
    yield ""
    yield (
        f"What {QUIET} has more than each other term, paired by seed, with Student's interval of "
        "one look (not corrected for their number):"
    )
    yield ""
    yield from _table((f"{QUIET} against", "β", "accuracy", "reverse KL", "value"), rows)


def _intervals(stored: StoredData) -> str:
    """Return Wilson's interval of every share that a field can have, as text."""
    fields = [f for one in stored["phases"] for row in one["fields"] for f in row if f]
    sizes = sorted({sum(field["counts"]) for field in fields} - {0})
    return "; ".join(_share(count, n) for n in sizes for count in range(n + 1))


def _share(count: int, n: int) -> str:
    low, high = wilson(count, n)
    return f"{count} of {n} [{low:.0%}, {high:.0%}]"


def _counts(field: StoredData | None) -> str:
    return (
        "" if field is None or not sum(field["counts"]) else " / ".join(map(str, field["counts"]))
    )


def _name(c: StoredData) -> str:
    return "none" if c["beta"] is None else f"{c['kl']} β {c['beta']:g}"


def _value(c: StoredData, metric: str) -> str:
    mean, low, high = c["values"].get(metric, (None, None, None))
    if mean is None:
        return ""
    return f"{mean:.3g}" + ("" if low is None else f" [{low:.3g}, {high:.3g}]")


def _joined(values: Iterable[object]) -> str:
    return ", ".join(map(str, values))


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(columns)} |"
    yield f"|{'---|' * len(columns)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"


def main(words: Sequence[str]) -> str:
    """Return docs/comedy.md, or the data of the finished run of a spec and its overrides."""
    if not words:
        return comedy_page()
    if words == ["anchors.svg"]:
        return anchors_picture()
    experiment = open_experiment(words[0], words[1:])
    records = stages.collect_records(experiment)
    known = stages.scores_and_faults(experiment)
    comparison = stages.compare_records(experiment, records, known.scores, known.items)
    return as_text(stored_data(comparison, records, experiment.spec.published))


if __name__ == "__main__":
    sys.stdout.write(main(sys.argv[1:]))
