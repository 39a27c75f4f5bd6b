"""Arguments and options that several commands share."""

from pathlib import Path

import click

spec = click.argument("spec", metavar="SPEC")
overrides = click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
where = click.option(
    "-w", "--where", multiple=True, metavar="FIELD=VALUE",
    help="Only cells for which this holds: kl.estimator=k3, '!kl.beta=0', state=failed, "
    "study=onpolicy, id=3f2a. May be given several times; all must hold.",
)  # fmt: skip
as_json = click.option("--json", "as_json", is_flag=True, help="Machine-readable, on stdout.")
yes = click.option("-y", "--yes", is_flag=True, help="Do not ask.")
runs_dir = click.option(
    "--runs-dir", type=click.Path(path_type=Path, file_okay=False, readable=False),
    default=Path("runs"),
    envvar="ORCH_RUNS_DIR", show_default=True, help="Where experiments are kept.",
)  # fmt: skip
