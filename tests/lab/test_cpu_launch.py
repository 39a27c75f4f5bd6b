"""A launch on a CPU differs from the one asked for in what it lists, and in nothing else."""

import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab import cpu
from lab.cpu import CpuLaunch, cpu_launch
from lab.cpu.orch_rollout_dump import PASSES
from orchestrator import plugins
from orchestrator.errors import UnsupportedSetting
from orchestrator.identity import flatten
from orchestrator.records import AttemptPaths, LaunchPlan
from orchestrator.settings import Cadence
from tests.lab import real

RELEASES = {
    "openrlhf": ("0.11.2", "0.10.1.post2"),
    "prime_rl": ("0.5.0", None),
    "skyrl": ("0.4.0", "0.3.0"),
    "verl": ("0.9.1", "0.8.0"),
}
"""Library -> the release that trains on a CPU, and one that does not."""
PLACE = AttemptPaths(Path("/r/a 'b'/plan"), Path("/r/a 'b'/attempts/1"), Path("/r/checkpoints"))


def planned(library: str, version: str, **changes: object) -> LaunchPlan:
    asked = {**real.K1, **changes}
    cell = real.cell(library, version, Path("/models/m"), Path("d.jsonl"), asked)
    cell = cell.model_copy(update={"cadence": Cadence(checkpoint_every_steps=10)})
    return plugins.load(library).translate(cell, PLACE)


def on_cpu(plan: LaunchPlan) -> CpuLaunch:
    launch = cpu_launch(plan, PLACE)
    assert launch is not None
    return launch


def sent(plan: LaunchPlan) -> Iterator[tuple[str, object]]:
    """Arguments, variables and keys of TOML files, by name."""
    for word in plan.argv:
        if word.startswith("--") or "=" in word:
            yield word.lstrip("+").partition("=")[0], word.lstrip("+")
    yield from plan.env.items()
    for name, text in plan.files.items():
        if name.endswith(".toml"):
            yield from ((key, str(value)) for key, value in flatten(tomllib.loads(text)))


@pytest.mark.parametrize("library", RELEASES)
def test_what_differs_is_listed(library: str) -> None:
    version, other = RELEASES[library]
    plan = planned(library, version)
    made = on_cpu(plan)
    assert made == cpu_launch(plan, PLACE)
    named = {each.name for each in made.deviations}
    added = made.plan.files.keys() - plan.files.keys()
    assert {"sitecustomize.py", "orch_cpu_device.py"} <= {Path(name).name for name in added}
    assert added <= named
    assert {name for name, _ in set(sent(plan)) ^ set(sent(made.plan))} <= named
    assert all(each.why or each.kind != "argument" for each in made.deviations)
    assert library == "verl" or set(cpu.PARTS) <= set(made.deviations)
    if other is not None:
        assert cpu_launch(planned(library, other), PLACE) is None


@pytest.mark.parametrize("library", ["prime_rl", "skyrl", "verl"])
def test_what_the_launch_optimises_is_untouched(library: str) -> None:
    plan = planned(library, RELEASES[library][0])
    made, read = on_cpu(plan).plan, plugins.load(library).parse
    assert read(made.argv, made.files) == read(plan.argv, plan.files)


def test_verls_asynchronous_trainer_has_no_way_on_the_cpu() -> None:
    with pytest.raises(UnsupportedSetting, match="max_staleness_steps"):
        on_cpu(planned("verl", "0.9.1", max_staleness_steps=1))


@pytest.mark.parametrize("library", [name for name in RELEASES if name != "verl"])
def test_what_rounds_to_bf16_can_be_had_in_fp32_and_that_is_listed(library: str) -> None:
    launch = on_cpu(planned(library, RELEASES[library][0]))
    exact = launch.in_fp32()
    assert exact.plan.env == {**launch.plan.env, PASSES: "fp32"}
    assert exact.plan.argv == launch.plan.argv
    told = set(exact.deviations) - set(launch.deviations)
    assert {each.name for each in told} == {PASSES, *(each.name for each in launch.fp32_parts)}
    assert len(launch.fp32_parts) > 1
