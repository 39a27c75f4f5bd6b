"""What a cluster answers, read; a site file against it; a site file from it."""

from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.launch.slurm import cluster
from orchestrator.launch.slurm.script import ArrayResources, fitted_size
from orchestrator.settings import Resources
from orchestrator.site.check import check_site
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
    assert a100.accounts == {"physics", "ml"}
    assert BIG.partition(None) == BIG.partition("cpu")
    assert [node.usable for node in BIG.nodes] == [True, True, False, True]
    assert BIG.nodes[1].gpus == (("a100", 4),)
    assert (BIG.nodes[0].cpus, BIG.nodes[0].gpus) == (62, ())
    assert BIG.nodes[1].features == {"nvlink", "ib"}
    assert [(r.account, r.max_submit, r.max_minutes) for r in BIG.rights] == [
        ("ml", 200, None),
        ("physics", None, 720),
    ]


def broken(options: dict[str, object], nodes: int = 1, gpus: int = 4) -> list[tuple[str, str]]:
    told = check_site(
        SlurmOptions.model_validate({**GOOD, **options}),
        BIG,
        [Resources(num_nodes=nodes, gpus_per_node=gpus)],
        10,
    )
    return [(advice.field, advice.sentence) for advice in told if advice.broken]


def test_a_good_site_has_no_fault() -> None:
    assert broken({}) == []


@pytest.mark.parametrize(
    ("options", "field", "words"),
    [
        ({"partition": "a10"}, "partition", "there is no partition 'a10', did you mean 'a100'?"),
        ({"partition": "old"}, "partition", "takes no jobs at present"),
        ({"account": "mll"}, "account", "did you mean 'ml'? (there are: ml, physics)"),
        ({"account": "chemistry"}, "account", "does not admit the account 'chemistry'"),
        ({"qos": "vip"}, "qos", "may not use the QOS 'vip' (it may use: long, normal)"),
        ({"time_limit_hours": 48}, "time_limit_hours", "48 h is more than the partition 'a100'"),
        ({"gres": "gpu:h100:4"}, "gres", "has 4 GPUs of type h100"),
        ({"gres": "gpu:a100:8"}, "gres", "has 8 GPUs of type a100"),
        ({"gres": "gpu:a100:2"}, "gres", "cells need 4 GPUs a node"),
        ({"constraint": "ibb"}, "constraint", "has the feature 'ibb', did you mean 'ib'?"),
        ({"memory_gib": 2000}, "memory_gib", "has 2000 GiB of memory (the largest has 1000)"),
        ({"cpus_per_gpu": 64}, "cpus_per_gpu", "has 256 CPUs (the largest has 128)"),
        ({"max_submit_jobs": 500}, "max_submit_jobs", "200 jobs in the queue"),
    ],
)
def test_what_a_site_file_gets_wrong_names_the_field(
    options: dict[str, object], field: str, words: str
) -> None:
    told = broken(options)
    assert any(f == f"site.options.{field}" and words in sentence for f, sentence in told), told


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


def test_a_gpu_job_with_too_few_cpus_is_told_and_one_with_fewer_than_gpus_is_refused() -> None:
    def told(cpus: int) -> list[bool]:
        options = SlurmOptions.model_validate({**GOOD, "cpus_per_task": cpus})
        advice = check_site(options, BIG, [Resources(gpus_per_node=4)])
        return [each.broken for each in advice if each.field == "site.options.cpus_per_task"]

    assert (told(1), told(8), told(16)) == ([True], [False], [])


def test_accounting_that_does_not_answer_is_not_a_user_without_an_account() -> None:
    silent = replace(BIG, rights=None, faults=("`sacctmgr -nP show` did not answer",))
    advice = check_site(SlurmOptions.model_validate(GOOD), silent, [Resources(gpus_per_node=4)])
    assert [each.sentence for each in advice] == ["`sacctmgr -nP show` did not answer"]
    nobody = replace(BIG, rights=())
    advice = check_site(SlurmOptions.model_validate(GOOD), nobody, [Resources(gpus_per_node=4)])
    assert "no account on the cluster" in advice[0].sentence


def test_a_drained_node_is_told_and_breaks_nothing() -> None:
    told = check_site(
        SlurmOptions.model_validate(GOOD), BIG, [Resources(num_nodes=2, gpus_per_node=4)]
    )
    assert [advice.broken for advice in told] == [False]
    assert "only 1 of 2" in told[0].sentence


def test_a_site_file_written_from_the_answers_passes_the_check(tmp_path: Path) -> None:
    file = tmp_path / "big.yaml"
    file.write_text(site_file(BIG))
    options = SlurmOptions.model_validate(read_site(file).options)
    assert (options.partition, options.account, options.gres) == ("a100", "ml", "gpu:a100:4")
    assert options.max_submit_jobs == 200
    told = check_site(options, BIG, [Resources(num_nodes=1, gpus_per_node=4)])
    assert not [advice for advice in told if advice.broken]
