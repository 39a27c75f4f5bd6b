"""orch compare: what the numbers support."""

from typing import TYPE_CHECKING

import click

from orchestrator.cli import common, stages
from orchestrator.cli.common import print_json, print_table
from orchestrator.errors import SelectionError

if TYPE_CHECKING:
    from orchestrator.analysis.configurations import AxisDifference
    from orchestrator.analysis.stats import Estimate


@click.command(short_help="Differences between configurations, with intervals.")
@click.argument("spec", metavar="SPEC")
@common.overrides
@common.where
@click.option(
    "--by",
    "axis",
    metavar="AXIS",
    help="Set values of one axis against each other: kl, beta, backend, ...",
)
@click.option("--metric", help="Canonical name; default: the main in-domain accuracy.")
@click.option(
    "--effect",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SIZE",
    help="With --by: seeds that would tell such a difference, power 0.8.",
)
@click.option(
    "--against", metavar="LIBRARY", help="With --by backend: whom the others are set against."
)
@click.option(
    "--ablate", is_flag=True, help="Train what differs, one cause at a time, at micro scale."
)
@click.option("--configs", is_flag=True, help="SPEC and the next argument are two launch scripts.")
@common.as_json
def command(
    spec: str,
    overrides: tuple[str, ...],
    where: tuple[str, ...],
    axis: str | None,
    metric: str | None,
    effect: float | None,
    against: str | None,
    ablate: bool,
    configs: bool,
    as_json: bool,
) -> int:
    """Means with intervals over seeds, and the verdict on every claim.

    With --by, paired differences between the values of that axis, everything else equal, with
    Holm's correction. Intervals are 95 % and come from seeds only. --by backend shows the same
    cells in several libraries: what they mean differently, curves, scores, effective beta and
    verdicts; with --ablate, how much of a gap each difference explains.

    With --configs, two launch scripts: orch compare --configs a.sh b.sh
    """
    from orchestrator.runs.experiment import open_experiment

    if configs:
        from orchestrator.cli import scripts

        return scripts.show((spec, *overrides), ablate=ablate, as_json=as_json)
    if axis == "backend":
        from orchestrator.cli import libraries

        asked = libraries.Wanted(where, metric, against, ablate, as_json)
        return libraries.show(open_experiment(spec, overrides), asked)
    if ablate or against:
        raise SelectionError("--ablate and --against need --by backend (or --configs)")
    experiment = open_experiment(spec, overrides).chosen(where)
    records = stages.gather(experiment)
    comparison = stages.contrast(experiment, records, stages.known_scores(experiment))
    if axis is not None:
        _print_by(comparison, axis, metric, effect, as_json)
    elif as_json:
        print_json(_plain(comparison))
    else:
        stages.print_configurations(comparison)
        click.echo()
        stages.print_claims(comparison)
    return 0


def _print_by(
    comparison: "stages.Comparison",
    axis: str,
    metric: str | None,
    effect: float | None,
    as_json: bool,
) -> None:
    from orchestrator.analysis.configurations import axis_differences

    chosen = metric or comparison.in_domain
    if chosen is None:
        raise SelectionError("no cell has finished yet: there is nothing to compare")
    try:
        differences = axis_differences(comparison.configurations, axis, chosen)
    except KeyError:
        known = sorted({name for c in comparison.configurations for name in c.traits})
        raise SelectionError(
            f"no configuration has an axis '{axis}' (there are: kl, beta, {', '.join(known)})"
        ) from None
    if as_json:
        print_json(
            [_plain_difference(d) | {"seeds_for_effect": _seeds(d, effect)} for d in differences]
        )
        return
    rows = [
        (
            d.left,
            d.right,
            f"{d.effect.mean:+.3f}",
            _bounds(d.effect),
            _bounds(d.over_items),
            "-" if d.relative is None else f"{d.relative.value:+.1%}",
            d.effect.n,
            len(d.settings),
            f"{d.p_corrected:.2g}",
            d.verdict,
            *([] if effect is None else [_seeds(d, effect) or "unknown"]),
        )
        for d in differences
    ]
    click.echo(f"difference in {chosen}, 95 % intervals")
    print_table(
        (
            axis,
            "against",
            "difference",
            "over seeds",
            "over seeds and items",
            "relative",
            "seeds",
            "settings",
            "p (Holm)",
            "",
            *([] if effect is None else [f"seeds for {effect:g}"]),
        ),
        rows,
    )


def _seeds(found: "AxisDifference", effect: float | None) -> int | None:
    """Seeds that would tell an effect of this size, with the spread seen here; None with one seed,
    and where no number up to 1,000 would do."""
    from orchestrator.analysis.stats import seeds_needed

    if effect is None or found.effect.n < 2:
        return None
    return seeds_needed(effect, found.effect.sd)


def _bounds(found: "Estimate | None") -> str:
    if found is None or found.low is None or found.high is None:
        return "-"
    return f"[{found.low:+.3f}, {found.high:+.3f}]"


def _plain_difference(found: "AxisDifference") -> dict[str, object]:
    """Every number as a number; null where it is not known."""
    from dataclasses import asdict

    return {
        "axis": found.axis,
        "left": found.left,
        "right": found.right,
        "metric": found.metric,
        "difference": asdict(found.effect),
        "over_items": None if found.over_items is None else asdict(found.over_items),
        "relative": None if found.relative is None else asdict(found.relative),
        "settings": list(found.settings),
        "p": found.p,
        "p_corrected": found.p_corrected,
        "verdict": found.verdict,
    }


def _plain(comparison: "stages.Comparison") -> dict[str, object]:
    from dataclasses import asdict

    from orchestrator.analysis.sentences import reason, statement

    return {
        "configurations": [
            {
                "study": c.study,
                "traits": dict(c.traits),
                "kl": c.kl,
                "beta": c.beta,
                "seeds": len(c.runs),
                "finished": c.num_finished,
                "collapsed": asdict(c.collapse),
                "finals": {name: asdict(e) for name, e in c.finals.items()},
                "over_items": {name: asdict(e) for name, e in c.finals_over_items.items()},
                "stability": asdict(c.stability),
            }
            for c in comparison.configurations
        ],
        "claims": [
            {
                "name": f.name,
                "verdict": f.verdict,
                "claim": f.claim.text,
                "statement": statement(f.claim),
                "reason": reason(f),
            }
            for f in comparison.claims
        ],
        "published": [
            {
                "name": b.published.name,
                "where": b.published.where,
                "claim": b.claim.text,
                "published": b.published.relative_improvement,
                "ours": None if b.ours is None else asdict(b.ours),
                "missing": b.missing,
            }
            for b in comparison.published
        ],
    }
