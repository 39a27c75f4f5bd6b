"""`python -m orchestrator.lab measure [LIBRARY[@VERSION]]...`: what `orch explain --libraries`
prints, measured again in each library's own functions."""

from pathlib import Path

import click

from orchestrator.cli.kl_in_libraries import measure_libraries


@click.group()
def main() -> None:
    """Measure what other people's code does."""


@main.command()
@click.argument("releases", nargs=-1, metavar="[LIBRARY[@VERSION]]...")
@click.option(
    "--python",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="A Python that has torch (default: orch's own).",
)
@click.option(
    "--source",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Of one release: the folder of its package, instead of its environment (orch env create "
    "LIBRARY@VERSION --contract).",
)
@click.option(
    "--environments",
    type=click.Path(path_type=Path, file_okay=False),
    help="The folder of the environments.",
)
def measure(
    releases: tuple[str, ...], python: Path | None, source: Path | None, environments: Path | None
) -> None:
    """Measure these releases, or all, and write the files of evidence."""
    measure_libraries(releases, python, source, environments)


if __name__ == "__main__":
    main()
