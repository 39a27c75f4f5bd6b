"""Every file that orch writes into a launch, and the tests that execute it where the library is.

`written` derives the files from the translation itself: a cell of each release, varied in every
field on which a file may depend, with and without a GPU. A file that is new there, and has no row
in EXECUTED, fails a test.
"""

import itertools
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from lab import launches
from orchestrator import plugins, scoring
from orchestrator.errors import UnsupportedSetting
from orchestrator.identity import fingerprint
from orchestrator.library import lora
from orchestrator.records import AttemptPaths, Cell, LaunchPlan
from orchestrator.settings import Cadence, Resources, Settings
from tests.backends.specs import every
from tests.lab import real

PLACE = AttemptPaths(Path("/r/plan"), Path("/r/attempts/1"), Path("/r/checkpoints"))
HERE, BESIDE = "tests/lab", "tests/backends"
REWARDS = f"{HERE}/test_executed.py::test_a_reward_is_computed_where_the_library_is"
PICKLED = f"{HERE}/test_executed.py::test_what_ray_would_pickle_by_value_survives_it"
TRAINS = "::test_it_trains"
VERL = f"{HERE}/verl/test_real.py::test_verl_does_what_its_dialect_predicts"
VERL_OVER_RAY = (
    f"{HERE}/verl/test_real.py::test_its_own_processes_do_what_its_dialect_predicts_"
    "and_its_export_is_evaluated"
)
VERL_KILLED = f"{HERE}/verl/test_real.py::test_a_killed_run_goes_on_and_is_exported"
REPLAYED = f"{BESIDE}/trl/test_replay.py::test_the_dialect_predicts_what_the_library_does"
ADAPTED = f"{HERE}/trl/test_real.py::test_the_adapter_and_not_its_base_is_scored"
MERGED = f"{BESIDE}/test_lora.py::test_what_the_library_saves_is_merged"
LINE = f"{HERE}/trl/test_real.py::test_a_kill_loses_and_changes_nothing"
PRIME_RL = "0.5.0, CPU, with a checkout"


class Execution(NamedTuple):
    """Tests that execute a file, and the library's environment in which they do."""

    environment: str
    tests: tuple[str, ...]


def _trained(library: str, environment: str, names: str) -> dict[tuple[str, str], Execution]:
    execution = Execution(environment, (f"{HERE}/{library}/test_real.py{TRAINS}",))
    return {(library, name): execution for name in names.split()}


_SHARED = "cpu/orch_cpu_device.py cpu/orch_cpu_sampler.py cpu/orch_cpu_server.py "
_SHARED += "cpu/sitecustomize.py orch_rollout_dump.py reward.py"
EXECUTED: dict[tuple[str, str], Execution] = {
    **_trained(
        "openrlhf",
        "0.11.2, CPU",
        f"{_SHARED} cpu/orch_cpu_openrlhf.py cpu/orch_cpu_openrlhf_vllm.py "
        "orch_openrlhf_rollouts.py",
    ),
    **_trained(
        "skyrl",
        "0.4.0, CPU",
        f"{_SHARED} cpu/orch_cpu_skyrl.py cpu/orch_cpu_skyrl_server.py orch_skyrl_dump.py",
    ),
    **_trained(
        "prime_rl",
        PRIME_RL,
        f"{_SHARED.removesuffix(' reward.py')} cpu/orch_cpu_prime_rl.py "
        "cpu/orch_cpu_prime_rl_server.py orch_prime_rl_hooks.py orch_prime_rl_launch.py "
        "orch_prime_rl_rollouts.py",
    ),
    ("prime_rl", "orch_prime_rl_environment.py"): Execution(
        f"{PRIME_RL}; 0.8.0, contract", (f"{HERE}/prime_rl/test_real.py{TRAINS}", REWARDS)
    ),
    ("skyrl", "orch_skyrl.py"): Execution(
        "0.4.0, CPU",
        (
            f"{HERE}/skyrl/test_real.py{TRAINS}",
            f"{HERE}/skyrl/test_real.py::test_it_is_killed_goes_on_and_does_what_its_dialect_predicts",
            PICKLED,
        ),
    ),
    **{
        ("trl", name): Execution("1.16.0 and 1.9.2, CPU", (LINE, REPLAYED))
        for name in ("orch_trl.py", "orch_reward.py")
    },
    **{
        ("trl", name): Execution("1.16.0 and 1.9.2, CPU", (REPLAYED,))
        for name in (
            "orch_trl_dump.py",
            "orch_rollout_dump.py",
            "orch_trl_kl.py",
            "orch_quiet_kl.py",
        )
    },
    ("trl", lora.MERGE): Execution("1.16.0, CPU", (ADAPTED,)),
    ("verl", lora.MERGE): Execution("0.9.1, CPU", (MERGED,)),
    ("skyrl", lora.MERGE): Execution("0.4.0, CPU", (MERGED,)),
    ("prime_rl", lora.MERGE): Execution(
        "TRL 1.16.0's, CPU; an adapter as Prime-RL's source writes it",
        (f"{BESIDE}/test_lora.py::test_an_adapter_beside_its_base_is_merged",),
    ),
    **{
        ("verl", name): Execution("0.9.1, CPU; over Ray", (VERL, VERL_OVER_RAY))
        for name in (
            "reward.py",
            "extension/orch_verl_cpu.py",
            "extension/orch_verl_rollouts.py",
            "extension/orch_rollout_dump.py",
        )
    },
    ("verl", "extension/orch_verl_one_process.py"): Execution("0.9.1, CPU", (VERL,)),
    ("verl", "extension/orch_verl.py"): Execution(
        "0.9.1, CPU",
        (f"{HERE}/test_executed.py::test_verl_trains_with_orchs_extension", VERL_KILLED, PICKLED),
    ),
    **{
        ("*", f"{scoring.PACKAGE}/{name}.py"): Execution(
            "each library's, CPU; Prime-RL 0.8.0's, contract", (REWARDS,)
        )
        for name in ("__init__", *itertools.chain(*scoring.MODULES.values()))
    },
}
"""Library (`*`: each) and name in a launch -> what executes it."""

READ: dict[str, str] = {
    "needs.json": "read by the reward file beside it, executed above",
    "data.json": "read by nobody in a launch: a record of the prompts",
    "orch.json": "read by nobody in a launch: a record of settings without a key",
    "asked.json": "read by nobody in a launch: a record of settings without a key",
    "prompts.json": "read by orch alone: it says which prepared prompts are linked",
    "grpo.yaml": "resolved by TRL's own parser, and trained from",
    "rloo.yaml": "resolved by TRL's own parser, and trained from",
    "rl.toml": "resolved by Prime-RL's own classes, and trained from",
    "inference.toml": "accepted by Prime-RL's own classes (a launch of two nodes: never started)",
    "reference.toml": "accepted by Prime-RL's own classes (a launch of two nodes: never started)",
}
"""Name of a file without code -> who reads it. `tests/backends/test_resolved.py` holds what a
library resolves to the cell."""

BESIDES = (
    (
        "orchestrator/launch/node/ray_wait.py",
        "Ray 2.55, in an environment of its own",
        "tests/launch/node/test_ray.py",
    ),
    ("the batch script", "a real SLURM 22.05 on one machine", "tests/launch/slurm/test_chain.py"),
    (
        "the export command of verl",
        "0.9.1, CPU",
        "tests/lab/verl/test_real.py",
    ),
)
"""What a launch starts and is no file of it: name, where it is executed, test."""


@cache
def written() -> Mapping[tuple[str, str], frozenset[str]]:
    """Return library and name of every file that a launch may have -> the releases that have it."""
    files: dict[tuple[str, str], set[str]] = {}
    for plan in itertools.chain(*map(_plans, _libraries())):
        for name in plan.files:
            files.setdefault((plan.backend, name), set()).add(plan.version)
    return {each: frozenset(releases) for each, releases in sorted(files.items())}


def _libraries() -> list[str]:
    """Return the libraries. The embedded trainer runs orch's own package: nothing is shipped."""
    return [name for name in plugins.names() if name != "micro"]


def _plans(library: str) -> Iterator[LaunchPlan]:
    backend = plugins.load(library)
    for version in backend.versions:
        for cell in (*_varied(library, version), *_of_specs(library, version)):
            for dumps in (False, True):
                cadence = cell.cadence.model_copy(update={"dump_rollouts": dumps})
                with suppress(UnsupportedSetting):
                    plan = backend.translate(cell.model_copy(update={"cadence": cadence}), PLACE)
                    yield plan
                    on_cpu = launches.cpu_launch(plan, PLACE)
                    if on_cpu is not None:
                        yield on_cpu.in_fp32().plan


def _varied(library: str, version: str) -> Iterator[Cell]:
    """Yield a cell, and cells that differ from it in each field on which a file may depend."""
    capable = plugins.load(library).capabilities

    def offered(field: str) -> list[Any]:
        return [each for each in capable.get(field, ()) if isinstance(each, str)]

    losses: list[dict[str, Any]] = [{}, {"aggregation": "sequence_mean"}]
    losses += [{"aggregation": "constant", "constant_tokens": each} for each in (1, 6)]
    kls: list[dict[str, Any]] = [{"estimator": "none"}]
    kls += [
        {"estimator": estimator, "placement": placement, "beta": 0.05}
        for estimator in offered("kl.estimator")
        for placement in ("loss", "reward", "reward_and_loss")
        if estimator != "none"
    ]
    changes: list[dict[str, Any]] = [{"kl": kl, "loss": loss} for kl in kls for loss in losses]
    for kl in ({"estimator": "none"}, kls[-1]):
        changes += [
            {"advantage": {"estimator": each}, "kl": kl} for each in offered("advantage.estimator")
        ]
        changes += [{"data.reward": rule, "kl": kl} for rule in scoring.MODULES]
        changes += [{"model.chat_template": each, "kl": kl} for each in ("none", "default")]
        changes += [{"precision": {"checkpoint": each}, "kl": kl} for each in ("bf16", "fp32")]
        changes += [{"max_staleness_steps": each, "kl": kl} for each in (1, 2)]
    changes += [
        {"lora": {"rank": 4, "alpha": 8, "targets": each}, "kl": {"estimator": "none"}}
        for each in ("all-linear", "q_proj")
    ]
    machines = (Resources(num_nodes=1, gpus_per_node=1), Resources(num_nodes=1, gpus_per_node=4))
    machines += (Resources(num_nodes=2, gpus_per_node=8),)
    cell = real.cell(library, version, Path("/models/m"), Path("d.jsonl"), {"kl": kls[0]})
    base = cell.settings.model_dump()
    for change in changes:
        plain = {**base}
        for key, value in change.items():
            section, _, leaf = key.partition(".")
            plain[section] = {**plain[section], leaf: value} if leaf else value
        with suppress(ValueError):
            settings = Settings.model_validate(plain)
            for resources in machines:
                yield _cell(settings, resources)


def _of_specs(library: str, version: str) -> Iterator[Cell]:
    """Yield the declared cells of the shipped specs, one for each kind of files."""
    kinds = set()
    for cell in every():
        settings = cell.settings
        if settings.backend.name != library:
            continue
        kind = (settings.kl.label, settings.advantage, settings.data.reward, cell.resources)
        kind = (*kind, settings.max_staleness_steps)
        if kind not in kinds:
            kinds.add(kind)
            ref = settings.backend.model_copy(update={"version": version})
            yield _cell(settings.model_copy(update={"backend": ref}), cell.resources)


def _cell(settings: Settings, resources: Resources) -> Cell:
    return Cell(
        id=fingerprint(settings),
        slug="written",
        studies=("written",),
        axes={},
        settings=settings,
        resources=resources,
        cadence=Cadence(checkpoint_every_steps=10),
    )


def execution(library: str, name: str) -> Execution | None:
    """Return what executes a file of a launch, or None."""
    return EXECUTED.get((library, name)) or EXECUTED.get(("*", name))
