"""Ask a cluster about the jobs of a site: those that SLURM refuses, and those that it takes and
never starts. Every fault names the field to change."""

from collections.abc import Iterable, Iterator

from orchestrator.launch.hub_data import SiteFinding
from orchestrator.launch.slurm import scheduler, script
from orchestrator.launch.slurm.cluster import Cluster
from orchestrator.records import Cell
from orchestrator.settings import Resources
from orchestrator.spec.site_options import SlurmOptions


def never_started(
    options: SlurmOptions, cluster: Cluster, resources: Iterable[Resources]
) -> Iterator[SiteFinding]:
    """Yield why jobs would wait for ever: limits of a partition, which SLURM checks only where
    EnforcePartLimits is set."""
    partition = cluster.partition(options.partition)
    if partition is None:
        return
    limit = partition.max_minutes
    if limit is not None and options.time_limit_hours * 60 > limit:
        yield SiteFinding(
            "time_limit_hours",
            "broken" if options.qos is None else "missing",  # a QOS may lift a partition's limit
            f"the time limit of {options.time_limit_hours:g} h is more than the partition "
            f"'{partition.name}' allows ({limit:g} minutes): jobs would wait for ever. Cells that "
            "need longer are requeued and go on from their checkpoint",
            "change site.options.time_limit_hours",
        )
    most = max((each.num_nodes for each in resources), default=1)
    if partition.max_nodes is not None and most > partition.max_nodes:
        yield SiteFinding(
            "partition",
            "broken",
            f"cells need {most} nodes (resources.num_nodes), and a job of '{partition.name}' may "
            f"have {partition.max_nodes}",
            "change site.options.partition",
        )


def refused(
    options: SlurmOptions, cluster: Cluster, cells: Iterable[Cell]
) -> Iterator[SiteFinding]:
    """Yield what SLURM says against the jobs of these cells (`sbatch --test-only`)."""
    partition = cluster.partition(options.partition)
    nodes = cluster.nodes_of(partition.name) if partition else []
    # Jobs that fit only nodes that are down now are refused by a test, and by no submission.
    broken = all(node.usable for node in nodes)
    named = options.model_dump(mode="json"), cluster.names()
    for shape in dict.fromkeys(map(script.array_resources, cells)) or [script.ArrayResources()]:
        size = script.job_size(options, shape)
        job = script.ArrayJob("orch-doctor", 1, shape, size, options)
        flags = script.directives(script.text(job))
        try:
            scheduler.call(["sbatch", "--test-only", *flags, "--wrap=true"])
        except (scheduler.SchedulerRefusal, scheduler.SchedulerUnavailable) as error:
            message = scheduler.refusal_of(str(error), *named)
            verdict = "broken" if broken and not message.passing else "missing"
            check = message.field.removeprefix("site.options.") or "cluster"
            todo = f"change {message.field}" if message.field else ""
            yield SiteFinding(check, verdict, message.sentence, todo)
