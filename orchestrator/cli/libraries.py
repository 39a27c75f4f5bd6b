"""`orch compare --by backend`: one cell in several libraries, predicted and observed."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from orchestrator.cli.common import MICRO_BANNER, print_json, print_table, say
from orchestrator.errors import EnvironmentFault, SelectionError
from orchestrator.runs.experiment import Experiment

if TYPE_CHECKING:
    from orchestrator.analysis.ablation import Ablation
    from orchestrator.analysis.libraries import LibraryCell, LibrarySide
    from orchestrator.records import Cell, Spec

EXACT = "eval/accuracy_in_domain"
"""What an ablation is told in: exact, and measured while training."""


class Wanted(NamedTuple):
    """What was asked for on the command line."""

    where: tuple[str, ...] = ()
    metric: str | None = None
    against: str | None = None
    ablate: bool = False
    as_json: bool = False


def show(experiment: Experiment, wanted: Wanted) -> int:
    """Prints the page. 1 if cells of an ablation could not be trained."""
    from orchestrator.analysis.libraries import meaning_data, not_compared, not_imitated, side_data

    declared = _chosen(experiment, wanted.where)
    sides = list(_sides(experiment, declared, wanted))
    if not sides:
        raise SelectionError("no cell of this spec is asked of a library")
    base = _base(sides[0], wanted.against)
    source = experiment.spec.source or experiment.spec.name
    page: dict[str, Any] = {
        "experiment": experiment.spec.name,
        "base": base,
        "not_compared": [
            *not_compared(sides[0].questions),
            *(f"{base}, not imitated: {told}" for told in not_imitated(sides[0].questions, base)),
        ],
        "meaning": meaning_data(sides[0].questions, base),
        **{each.name: side_data(each, base, source) for each in sides},
    }
    code = 0
    if wanted.ablate:
        code, page["ablation"] = _ablate(experiment, sides[0], base, wanted.metric)
    if wanted.as_json:
        print_json(page)
    else:
        _print(page, source)
    return code


def _chosen(experiment: Experiment, terms: Sequence[str]) -> "list[Cell]":
    from orchestrator.spec.select import matches, parse

    selection = parse(terms)
    if any("state" in term for term in terms):
        raise SelectionError(
            "--by backend sets whole questions against each other: filter by study, kl, beta, "
            "backend or seed, not by state"
        )
    chosen = [cell for cell in experiment.declared if matches(selection, cell)]
    if not chosen:
        raise SelectionError(f"--where {' '.join(terms)} selects no cell")
    return chosen


def _sides(
    experiment: Experiment, declared: "Sequence[Cell]", wanted: Wanted
) -> "list[LibrarySide]":
    """Where this command runs first; the other where its folder is."""
    from orchestrator.rundir import RunFolder

    here = ("predicted", "observed") if experiment.scale == "micro" else ("observed", "predicted")
    found = []
    for name in here:
        scale = "micro" if name == "predicted" else "full"
        folder = RunFolder.of(experiment.spec.site.runs_dir, experiment.spec.name, scale)
        if name != here[0] and not folder.path.exists():
            continue
        found.append(_side(experiment, folder, declared, name, wanted.metric))
    return [each for each in found if each is not None]


def _side(
    experiment: Experiment, folder: Any, declared: "Sequence[Cell]", name: str, metric: str | None
) -> "LibrarySide | None":
    from orchestrator.analysis.libraries import library_side
    from orchestrator.evaluate import score_index
    from orchestrator.runs.collect import collect

    asked, cells = _asked(declared, micro=name == "predicted")
    if not cells:
        return None
    records = collect(cells, folder)
    scores = score_index(cells, experiment.spec.evaluation, folder).scores
    return library_side(name, asked, records, scores, metric)  # type: ignore[arg-type]


def _asked(declared: "Sequence[Cell]", *, micro: bool) -> "tuple[list[LibraryCell], list[Cell]]":
    """Declared cells with the ids they are trained under, and those cells."""
    from orchestrator.analysis.libraries import LibraryCell
    from orchestrator.spec.rehearse import rehearse

    if not micro:
        own = [cell for cell in declared if cell.scale == "full"]
        return [LibraryCell(cell, cell.id) for cell in own], own
    asked = [LibraryCell(cell, rehearse([cell])[0].id) for cell in declared]
    return asked, rehearse(declared)


def _base(first: "LibrarySide", against: str | None) -> str:
    libraries = first.libraries
    if against is None:
        return libraries[0]
    hits = [name for name in libraries if name == against or name.partition("@")[0] == against]
    if len(hits) != 1:
        raise SelectionError(
            f"--against {against} names {'no' if not hits else 'more than one'} library of this "
            f"comparison (there are: {', '.join(libraries)})"
        )
    return hits[0]


# ---------------------------------------------------------------- the ablation


def _ablate(
    experiment: Experiment, first: "LibrarySide", base: str, metric: str | None
) -> tuple[int, list[dict[str, Any]]]:
    """Trains what is missing and explains every library's gap to the base."""
    from orchestrator.analysis.ablation import explain_differences, plan_ablation

    chosen = metric if metric and not metric.startswith("eval/in_domain") else EXACT
    made = [plan_ablation(first.questions, base, x) for x in first.libraries if x != base]
    code, value = trained(experiment.spec, made, chosen)
    return code, [
        {
            "left": each.left,
            "right": each.right,
            "metric": chosen,
            "questions": [explained(x) for x in explain_differences(each, value)],
        }
        for each in made
    ]


def trained(spec: "Spec", made: "Sequence[Ablation]", metric: str) -> tuple[int, Any]:
    """Trains the cells of ablations that are nowhere yet; 1 if some failed, and final values."""
    from orchestrator.analysis.libraries import final_values_by_cell
    from orchestrator.analysis.runs import measure
    from orchestrator.files import write_text
    from orchestrator.launch.local import launch
    from orchestrator.rundir import RunFolder
    from orchestrator.runs.collect import collect
    from orchestrator.runs.watch import watch

    cells = tuple({cell.id: cell for each in made for cell in each.cells}.values())
    main = RunFolder.of(spec.site.runs_dir, spec.name, "micro")
    own = RunFolder.of(spec.site.runs_dir, f"{spec.name[:54]}-ablation", "micro")
    have = _finished(cells, main)
    todo = tuple(cell for cell in cells if cell.id not in have)
    code = 0
    if todo:
        pending = [cell for cell in todo if cell.id not in _finished(todo, own)]
        own.open()
        named = spec.model_copy(update={"name": own.experiment.removesuffix(".micro")})
        write_text(own.spec, named.model_dump_json(indent=1) + "\n")
        if pending:
            say(MICRO_BANNER)
            say(f"ablation: {len(pending)} cells to train, {len(cells) - len(pending)} are there")
            with watch(pending) as display:
                done = launch(todo, own, workers=spec.site.workers, on_event=display.show)
            if done.interrupted:
                raise EnvironmentFault("stopped; nothing is lost. Go on with the same command.")
            code = int(done.count("failed", "unknown") > 0)
    records = [*have.values(), *(r for r in collect(todo, own) if r.state == "succeeded")]
    return code, final_values_by_cell(measure(records, []), metric)


def _finished(cells: "Sequence[Cell]", folder: Any) -> dict[str, Any]:
    from orchestrator.runs.collect import collect

    if not folder.path.exists():
        return {}
    return {r.cell.id: r for r in collect(cells, folder) if r.state == "succeeded"}


def explained(found: Any) -> dict[str, Any]:
    from dataclasses import asdict

    return {
        "question": found.question,
        "gap": asdict(found.gap),
        "rest": asdict(found.rest),
        "told_apart": found.is_told_apart,
        "causes": [
            {"cause": s.cause, "title": s.title, "effect": asdict(s.effect), "part": s.part}
            for s in found.shares
        ],
    }


# ---------------------------------------------------------------- in words


def _print(page: Mapping[str, Any], source: str) -> None:
    sides = [name for name in ("predicted", "observed") if name in page]
    _print_meaning(page["meaning"], page["base"], page["not_compared"])
    for name in sides:
        _print_side(page[name], _title(name))
    if len(sides) == 2:
        _print_beside(page)
    else:
        other = "site=local" if sides == ["observed"] else "site=<a cluster>"
        say(f"only {sides[0]} here: `orch run {source} {other}` gives the other side")
    for each in page.get("ablation", ()):
        print_ablation(each)


def _title(name: str) -> str:
    return "predicted (micro scale)" if name == "predicted" else "observed (the libraries)"


def _print_meaning(
    meaning: Sequence[Mapping[str, Any]], base: str, not_compared: Sequence[str]
) -> None:
    click.echo(f"What they mean differently by equal settings, against {base}")
    rows = [
        (each["library"], m["title"], m["base"], m["other"], _some(m["questions"]))
        for each in meaning
        for m in each["differs"]
    ]
    print_table(("library", "what", base, "there", "in"), rows)
    for each in meaning:
        if not each["differs"]:
            click.echo(f"{each['library']}: the same mathematics in every question")
        for sentence in each["omits"]:
            click.echo(f"{each['library']}, not imitated: {sentence}")
        for question, sentence in each["refused"].items():
            click.echo(f"{each['library']} would refuse {question}: {sentence}")
    for sentence in not_compared:
        click.echo(sentence)
    click.echo("\nWhat the ledgers say differently")
    for each in meaning:
        for g in each["ledger"]:
            click.echo(f"{g['field']}  ({_some(g['questions'])})")
            click.echo(f"  {base}: {g['base']}")
            click.echo(f"  {each['library']}: {g['other']}")


def _print_side(side: Mapping[str, Any], title: str) -> None:
    from orchestrator.cli.common import number

    click.echo(f"\nScores, {title}: {side['metric'] or 'nothing has finished yet'}")
    print_table(
        ("question", "library", "in domain", "out of domain", "β", "β effective", ""),
        [
            (
                s["question"],
                s["library"],
                interval(s["in_domain"]),
                interval(s["out_of_domain"]),
                number(s["beta"]),
                number((s["beta_effective"] or {}).get("mean")),
                f"one run with {', '.join(s['one_run_with'])}" if s["one_run_with"] else "",
            )
            for s in side["scores"]
        ],
    )
    for curve in side["curves"]:
        if curve["samples"]:
            click.echo(f"\n{curve['question']}: {curve['metric']} by rollouts seen")
            print_table(
                ("library", *map(str, curve["samples"])),
                [(lib, *(f"{v:.3f}" for v in vs)) for lib, vs in curve["curves"].items()],
            )
    click.echo(f"\nDifference to {side['base']}, {title}")
    print_table(
        ("question", "library", "difference", "p (Holm)", "verdict"),
        [
            (
                d["question"],
                d["right"],
                interval(d["difference"], signed=True),
                f"{d['p_corrected']:.2g}",
                d["verdict"],
            )
            for d in side["differences"]
        ],
    )
    click.echo(f"\nOver all questions, {title}")
    print_table(
        ("library", "less", "difference", "p (Holm)", "verdict"),
        [
            (
                d["right"],
                d["left"],
                interval(d["difference"], signed=True),
                f"{d['p_corrected']:.2g}",
                d["verdict"],
            )
            for d in side["overall"]
        ],
    )
    for sentence in side["missing"]:
        click.echo(sentence)


def _print_beside(page: Mapping[str, Any]) -> None:
    observed = {(d["question"], d["right"]): d for d in page["observed"]["differences"]}
    click.echo("\nPredicted and observed differences, side by side")
    rows = []
    for d in page["predicted"]["differences"]:
        o = observed.get((d["question"], d["right"]))
        rows.append(
            (
                d["question"],
                d["right"],
                interval(d["difference"], signed=True),
                d["verdict"],
                interval(o["difference"], signed=True) if o else "-",
                o["verdict"] if o else "not run",
            )
        )
    print_table(("question", "library", "predicted", "", "observed", ""), rows)


def print_ablation(made: Mapping[str, Any]) -> None:
    """What each cause does alone, question by question."""
    click.echo(
        f"\nFrom {made['left']} towards {made['right']}, one cause at a time: {made['metric']}"
    )
    rows = []
    for q in made["questions"]:
        rows.append((q["question"], "the whole gap", interval(q["gap"], signed=True), ""))
        for c in q["causes"]:
            part = f"{c['part']:.0%}" if q["told_apart"] and c["part"] is not None else "-"
            rows.append(("", c["title"], interval(c["effect"], signed=True), part))
        if len(q["causes"]) > 1:
            rows.append(("", "only together", interval(q["rest"], signed=True), ""))
    print_table(("question", "cause", "effect", "of the gap"), rows)
    if any(not q["told_apart"] for q in made["questions"]):
        click.echo("- : the gap's interval holds 0, so no part of it can be named")


def interval(found: Mapping[str, Any] | None, *, signed: bool = False) -> str:
    """`+0.012 [−0.010, +0.034]`, of plain data."""
    if found is None:
        return "-"
    sign = "+" if signed else ""
    mean = f"{found['mean']:{sign}.3f}"
    if found["low"] is None:
        return f"{mean} (one seed)"
    return f"{mean} [{found['low']:{sign}.3f}, {found['high']:{sign}.3f}]"


def _some(names: Sequence[str], most: int = 3) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
