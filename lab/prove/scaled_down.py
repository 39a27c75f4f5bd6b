"""Reduce cells to a scale that their library trains here in seconds, and train them.

Settings of the objective stay: estimator, placement, beta, advantage, loss, clip, minibatches,
temperature. Settings of size become small: the policy, the prompts, the batch. Passes are in fp32
if the library accepts that.
"""

import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from json import dumps, loads
from pathlib import Path
from typing import Any, NamedTuple

from backends.micro.skills import EOS, VOCABULARY
from lab.cpu import ENGINE_ROUNDS, CpuLaunch, Deviation, cpu_launch, recording
from orchestrator import plugins
from orchestrator.data import prepared
from orchestrator.environments.lock import Environment, find_installed, lock_of
from orchestrator.errors import EnvironmentFault, UnsupportedSetting
from orchestrator.identity import fingerprint, flatten
from orchestrator.kl.library_semantics import precision_of
from orchestrator.launch import program
from orchestrator.launch.endings import Ending
from orchestrator.launch.node.environment import TrainerEnvironment
from orchestrator.library import prompt_recipe
from orchestrator.records import AttemptPaths, Cell
from orchestrator.rundir import CellDir
from orchestrator.settings import BackendRef, Batch, Cadence, Data, Model, Resources, Settings
from orchestrator.spec.site_options import EnvironmentEntry, NodeOptions

POLICY = "micro:elder"
CONTENT_ONLY = "{{ bos_token }}{% for message in messages %}{{ message['content'] }}{% endfor %}"
"""Chat template of the small policy, for libraries that need one. It returns the prompt itself."""
ROLLOUTS = 64
"""The number of rollouts of a train step, approximately."""
LEARNING_RATE = 1e-3
RESPONSE_TOKENS, PROMPT_TOKENS = 6, 10
NUM_PROMPTS = 256
NOWHERE = AttemptPaths(Path("/prove/plan"), Path("/prove/attempt"), Path("/prove/checkpoints"))
"""Paths for a translation that starts nothing."""
LONGEST_SECONDS, SILENT_SECONDS = 1200.0, 480.0
"""Limits of a training: verl's dozen processes take minutes to start on two cores."""
BATCHES = 4
"""Number of rollout batches of a rehearsal."""


class ScaledDown(NamedTuple):
    """A cell at small scale, and the fields in which it differs from the declared one."""

    cell: Cell
    changes: tuple[Deviation, ...]


def scaled_down(declared: Cell, folder: Path, *, batches: int, **changes: object) -> ScaledDown:
    """Return a declared cell at small scale, with `batches` rollout batches.

    folder: the folder for its policy. changes: further sections or fields of Settings to set.
    """
    settings = declared.settings
    updates, group = settings.batch.num_minibatches, min(settings.rollout.group_size, 16)
    prompts = updates * max(1, round(ROLLOUTS / group))
    loss = settings.loss
    if loss.constant_tokens not in (None, 1):  # 1 is a plain sum over a response
        loss = loss.model_copy(update={"constant_tokens": RESPONSE_TOKENS})
    chosen = settings.model_copy(
        update={
            "model": Model(name="elder", path=str(policy(folder / "policy"))),
            "data": Data(
                name="sort",
                path=str(questions(folder / "prompts")),
                reward="exact",
                max_prompt_tokens=PROMPT_TOKENS,
                num_prompts=NUM_PROMPTS,
            ),
            "loss": loss,
            "rollout": settings.rollout.model_copy(
                update={
                    "group_size": group,
                    "max_response_tokens": RESPONSE_TOKENS,
                    "top_p": 1.0,
                }
            ),
            "batch": Batch(num_prompts=prompts, num_minibatches=updates),
            "optimizer": settings.optimizer.model_copy(
                update={"learning_rate": LEARNING_RATE, "num_warmup_steps": 0}
            ),
            "num_train_steps": batches * updates,
            "max_staleness_steps": 0,
            **changes,
        }
    )
    cell = declared.model_copy(
        update={
            "id": fingerprint(chosen),
            "settings": chosen,
            "resources": Resources(num_nodes=1, gpus_per_node=1),
            "cadence": Cadence(checkpoint_every_steps=max(1, batches // 2) * updates),
        }
    )
    few = _in_fp32(cell) or on_few_gpus(cell)
    return ScaledDown(few, tuple(_differences(declared, few)))


def _in_fp32(cell: Cell) -> Cell | None:
    """Return the cell with passes in fp32, or None if its library does not accept that."""
    settings = cell.settings
    precision = settings.precision.model_copy(update={"training": "fp32"})
    chosen = settings.model_copy(update={"precision": precision})
    try:
        return on_few_gpus(cell.model_copy(update={"id": fingerprint(chosen), "settings": chosen}))
    except UnsupportedSetting:
        return None


def on_few_gpus(cell: Cell) -> Cell:
    """Return the cell on the fewest GPUs with which its library has a launch.

    Some libraries need a GPU for each part. Raise UnsupportedSetting if none of the numbers works.
    """
    backend = plugins.load(cell.settings.backend.name)
    refused: UnsupportedSetting | None = None
    for count in (1, 2, 3):
        few = cell.model_copy(update={"resources": Resources(num_nodes=1, gpus_per_node=count)})
        try:
            backend.translate(few, NOWHERE)
        except UnsupportedSetting as error:
            refused = error
        else:
            return few
    raise refused or TypeError("no number of GPUs was tried")


def _differences(declared: Cell, chosen: Cell) -> Iterator[Deviation]:
    before, after = (
        dict(
            flatten(
                {
                    **each.settings.model_dump(),
                    "resources": each.resources.model_dump(),
                    "cadence": each.cadence.model_dump(),
                }
            )
        )
        for each in (declared, chosen)
    )
    for field in sorted(before.keys() | after.keys()):
        one, other = before.get(field), after.get(field)
        if one != other:
            yield Deviation("setting", field, str(one), str(other), _WHY.get(field, ""))


_WHY: Mapping[str, str] = {
    "data.reward": "the small policy knows digits only",
    "precision.training": "so that a difference is the library's, and no rounding",
    "max_staleness_steps": "one process samples and trains in turn",
    "rollout.top_p": "the sampler samples plainly",
    "optimizer.learning_rate": "a small policy learns in few steps",
}


def policy(folder: Path) -> Path:
    """Return the folder of a shipped policy with a chat template. Make it if it does not exist.

    Its responses have unequal lengths, so that each average of the loss is another number: of 384
    that were sampled, 29 had one token, 268 all six, and 6 % were cut before their end.
    """
    if not folder.exists():
        owner, _, name = POLICY.partition(":")
        trainer = plugins.load_embedded(owner)
        policies = trainer.policies_dir if trainer else None
        if policies is None:
            raise EnvironmentFault(f"backend '{owner}' ships no policies")
        shutil.copytree(policies / name, folder)
        file = folder / "tokenizer_config.json"
        config = loads(file.read_text(encoding="utf-8"))
        file.write_text(dumps(config | {"chat_template": CONTENT_ONLY}), encoding="utf-8")
        _end_anywhere(folder / "model.safetensors")
    return folder.absolute()


def _end_anywhere(file: Path) -> None:
    """Make the policy less certain, and let it end a response after any of its digits."""
    from safetensors.torch import load_file, save_file

    weights = load_file(file)
    head = weights["lm_head.weight"]
    digits = [VOCABULARY.index(digit) for digit in "0123456789"]
    mean = head[digits].mean(0)
    head *= 0.7
    head[EOS] += 3 * mean
    save_file(weights, file, metadata={"format": "pt"})


def questions(folder: Path) -> Path:
    """Return a file of prompts for the small policy. Write it and one for validation beside it."""
    if not folder.exists():
        folder.mkdir(parents=True)
        for name, first, count in (("train", 0, NUM_PROMPTS), ("validation", 50_000, 64)):
            # 48,611 and 100,000 have no common divisor, so all these words differ: no question
            # comes twice, and validation has none of training.
            words = [f"{(first + i) * 48_611 % 100_000:05d}" for i in range(count)]
            rows = [dumps({"question": f"S{w}=", "answer": "".join(sorted(w))}) for w in words]
            (folder / f"{name}.jsonl").write_text("\n".join(rows) + "\n", encoding="utf-8")
    return (folder / "train.jsonl").absolute()


def cell_of(library: str, version: str, settings: Mapping[str, object]) -> Cell:
    """Return a cell for a proof: RLOO on the small policy, with these sections of Settings."""
    plain = {
        "model": {"name": "elder", "path": str(NOWHERE.plan_dir / "policy")},
        "data": {
            "name": "sort",
            "path": str(NOWHERE.plan_dir / "prompts.jsonl"),
            "reward": "exact",
            "num_prompts": NUM_PROMPTS,
        },
        "advantage": {"estimator": "rloo"},
        "loss": {},
        "rollout": {"group_size": 8, "max_response_tokens": RESPONSE_TOKENS},
        "batch": {"num_prompts": 8},
        "optimizer": {"learning_rate": LEARNING_RATE},
        "num_train_steps": 8,
        "backend": BackendRef(name=library, version=version).model_dump(),
        **settings,
    }
    chosen = Settings.model_validate(plain)
    return Cell(
        id=fingerprint(chosen),
        slug=chosen.kl.label,
        studies=("prove",),
        axes={},
        settings=chosen,
        resources=Resources(num_nodes=1, gpus_per_node=1),
    )


def environment_of(library: str, version: str) -> Environment:
    """Return the environment that trains a release here.

    Raise EnvironmentFault, with the command that makes it, if no environment trains the release.
    """
    lock_of(library, version, "cpu")
    environment = find_installed(library, version, "cpu")
    if environment is None:
        raise EnvironmentFault(
            f"no environment trains {library}@{version} on this machine: "
            f"`orch env create {library}@{version} --cpu` makes one"
        )
    return environment


def options_of(library: str, version: str, environment: Environment) -> NodeOptions:
    """Return options of a node that runs a release in this environment."""
    entry = EnvironmentEntry(venv=str(environment.path))
    return NodeOptions(environments={f"{library}@{version}": entry})


def on_cpu(cell: Cell, paths: AttemptPaths, *, exact: bool = True) -> CpuLaunch:
    """Return a cell's launch on a CPU, in fp32 if the library or its stand-ins can.

    It writes its rollouts, unless it trains an adapter, which is not replayed. exact: if False, in
    the cell's own format, and without rollouts. Raise UnsupportedSetting if the library has no
    launch on a CPU.
    """
    backend = plugins.load(cell.settings.backend.name)
    plan = backend.translate(cell, paths)
    launch = cpu_launch(plan, paths)
    if launch is None:
        raise UnsupportedSetting(
            backend.name,
            "backend.version",
            cell.settings.backend.version,
            backend.versions,
            "orch has no way to train this release without a GPU.",
        )
    if not exact:
        return launch
    if cell.settings.lora is None:
        launch = recording(launch, paths)
    semantics = backend.semantics(cell.settings.backend.version)
    if precision_of(cell.settings, semantics.dialect)[0] != "fp32":
        launch = launch.in_fp32()
    return launch


def train(
    cell: Cell,
    cell_dir: CellDir,
    environment: Environment,
    *,
    exact: bool = True,
    patience: float = 1,
) -> tuple[CpuLaunch, Ending]:
    """Train a cell on this machine in a new attempt. Return its launch and its ending.

    exact: as that of `on_cpu`. patience: a factor of the limits of time. A later call
    continues from the last checkpoint, as the library does.
    """
    cell_dir.make(cell)
    attempt = cell_dir.new_attempt()
    paths = cell_dir.paths(attempt)
    launch = on_cpu(cell, paths, exact=exact)
    cell_dir.write(cell, launch.plan)
    data = cell_dir.path.parent / "data"
    wanted = prompt_recipe.of_plan(launch.plan.files)
    if wanted is not None:
        prepared.prepare(wanted.data, [wanted.format], data)
        prepared.link(paths.plan_dir, data)
    variables = TrainerEnvironment(
        environment.record(), environment.variables(os.environ)
    ).variables(launch.plan.env)
    silent = program.HangWatch(attempt.path, patience * SILENT_SECONDS)
    ending = program.run(
        launch.plan.argv,
        attempt.stdout,
        attempt.stderr,
        cwd=paths.plan_dir,
        env=variables,
        watch=stop_after(patience * LONGEST_SECONDS, silent),
    )
    return launch, ending


def stop_after(seconds: float, silent: program.HangWatch) -> Callable[[], Ending | None]:
    """Return a function: an ending after so many seconds, or of a silent program; else None."""
    deadline = time.monotonic() + seconds
    late = Ending("failed", failure="hung", message=f"it took over {seconds:g} s (--patience)")
    return lambda: late if time.monotonic() >= deadline else silent.ending()


# The cells that prove a release: each place of the KL, several train steps for each batch, and
# policy losses and corrections of an engine that rounds whose bounds act in those steps.


BETA = 0.05
WANTED: dict[str, dict[str, object]] = {
    "k3.loss": {"kl": {"estimator": "k3", "placement": "loss", "beta": BETA}},
    "k1.reward": {"kl": {"estimator": "k1", "placement": "reward", "beta": BETA}},
    "k3.loss.x4": {
        "kl": {"estimator": "k3", "placement": "loss", "beta": BETA},
        "batch": {"num_prompts": 8, "num_minibatches": 4},
        "num_train_steps": 32,
    },
    "k1.reward.grpo": {
        "kl": {"estimator": "k1", "placement": "reward", "beta": BETA},
        "advantage": {"estimator": "grpo"},
    },
    "k1_to_go.reward": {"kl": {"estimator": "k1_to_go", "placement": "reward", "beta": BETA}},
    **{
        f"{policy}.x4": {
            "kl": {"estimator": "none"},
            "loss": {"policy": policy, **loss},
            "batch": {"num_prompts": 8, "num_minibatches": 4},
            "num_train_steps": 32,
        }
        for policy, loss in (
            ("gspo", {"clip": {"low": 0.02, "high": 0.02}, "aggregation": "sequence_mean"}),
            ("cispo", {"clip": {"low": 1.0, "high": 0.02}}),
            # Without a bound on the weight verl's loss has another value, and the same gradient.
            ("dppo_tv", {"clip": {"low": 0.02, "high": 0.02, "dual": 20.0}}),
        )
    },
    **{
        f"{kind}.x4": {
            "kl": {"estimator": "none"},
            "loss": {"correction": {"kind": kind, "least": least, "most": most}},
            "batch": {"num_prompts": 8, "num_minibatches": 4},
            "num_train_steps": 32,
        }
        for kind, least, most in (
            # An engine in bf16 is off by about one percent a token.
            ("tis_token", 0.0, 1.005),
            ("mis_token", 0.99, 1.01),
        )
    },
}
"""Name -> sections of Settings."""
_LOSSES: tuple[dict[str, object], ...] = (
    {},
    {"aggregation": "sequence_mean"},
    {"aggregation": "constant", "constant_tokens": 1},
)
"""Aggregations of the loss, tried in order, because a library may accept only some of them."""


def cells_of(library: str, version: str) -> Iterator[tuple[str, Cell]]:
    """Yield name and cell for each of WANTED that a release accepts, in fp32 if the release can.

    Raise EnvironmentFault if the release accepts none.
    """
    count = 0
    refused = ""
    for name, settings in WANTED.items():
        for loss in _losses(settings):
            cell, fault = _accepted(library, version, {**settings, "loss": loss})
            refused = refused or fault
            if cell is not None:
                count += 1
                yield name, cell
                break
    if not count:
        raise EnvironmentFault(f"{library} {version} takes none of the proof's cells: {refused}")


def _losses(settings: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the sections for the loss of a wanted cell, in the order in which they are tried."""
    own = settings.get("loss", {})
    clips = [own["clip"]] if "clip" in own else []
    clips += [{"low": clip["low"], "high": clip["high"]} for clip in clips if "dual" in clip]
    for aggregation in ({},) if "aggregation" in own else _LOSSES:
        for clip in [{"clip": each} for each in clips] or [{}]:
            yield {**aggregation, **own, **clip}


def _accepted(library: str, version: str, settings: dict[str, object]) -> tuple[Cell | None, str]:
    fault = ""
    for precision in ({"training": "fp32"}, {}):
        cell = cell_of(library, version, {**settings, "precision": precision})
        try:
            cell = on_few_gpus(cell)
            launch = on_cpu(cell, NOWHERE)
        except UnsupportedSetting as error:
            fault = str(error)
            continue
        if cell.settings.loss.correction is None or ENGINE_ROUNDS in launch.plan.env:
            return cell, ""
        fault = f"the engine's stand-in of {library} rounds nothing, so its correction would be 1"
    return None, fault
