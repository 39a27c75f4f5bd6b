"""What a cluster answers, read; a site file against it; a site file from it."""

from pathlib import Path

import pytest

from orchestrator.launch.slurm import cluster
from orchestrator.launch.slurm.script import ArrayResources, fitted_size
from orchestrator.settings import Resources
from orchestrator.site.check import never_started
from orchestrator.site.write import site_file
from orchestrator.spec.site_options import SlurmOptions, read_site
from tests.site import answers

BIG = cluster.parse_cluster(
    answers.CONFIG, answers.PARTITIONS, answers.NODES, answers.RIGHTS, answers.QOS
)
GOOD = {"partition": "a100", "account": "ml", "gres": "gpu:a100:4", "time_limit_hours": 12}


def test_partitions_nodes_and_rights_are_read() -> None:
    a100 = BIG.partition("a100")
    assert (a100.max_minutes, a100.max_nodes) == (36 * 60, 2)
    assert BIG.partition(None) == BIG.partition("cpu")
    assert [node.usable for node in BIG.nodes] == [True, True, False, True]
    assert BIG.nodes[1].gpus == (("a100", 4),)
    assert (BIG.nodes[0].cpus, BIG.nodes[0].gpus) == (62, ())
    assert BIG.nodes[1].features == {"nvlink", "ib"}
    assert [(r.account, r.max_submit) for r in BIG.rights] == [("ml", 200), ("physics", None)]


@pytest.mark.parametrize(
    ("options", "nodes", "field", "is_broken"),
    [
        ({}, 2, "", False),
        ({"time_limit_hours": 48}, 1, "time_limit_hours", True),
        ({"time_limit_hours": 48, "qos": "long"}, 1, "time_limit_hours", False),
        ({}, 3, "partition", True),
        ({"partition": "a10"}, 3, "", False),  # SLURM itself refuses it
    ],
)
def test_what_slurm_takes_and_never_starts_names_the_field(
    options: dict[str, object], nodes: int, field: str, is_broken: bool
) -> None:
    site = SlurmOptions.model_validate({**GOOD, **options})
    told = [*never_started(site, BIG, [Resources(num_nodes=nodes, gpus_per_node=4)])]
    found = [(each.check, each.verdict == "broken") for each in told]
    assert found == ([(field, is_broken)] if field else [])


@pytest.mark.parametrize(
    ("options", "gpus", "size"),
    [
        ({}, 4, (128, 0, True)),  # all GPUs of its nodes: the nodes, and all their memory
        ({"gres": "gpu:a100:2"}, 2, (64, 512000, False)),  # half of them: half of the node
        ({"gres": None}, 4, (16, 256000, False)),  # of nodes that differ the smallest decides
        ({"exclusive": False}, 4, (128, 1024000, False)),
        ({"gres": "gpu:a100:2", "exclusive": True}, 2, (64, 0, True)),
        ({"cpus_per_gpu": 8, "memory_gib": 100}, 4, (32, 102400, True)),
        ({"extra": ["--mem-per-gpu=90G"]}, 4, (128, None, True)),
        ({"partition": "a10"}, 4, (16, None, False)),  # there is none: doctor says so
        ({}, 0, (1, None, False)),
    ],
)
def test_a_job_takes_the_share_of_its_gpus(
    options: dict[str, object], gpus: int, size: tuple[int | None, int | None, bool]
) -> None:
    chosen = SlurmOptions.model_validate({**GOOD, **options})
    assert fitted_size(chosen, ArrayResources(1, gpus), BIG) == size


def test_a_site_file_written_from_the_answers_passes_the_check(tmp_path: Path) -> None:
    file = tmp_path / "big.yaml"
    file.write_text(site_file(BIG))
    options = SlurmOptions.model_validate(read_site(file).options)
    assert (options.partition, options.account, options.gres) == ("a100", "ml", "gpu:a100:4")
    assert options.max_submit_jobs == 200
    assert not [*never_started(options, BIG, [Resources(num_nodes=1, gpus_per_node=4)])]
