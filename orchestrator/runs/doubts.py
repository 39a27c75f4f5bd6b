"""What is wrong with a spec that is right in form: what cannot work, and what is doubtful.

`load` checks a file's form and the library's table checks each value. This module asks whether the
run can mean what its author expects: files that are not there, metrics that nothing measures,
prompts that do not ask for what the reward pays. It reads the file system and changes nothing.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from orchestrator import plugins
from orchestrator.data.source import KINDS, validation_beside
from orchestrator.errors import OrchError, did_you_mean
from orchestrator.evaluate.survey import divergence_tasks, tasks_of
from orchestrator.launch.check import refusals
from orchestrator.launch.disk_use import disk_of_checkpoints
from orchestrator.launch.hub_data import hub_findings, is_local
from orchestrator.launch.local import gpus_of_cell
from orchestrator.launch.node.gpus import machine_gpus
from orchestrator.launch.slurm.cluster import has_controller
from orchestrator.launch.slurm.submissions import moved_from
from orchestrator.library import neighbour
from orchestrator.library.neighbour import NOWHERE
from orchestrator.metrics.names import METRICS, VALIDATION
from orchestrator.records import Cell, EvaluationSpec
from orchestrator.runs.experiment import Experiment
from orchestrator.spec.claims import SHARES, WORKS, parse
from orchestrator.spec.sentences import counted

BETAS = (1e-5, 10.0)
"""Outside of these a slip of the keyboard is likelier."""
LEARNING_RATES = {False: 1e-4, True: 1e-2}
"""With an adapter (LoRA) or without -> a rate of AdamW above which a slip is likelier."""
_BOX = "math_boxed"
DOMAINS = frozenset({"eval/in_domain/mean", "eval/out_of_domain/mean"})


class Doubt(NamedTuple):
    """One sentence about a spec."""

    field: str
    sentence: str
    fault: bool = False
    """The run cannot do what the spec asks for."""

    def __str__(self) -> str:
        return f"{self.field}: {self.sentence}"


def doubts(experiment: Experiment, chosen: Experiment | None = None) -> list[Doubt]:
    """Return what is doubtful, faults first, each once.

    chosen: with the cells that are to run; None: all.
    """
    checks = (_of_libraries, _of_cells, _of_evaluation, _of_metrics)
    all_doubts = [doubt for check in checks for doubt in check(experiment)]
    all_doubts += _of_machine(chosen or experiment)
    return sorted(dict.fromkeys(all_doubts), key=lambda doubt: not doubt.fault)


def refuse_faults(experiment: Experiment, all_doubts: Sequence[Doubt]) -> None:
    """Raise OrchError with every fault."""
    faults = [str(doubt) for doubt in all_doubts if doubt.fault]
    if faults:
        raise OrchError("\n".join([f"{experiment.spec.source} cannot be run as it is:", *faults]))


def _of_machine(experiment: Experiment) -> Iterator[Doubt]:
    """Yield what this machine lacks: GPUs, room for checkpoints, a model where there is no network.

    `orch doctor` calls the same things broken.
    """
    if experiment.scale == "micro":
        return
    is_here = experiment.where == "local"
    if (was := moved_from(experiment.folder)) is not None:
        yield Doubt(
            "site.runs_dir",
            f"{experiment.folder.path} was {was} when its jobs were sent, and some are not over: "
            "they write there. Rename it back until they have ended, or cancel them",
            fault=True,
        )
    most = max(map(gpus_of_cell, experiment.cells), default=0)
    checks = experiment.spec.site.options.get("gpu_check", True)
    if is_here and checks and most > (gpus := len(machine_gpus())):
        todo = f"set resources to {{num_nodes: 1, gpus_per_node: {gpus}}}" if gpus else "site=local"
        yield Doubt(
            "resources",
            f"a cell asks for {most} GPUs, and nvidia-smi lists {gpus} on this machine: {todo}"
            + ("" if gpus else " rehearses"),
            fault=True,
        )
    site = experiment.spec.site
    for finding in hub_findings(site, experiment.cells, None):
        if finding.verdict == "broken" and not is_local(finding.check.removeprefix("model ")):
            sentence = f"{finding.check} is {finding.found}: {finding.advice}"
            yield Doubt("model.path", sentence, fault=is_here)
    if not (is_here or _is_login_node(experiment)):
        return
    new = [cell for cell in experiment.cells if not experiment.folder.cell(cell).attempts()]
    for finding in disk_of_checkpoints(experiment.folder.path, new):
        if finding.verdict != "ok":
            sentence = f"checkpoints take {finding.found}: {finding.advice}"
            yield Doubt("cadence", sentence, fault=finding.verdict == "broken")


def _is_login_node(experiment: Experiment) -> bool:
    """Return True on a machine of the cluster, whose disks its nodes see."""
    with suppress(OrchError):
        return experiment.where == "slurm" and has_controller()
    return False


def _of_libraries(experiment: Experiment) -> Iterator[Doubt]:
    """Yield the releases that orch does not know, and what a rehearsal trains though its library
    refuses it."""
    declared = experiment.declared or experiment.cells
    for ref in dict.fromkeys((cell.declared or cell.settings).backend for cell in declared):
        if other := neighbour.stands_in(plugins.load(ref.name), ref.version):
            yield Doubt(
                "backend.version",
                f"orch has no tables of {ref.name} {ref.version}, and reads it as {other}: it does "
                "not know whether there is such a release",
            )
    refused = refusals(declared, experiment.folder) if experiment.scale == "micro" else {}
    for (why, field), cells in refused.items():
        if not field.startswith("resources"):
            yield Doubt(
                field or "backend",
                f"{counted(len(cells), 'cell')} here are rehearsed, and are refused on a cluster: "
                f"{why}",
            )


def _of_cells(experiment: Experiment) -> Iterator[Doubt]:
    roots = [Path.cwd(), Path(experiment.spec.source).resolve().parent]
    full = experiment.scale == "full"
    for cell in experiment.declared or experiment.cells:
        settings = cell.declared or cell.settings
        yield from _of_model(settings.model.path, experiment.where, full)
        yield from _of_data(settings.data.path, settings.data.reward, roots, full)
        if settings.data.reward == _BOX and "boxed" not in settings.data.instruction:
            yield Doubt(
                "data.instruction",
                "the reward math_boxed pays an answer in \\boxed{} only, and the prompts do not "
                "ask for it: add the sentence of the data set `math` (`data: math`)",
            )
        kl = settings.kl
        if kl.placement is not None and kl.beta and not BETAS[0] <= kl.beta <= BETAS[1]:
            yield Doubt("kl.beta", f"{kl.beta:g} is outside of {BETAS[0]:g} to {BETAS[1]:g}")
        rate, most = settings.optimizer.learning_rate, LEARNING_RATES[settings.lora is not None]
        if rate > most and settings.backend.name != "micro":
            adapter = " of an adapter" if settings.lora else " of a whole model"
            yield Doubt(
                "optimizer.learning_rate",
                f"{rate:g} is above what is usual for the training{adapter} (up to {most:g})",
            )


def _of_model(path: str, where: str, full: bool) -> Iterator[Doubt]:
    if is_local(path) and not Path(path).expanduser().exists():
        sees = "" if where == "local" else ", so no node that shares this file system sees it"
        yield Doubt("model.path", f"{path} is not there{sees}", fault=full)


def _of_data(path: str, reward: str, roots: Sequence[Path], full: bool) -> Iterator[Doubt]:
    if Path(path).suffix not in KINDS or reward == "countdown":
        return
    file = next((root / path for root in roots if (root / path).exists()), None)
    if file is None:
        where = " or ".join(str(root) for root in dict.fromkeys(roots))
        yield Doubt("data.path", f"{path} is a file that is not in {where}", fault=full)
    elif validation_beside(file) is None:
        yield Doubt(
            "data.path",
            f"{path} has no prompts to validate with: put them beside it, in a file named "
            f"validation{file.suffix}, with the same columns",
            fault=full,
        )


def _of_evaluation(experiment: Experiment) -> Iterator[Doubt]:
    spec = experiment.spec
    full = experiment.scale == "full"  # the embedded trainer measures its skills while it trains
    if full and not any(tasks_of(cell, spec.evaluation) for cell in experiment.cells):
        yield Doubt(
            "evaluation",
            "nothing is scored after training: the only accuracies will be those that the trainer "
            "logs. Add `evaluation.tasks`, or `defaults: [evaluation: comedy]`",
        )


def _of_metrics(experiment: Experiment) -> Iterator[Doubt]:
    """Yield each metric of a claim or a search that no launch and no score will ever have."""
    spec = experiment.spec
    fields = {
        side.metric: f"claims.{name}"
        for name, text in spec.claims.items()
        for side in parse(text).sides
    }
    for key in ("maximize", "minimize"):
        if metric := (spec.tune or {}).get(key):
            fields[str(metric)] = f"tune.{key}"
    configurations = {
        (cell.settings.backend, cell.settings.data, cell.settings.kl.label): cell
        for cell in (*experiment.declared, *experiment.cells)
    }
    known = {*SHARES, WORKS}
    for cell in configurations.values() if fields else ():
        known.update(measured(cell, spec.evaluation))
    tasks = {name.rpartition("/")[0] for name in known}
    for metric, field in fields.items():
        task, _, statistic = metric.rpartition("/")
        if metric not in known and not (task in tasks and "@" in statistic):
            near = did_you_mean(metric, known | DOMAINS - {metric})
            if metric in DOMAINS:
                near = ": no task of `evaluation` scores the cells in that domain"
            fault = metric not in METRICS or field.startswith("tune.")
            yield Doubt(field, f"nothing measures '{metric}'{near}", fault)


def measured(cell: Cell, evaluation: EvaluationSpec) -> Iterator[str]:
    """Yield the canonical names that the launch of a cell and its evaluation will measure."""
    backend = plugins.load(cell.settings.backend.name)
    logged = backend.logged_metrics
    yield from METRICS if logged is None else (each.ours for each in logged.metrics if each.ours)
    # verl's reader derives it from the reward with and without the penalty.
    yield from ["train/kl_reference"] * (cell.settings.kl.label == "k1.reward")
    try:
        ledger = backend.translate(cell, NOWHERE).ledger
    except OrchError:  # `orch plan` says so by itself
        ledger = ()
    if not any(e.field == "cadence.evaluate_every_steps" and not e.key for e in ledger):
        yield VALIDATION
    tasks = tasks_of(cell, evaluation)
    for task in tasks:
        yield f"eval/{task.name}/mean@{task.repeats}"
    domains = {task.domain for task in tasks}
    yield from ["tasks"] * bool(domains)
    yield from ["eval/in_domain/mean"] * ("in" in domains)
    yield from ["eval/out_of_domain/mean"] * ("out" in domains)
    yield from ["eval/out_over_in/mean"] * ({"in", "out"} <= domains)
    for each in divergence_tasks(cell, evaluation):
        for name in (each.name, "in_domain" if each.domain == "in" else "out_of_domain"):
            yield from (f"eval/{name}/{m}" for m in ("kl_forward", "kl_reverse", "entropy"))
