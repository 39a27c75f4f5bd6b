"""orch init: a starter experiment, and on a cluster a site file from what the cluster answers."""

from pathlib import Path

import click

from orchestrator.cli import common
from orchestrator.cli.common import print_json, say
from orchestrator.errors import OrchError
from orchestrator.site.write import write_site
from orchestrator.spec.starter import WrittenFile, copy_shipped, write_starter


@click.command(short_help="Write a starter experiment, or a shipped one to change.")
@click.argument("path", required=False, type=click.Path(path_type=Path))
@click.option("--site-only", is_flag=True, help="On a cluster: write the site file alone.")
@click.option(
    "--from", "shipped", metavar="NAME", help="Copy this shipped spec (`orch list` shows them)."
)
@common.as_json
def command(path: Path | None, site_only: bool, shipped: str | None, as_json: bool) -> None:
    """Write a starter spec to PATH (default experiment.yaml). Never overwrites a file.

    With --from, PATH (default NAME.yaml) becomes a copy of a shipped spec. orch finds its
    config groups by name; a folder of that name beside PATH has priority.

    On a SLURM cluster, orch asks for its partitions, GPUs, limits and accounts, and writes them
    to site/<cluster>.yaml beside the spec, which then uses this site.
    """
    if path is None:
        path = Path(f"{shipped or 'experiment'}.yaml")
    if path.suffix != ".yaml":
        path = path.with_name(path.name + ".yaml")
    if path.exists() and not site_only:
        raise OrchError(f"{path} exists; choose another name: orch init NAME.yaml")
    written = _write(path, site_only=site_only, shipped=shipped)
    if as_json:
        print_json({"written": [str(each.path) for each in written]})
        return
    for each in written:
        click.echo(f"wrote {each.path}" + (f". Next: {each.following}" if each.following else ""))


def _write(path: Path, *, site_only: bool, shipped: str | None) -> list[WrittenFile]:
    if shipped is not None:
        return copy_shipped(shipped, path)
    site = write_site(path.parent / "site")
    if site is None:
        if site_only:
            raise OrchError("there is no SLURM cluster here, so there is no site file to write")
        return write_starter(path)
    written = [WrittenFile(site.file, f"orch doctor --site {site.file}")] if site.is_new else []
    if not site.is_new:
        say(f"{site.file} is there already and is left as it is")
    return written if site_only else written + write_starter(path, site.name, site.gpus)
