"""`python -m lab measure`: what `orch explain --libraries` prints, measured again."""

from pathlib import Path

import click

from lab.adopt import loss_code
from lab.probes.measure import measure
from lab.probes.protocol import sources
from lab.probes.written import write
from orchestrator.cli.common import say
from orchestrator.evidence.cells import releases


@click.command()
@click.argument("wanted", nargs=-1, metavar="[LIBRARY[@VERSION]]...")
@click.option(
    "--source",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Of one release: the folder of its package, instead of its environment (orch env create "
    "LIBRARY@VERSION --contract). The digests of its loss code are kept, too.",
)
@click.option(
    "--environments",
    type=click.Path(path_type=Path, file_okay=False),
    help="The folder of the environments.",
)
def command(wanted: tuple[str, ...], source: Path | None, environments: Path | None) -> None:
    """Measure these releases, or all, in each library's own functions, and write the evidence."""
    if source and len(wanted) == 1:
        library, _, version = wanted[0].partition("@")
        if version and library in loss_code.libraries():
            click.echo(loss_code.keep(library, version, source))
    chosen = releases(wanted)
    if source and len(chosen) != 1:
        raise click.UsageError("--source is the source of one release: name it LIBRARY@VERSION")
    for library, version in chosen:
        say(f"{library} {version}: asking its own functions")
        with sources(library, version, source=source, within=environments) as found:
            click.echo(write(measure(library, version, found.folder, found.commit)))
