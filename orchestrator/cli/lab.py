"""orch lab: the exact gradient laboratory, the paper's Fig. 1, and the table of verdicts."""

from pathlib import Path
from typing import Any

import click

from orchestrator.cli import common
from orchestrator.cli.common import number, print_json, print_table, say
from orchestrator.cli.kl_in_libraries import measure_libraries

PAIR = (float, float)


@click.command(
    short_help="Compute bias and variance of KL gradients exactly: the paper's Fig. 1 and beyond."
)
@click.option("--policy", type=PAIR, metavar="A B", help="a and b of the policy (eq. 17).")
@click.option("--reference", type=PAIR, metavar="A B", help="a and b of the reference policy.")
@click.option("--rollout", type=PAIR, metavar="A B", help="Sample from this policy: off-policy.")
@click.option("--tokens", type=int, metavar="T", help="Length of a sequence.")
@click.option("--trials", default=200, show_default=True, help="Monte-Carlo trials.")
@click.option("--sequences", default=1000, show_default=True, help="Sequences of a trial.")
@click.option("--seed", default=0, show_default=True, help="The seed of all sampling.")
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    multiple=True,
    help="Draw the figure into this .png, .pdf or .svg file. May be given several times.",
)
@click.option(
    "--sweep", "sweeping", is_flag=True, help="Print how often the orderings of Fig. 1 hold."
)
@click.option("--draws", default=500, show_default=True, help="Random parameters of --sweep.")
@click.option("--verdicts", is_flag=True, help="Derive orch's table of verdicts, as JSON.")
@click.option(
    "--measure",
    is_flag=True,
    help="Measure again what `orch explain --libraries` prints, in each library's own functions.",
)
@click.option(
    "--library",
    "wanted",
    multiple=True,
    metavar="LIBRARY[@VERSION]",
    help="With --measure: only this library, or this release. May be given several times.",
)
@click.option(
    "--python",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="With --measure: a Python that has torch (default: orch's own).",
)
@click.option(
    "--source",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="With --measure of one release: the folder of its package, instead of its "
    "environment (orch env create LIBRARY@VERSION --contract).",
)
@click.option(
    "--environments",
    type=click.Path(path_type=Path, file_okay=False),
    help="With --measure: the folder of the environments.",
)
@common.as_json
def command(
    measure: bool,
    wanted: tuple[str, ...],
    python: Path | None,
    source: Path | None,
    environments: Path | None,
    sweeping: bool,
    draws: int,
    verdicts: bool,
    as_json: bool,
    out: tuple[Path, ...],
    **how: Any,
) -> None:
    """Compute bias and variance of every KL configuration's gradient, exactly and by Monte Carlo.

    The model is the paper's (eq. 17, 18): binary tokens, P(1) = sigmoid(a + b c) after c ones.
    The paper does not state its parameters, and the ordering in its Fig. 1 depends on them.
    """
    if measure:
        measure_libraries(wanted, python, source, environments)
    elif verdicts:
        from orchestrator.lab.exact.derivation import as_text, derive

        click.echo(as_text(derive()))
    elif sweeping:
        _sweep(draws, how["tokens"], how["seed"], as_json)
    else:
        _figure(out, as_json, **how)


def _figure(
    out: tuple[Path, ...], as_json: bool, *, trials: int, sequences: int, seed: int, **model: Any
) -> None:
    from orchestrator.lab.exact.figures import draw, figure1

    data = figure1(_setting(**model), trials=trials, sequences=sequences, seed=seed)
    for path in out:
        draw(data, path)
        say(f"drawn: {path}")
    if as_json:
        print_json(data)
    else:
        _print(data)


def _setting(
    policy: tuple[float, float] | None,
    reference: tuple[float, float] | None,
    rollout: tuple[float, float] | None,
    tokens: int | None,
) -> Any:
    from orchestrator.lab.exact.figures import DEFAULT
    from orchestrator.lab.exact.laboratory import LabSetting, ToyPolicy

    return LabSetting(
        ToyPolicy(*policy) if policy else DEFAULT.policy,
        ToyPolicy(*reference) if reference else DEFAULT.reference,
        DEFAULT.num_tokens if tokens is None else tokens,
        ToyPolicy(*rollout) if rollout else None,
    )


def _print(data: dict[str, Any]) -> None:
    setting = data["setting"]
    for name in ("policy", "reference", "rollout"):
        if setting[name]:
            click.echo(f"{name:<10} a = {setting[name]['a']:g}, b = {setting[name]['b']:g}")
    click.echo(
        f"{'T':<10} {setting['num_tokens']}\n{'KL':<10} {data['reverse_kl']:.6g} nats, "
        f"gradient {data['truth']['a']:.6g}, {data['truth']['b']:.6g}\n"
    )
    estimates = [
        (name, number(each["mean"], 6), number(each["variance"], 6))
        for name, each in data["estimates"].items()
    ]
    print_table(("estimate", "mean", "variance"), estimates)
    click.echo()
    columns = ("gradient", *(f"{what} d/d{p}" for p in "ab" for what in _STATISTICS))
    print_table(columns, [_row(each) for each in data["configurations"]])
    click.echo(
        f"\nBias: |expected gradient - true gradient|. Variance: of a trial of "
        f"{data['sequences']} sequences.\nSampled: {data['trials']} trials, seed {data['seed']}; "
        f"z: standard errors between the sampled and the exact mean.\n{data['caveat']}"
    )


_STATISTICS = ("bias", "sampled", "variance", "sampled", "z")


def _row(each: dict[str, Any]) -> list[str]:
    cells = [each["label"]]
    for parameter in "ab":
        part = each[parameter]
        kinds = ("bias", "sampled_bias", "variance", "sampled_variance")
        cells += [number(part[kind]) for kind in kinds] + [f"{part['z']:+.1f}"]
    return cells


def _sweep(draws: int, tokens: int | None, seed: int, as_json: bool) -> None:
    from orchestrator.lab.exact.figures import DEFAULT
    from orchestrator.lab.exact.montecarlo import sweep

    num_tokens = DEFAULT.num_tokens if tokens is None else tokens
    data = sweep(draws=draws, num_tokens=num_tokens, seed=seed)
    if as_json:
        print_json(data)
        return
    rows = [
        (each["ordering"], f"{each['share']:.0%}", "{:.0%} to {:.0%}".format(*each["interval"]))
        for each in data["orderings"]
    ]
    print_table(("ordering, on both parameters", "holds in", "95% interval"), rows)
    ranges = data["ranges"]
    click.echo(
        f"\n{draws} settings (seed {seed}), T = {num_tokens}; a and b of the policy and of the "
        f"reference policy uniform in ±{ranges['a']:g} and ±{ranges['b']:g}."
    )
