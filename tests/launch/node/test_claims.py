"""Ray is started with at least the CPUs that a library's actors claim."""

from pathlib import Path

import pytest

from orchestrator.launch.node import process_group, ray
from orchestrator.launch.node.environment import TrainerEnvironment
from orchestrator.spec.site_options import NodeOptions


def cpus(options: NodeOptions, nodes: int, claimed: int | None) -> int:
    setup = ray.NodeSetup(
        names=[f"node{i}" for i in range(nodes)],
        gpus_per_node=1,
        environment=TrainerEnvironment({}),
        options=options,
        cwd=Path(),
        visible=(),
        python="python",
        ray_cpus=claimed,
    )
    return setup.cpus_per_node


@pytest.mark.parametrize(
    ("nodes", "claimed", "expected"), [(1, None, 8), (1, 13, 13), (2, 13, 8), (2, 19, 10)]
)
def test_claims_are_shared_by_the_nodes(
    nodes: int, claimed: int | None, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_group, "num_cpus", lambda: 8)
    assert cpus(NodeOptions(), nodes, claimed) == expected


def test_a_site_that_says_a_number_is_obeyed() -> None:
    assert cpus(NodeOptions(ray_cpus_per_node=6), 1, 13) == 6
