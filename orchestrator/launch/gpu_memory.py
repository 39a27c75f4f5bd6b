"""The memory that the launches of cells take of a GPU: sentences for a plan, and refusals."""

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import NamedTuple

from orchestrator import plugins
from orchestrator.errors import OrchError, UnsupportedSetting
from orchestrator.library.memory import MemoryEstimate, estimate, gpu_gib
from orchestrator.library.model_size import ModelSize, size_of
from orchestrator.library.neighbour import NOWHERE
from orchestrator.records import Cell, Site
from orchestrator.spec.site_options import ClusterOptions


class CellMemory(NamedTuple):
    """An estimate of a cell's launch, and the size of the model that it is from."""

    estimate: MemoryEstimate
    size: ModelSize


def memory_of(cell: Cell, variables: Mapping[str, str] | None = None) -> CellMemory | None:
    """Return the estimate for a cell; None without GPUs, or if library or model are not known.

    variables: those that name the hub's cache; None: this process's.
    Raise OrchError for a cell that its library cannot express.
    """
    if not cell.resources.gpus_per_node or cell.scale != "full":
        return None
    use = plugins.load(cell.settings.backend.name).gpu_memory(cell)
    size = size_of(cell.settings.model, variables)
    if use is None or size is None:
        return None
    return CellMemory(estimate(use, size, cell.resources.gpu, cell.settings.lora), size)


_SHARE_OF_WEIGHTS = 0.5
"""The most of a GPU that a policy's weights take where it is scored: the rest is for responses."""


def evaluation_gpus(cells: Iterable[Cell], options: ClusterOptions) -> int:
    """Return the GPUs that the evaluation job of each of these cells takes.

    What the site says; else as few as hold the policy's 16-bit weights, or those of a node in
    training where the sizes of model or GPU are not known.
    """
    if options.evaluation.gpus is not None:
        return options.evaluation.gpus
    return max((_scoring_gpus(cell) for cell in cells), default=0)


def _scoring_gpus(cell: Cell) -> int:
    most = 0 if cell.scale == "micro" else cell.resources.gpus_per_node
    size, memory = size_of(cell.settings.model), gpu_gib(cell.resources.gpu)
    if size is None or memory is None:
        return most
    gib, gpus = 2 * size.num_parameters / 2**30, 1
    while gpus < most and gib / gpus > _SHARE_OF_WEIGHTS * memory:
        gpus *= 2  # vLLM divides attention heads by it
    return min(gpus, most)


def refusal(cell: Cell) -> UnsupportedSetting | None:
    """Return why a launch cannot fit on its GPUs, or None if it may."""
    memory = memory_of(cell)
    if memory is None or not memory.estimate.cannot_fit:
        return None
    gpus = cell.resources.gpus_per_node
    return UnsupportedSetting(
        cell.settings.backend.name,
        "resources.gpus_per_node",
        gpus,
        tuple(_helps(cell)) or ("a smaller model, or another library",),
        f"Weights, gradients and optimizer of {memory.size.num_parameters / 1e9:.3g} billion "
        f"parameters ({memory.size.source}) take {memory.estimate.least:.0f} GiB of each GPU, and "
        f"a GPU ({cell.resources.gpu}) has {memory.estimate.gpu:.0f}.",
    )


def _helps(cell: Cell) -> Iterable[str]:
    """Yield the settings with which the launch could fit, each by itself."""
    resources = cell.resources
    others = {"system.offload=true": cell.but(system=cell.system.but(offload=True))}
    for name, number in (
        ("gpus_per_node", 2 * resources.gpus_per_node),
        ("num_nodes", 2 * resources.num_nodes),
    ):
        words = f"resources.{name}={number}"
        others[words] = cell.but(resources=resources.but(**{name: number}))
    for words, other in others.items():
        with suppress(OrchError):  # the library has no such setting, or no such layout
            plugins.load(cell.settings.backend.name).translate(other, NOWHERE)
            memory = memory_of(other)
            if memory is not None and not memory.estimate.cannot_fit:
                yield words


def memory_lines(cells: Iterable[Cell], site: Site | None = None) -> list[str]:
    """Return a sentence for each kind of launch, and where the sizes of the models are from.

    site: its `options.env` may name the hub's cache of the jobs, which is looked into.
    """
    own = site.options.get("env") if site else None
    variables = {**os.environ, **(own if isinstance(own, Mapping) else {})}
    lines: dict[str, None] = {}
    read: dict[str, None] = {}
    declared: dict[str, None] = {}
    for cell in cells:
        memory = memory_of(cell, variables)
        if memory is not None:
            lines.setdefault(_sentence(cell, memory))
            (read if memory.size.shape else declared).setdefault(cell.settings.model.name)
    if read:
        lines.setdefault(f"from the config.json of {', '.join(read)}")
    if declared:
        lines.setdefault(
            f"from the names of {', '.join(declared)}, whose config.json is not in the hub's cache "
            "here: activations and adapters are not counted"
        )
    return list(lines)


def _sentence(cell: Cell, memory: CellMemory) -> str:
    needed, settings = memory.estimate, cell.settings
    of = "of a GPU of unknown size" if needed.gpu is None else f"of {needed.gpu:.0f} GiB"
    training, sampling = (sum(each.values()) for each in (needed.training, needed.sampling))
    policy = f"{settings.backend.name} {settings.model.name}"
    policy += "" if settings.lora is None else " with lora"
    text = f"{policy}: {training:.0f} {of} a GPU while it trains, {sampling:.0f} while it samples"
    if needed.node:
        text += f"; at its start its processes hold {needed.node:.0f} GiB of a node's memory"
    if needed.gpu is None:
        return text
    if needed.peak > needed.gpu:
        knobs = "system.micro_batch" if training > needed.gpu else "system.engine_memory"
        text += f"; it may run out of memory: lower {knobs}, or set system.offload"
    engine = needed.sampling["engine"]
    if engine and needed.engine_weights > engine:
        text += (
            f"; vLLM's share of {engine:.0f} GiB is less than the model's "
            f"{needed.engine_weights:.0f}: raise system.engine_memory or system.tensor_parallel"
        )
    return text
