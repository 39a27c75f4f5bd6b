"""A launch on a CPU differs from the one asked for in what it lists, and in nothing else."""

import tomllib
from pathlib import Path

import pytest

from lab import cpu
from lab.cpu import cpu_launch
from lab.cpu.orch_rollout_dump import PASSES
from orchestrator import plugins
from orchestrator.records import AttemptPaths, LaunchPlan
from orchestrator.settings import Cadence
from tests.lab import real

RELEASES = {
    "openrlhf": ("0.11.2", "0.10.1.post2"),
    "prime_rl": ("0.5.0", None),
    "skyrl": ("0.4.0", "0.3.0"),
}
"""Library -> the release that trains on a CPU, and one that does not."""
PLACE = AttemptPaths(Path("/r/a 'b'/plan"), Path("/r/a 'b'/attempts/1"), Path("/r/checkpoints"))


def planned(library: str, version: str) -> LaunchPlan:
    asked = real.cell(library, version, Path("/models/m"), Path("d.jsonl"), real.K1)
    asked = asked.model_copy(update={"cadence": Cadence(checkpoint_every_steps=10)})
    return plugins.load(library).translate(asked, PLACE)


@pytest.mark.parametrize("library", RELEASES)
def test_what_differs_is_listed(library: str) -> None:
    version, other = RELEASES[library]
    plan = planned(library, version)
    made = cpu_launch(plan, PLACE)
    assert made is not None
    assert made == cpu_launch(plan, PLACE)
    named = {each.name for each in made.deviations}
    added = made.plan.files.keys() - plan.files.keys()
    assert {f"{cpu.FOLDER}/{name}.py" for name in ("sitecustomize", "orch_cpu_device")} <= added
    assert added <= named
    assert {name for name in made.plan.env if made.plan.env[name] != plan.env.get(name)} <= named
    assert {word for word in set(made.plan.argv) - set(plan.argv) if word[:2] == "--"} <= named
    assert all(each.why or each.kind != "argument" for each in made.deviations)
    assert set(cpu.PARTS) <= set(made.deviations)
    if other is not None:
        assert cpu_launch(planned(library, other), PLACE) is None


@pytest.mark.parametrize("library", RELEASES)
def test_what_rounds_to_bf16_can_be_had_in_fp32_and_that_is_listed(library: str) -> None:
    launch = cpu_launch(planned(library, RELEASES[library][0]), PLACE)
    assert launch is not None
    exact = launch.in_fp32()
    assert exact.plan.env == {**launch.plan.env, PASSES: "fp32"}
    assert exact.plan.argv == launch.plan.argv
    told = set(exact.deviations) - set(launch.deviations)
    assert {each.name for each in told} == {PASSES, *(each.name for each in launch.fp32_parts)}
    assert len(launch.fp32_parts) > 1


def test_prime_rl_differs_in_a_few_keys_of_its_file() -> None:
    plan = planned("prime_rl", "0.5.0")
    made = cpu_launch(plan, PLACE)
    assert made is not None
    before, after = (tomllib.loads(each.files["rl.toml"]) for each in (plan, made.plan))
    assert after["trainer"]["model"]["attn"] == "sdpa"
    assert after["trainer"]["loss"] == before["trainer"]["loss"]
    assert after["trainer"]["optim"] == before["trainer"]["optim"]
    port = after["inference"]["server"]["port"]
    assert after["orchestrator"]["client"]["base_url"] == [f"http://localhost:{port}/v1"]
    assert {each.name for each in made.deviations if "." in each.name} >= {
        "trainer.model.attn",
        "trainer.model.impl",
        "inference.server.port",
        "orchestrator.client.base_url",
    }
