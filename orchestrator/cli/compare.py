"""orch compare: what the numbers support."""

import click

from orchestrator.cli import options, stages
from orchestrator.cli.output import print_json, print_table
from orchestrator.errors import SelectionError


@click.command(short_help="Differences between configurations, with intervals.")
@click.argument("spec", metavar="SPEC")
@options.overrides
@options.where
@click.option("--by", "axis", metavar="AXIS",
              help="Set values of one axis against each other: kl, beta, backend, ...")  # fmt: skip
@click.option("--metric", help="Canonical name; default: the main in-domain accuracy.")
@click.option("--against", metavar="LIBRARY",
              help="With --by backend: whom the others are set against.")  # fmt: skip
@click.option("--ablate", is_flag=True,
              help="Train what differs, one cause at a time, at micro scale.")  # fmt: skip
@click.option("--configs", is_flag=True,
              help="SPEC and the next argument are two launch scripts.")  # fmt: skip
@options.as_json
def command(
    spec: str, overrides: tuple[str, ...], where: tuple[str, ...], axis: str | None,
    metric: str | None, against: str | None, ablate: bool, configs: bool, as_json: bool,
) -> int:  # fmt: skip
    """Means with intervals over seeds, and the verdict on every claim.

    With --by, paired differences between the values of that axis, everything else equal, with
    Holm's correction. Intervals are 95 % and come from seeds only. --by backend shows the same
    cells in several libraries: what they mean differently, curves, scores, effective beta and
    verdicts; with --ablate, how much of a gap each difference explains.

    With --configs, two launch scripts: orch compare --configs a.sh b.sh
    """
    from orchestrator.experiment import open_experiment

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
        _print_by(comparison, axis, metric, as_json)
    elif as_json:
        print_json(_plain(comparison))
    else:
        stages.print_configurations(comparison)
        click.echo()
        stages.print_claims(comparison)
    return 0


def _print_by(
    comparison: "stages.Comparison", axis: str, metric: str | None, as_json: bool
) -> None:
    from orchestrator.compare import by

    chosen = metric or comparison.in_domain
    if chosen is None:
        raise SelectionError("no cell has finished yet: there is nothing to compare")
    try:
        differences = by(comparison.configurations, axis, chosen)
    except KeyError:
        known = sorted({name for c in comparison.configurations for name in c.traits})
        raise SelectionError(
            f"no configuration has an axis '{axis}' (there are: kl, beta, {', '.join(known)})"
        ) from None
    rows = [
        (d.left, d.right, f"{d.effect.mean:+.3f}", _bounds(d.effect.low, d.effect.high),
         d.effect.n, len(d.settings), f"{d.p_corrected:.2g}", d.verdict)
        for d in differences
    ]  # fmt: skip
    columns = (axis, "against", "difference", "95 % interval", "seeds", "settings", "p (Holm)", "")
    if as_json:
        print_json([dict(zip(columns, row, strict=True)) for row in rows])
    else:
        click.echo(f"difference in {chosen}")
        print_table(columns, rows)


def _bounds(low: float | None, high: float | None) -> str:
    return "-" if low is None or high is None else f"[{low:+.3f}, {high:+.3f}]"


def _plain(comparison: "stages.Comparison") -> dict[str, object]:
    from dataclasses import asdict

    from orchestrator.compare import reason, statement

    return {
        "configurations": [
            {"study": c.study, "traits": dict(c.traits), "kl": c.kl, "beta": c.beta,
             "seeds": len(c.runs), "finished": c.num_finished, "collapsed": asdict(c.collapse),
             "finals": {name: asdict(e) for name, e in c.finals.items()}}
            for c in comparison.configurations
        ],
        "claims": [
            {"name": f.name, "verdict": f.verdict, "claim": f.claim.text,
             "statement": statement(f.claim), "reason": reason(f)}
            for f in comparison.findings
        ],
    }  # fmt: skip
