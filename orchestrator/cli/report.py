"""orch report: the page a reviewer reads."""

from pathlib import Path

import click

from orchestrator.cli import options, stages


@click.command(short_help="Write the report: one HTML page and Markdown.")
@options.spec
@options.overrides
@options.where
@click.option("-o", "--output", type=click.Path(path_type=Path, file_okay=False), default=None,
              help="Folder to write to; default: report/ in the experiment's folder.")  # fmt: skip
def command(
    spec: str, overrides: tuple[str, ...], where: tuple[str, ...], output: Path | None
) -> int:
    """Write index.html (self-contained) and report.md from what is on disk now."""
    from orchestrator.experiment import open_experiment

    experiment = open_experiment(spec, overrides).chosen(where)
    records = stages.gather(experiment)
    scores = stages.known_scores(experiment)
    comparison = stages.contrast(experiment, records, scores)
    click.echo(stages.write_report(experiment, comparison, records, scores, output))
    return stages.tell_faults(records)
