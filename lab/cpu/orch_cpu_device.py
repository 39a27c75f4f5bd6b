"""Lets code that names CUDA run on the CPU: devices are renamed, torch.cuda's verbs do nothing,
NCCL is gloo.

Nothing of a library is edited. What changes torch is run right after torch is imported, so that a
process without torch imports none.
"""

import functools
import importlib.abc
import importlib.machinery
import os
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any

After = Callable[[Any], None]
_AFTER: dict[str, list[After]] = {}
_STAND_INS: set[str] = set()
"""Packages that are not there: importing a part without a stand-in says that of the package."""

MEMORY_BYTES = 8 << 30
FACTORIES = (
    *("empty", "zeros", "ones", "full", "tensor", "as_tensor", "arange", "rand", "randn", "eye"),
    *("randint", "randperm", "linspace", "scalar_tensor", "empty_strided", "empty_like"),
    *("zeros_like", "ones_like", "full_like", "rand_like", "randn_like"),
)
"""Functions of torch with a `device`."""
SILENT = (
    *("set_device", "synchronize", "empty_cache", "manual_seed", "manual_seed_all"),
    *("reset_peak_memory_stats", "ipc_collect", "set_rng_state"),
)
NO_BYTES = ("memory_allocated", "memory_reserved", "max_memory_allocated", "max_memory_reserved")


def install() -> None:
    """Have torch changed as soon as it is imported in this process."""
    os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")  # inductor asks for the GPU's properties
    after("torch", _torch)
    after("torch.distributed", _distributed)
    after("torch.distributed.device_mesh", _mesh)


def after(module: str, change: Callable[..., Any], *given: object) -> None:
    """Have `change(module, *given)` called once a module of that name was imported: now, if it
    was."""
    if module in sys.modules:
        change(sys.modules[module], *given)
        return
    if not _AFTER:
        sys.meta_path.insert(0, _Finder())
    _AFTER.setdefault(module, []).append(lambda imported: change(imported, *given))


def around(owner: Any, name: str, change: Callable[..., Any]) -> None:
    """Put `change` in the place of a function: it gets the function before its arguments."""
    own = getattr(owner, name)

    @functools.wraps(own)
    def called(*given: Any, **named: Any) -> Any:
        return change(own, *given, **named)

    setattr(owner, name, called)


def stand_in(name: str, **members: object) -> None:
    """Put a module of that name in the place of one that cannot be had here."""
    if "." not in name:
        _STAND_INS.add(name)
    module = types.ModuleType(name)
    # A module with a path is a package: its parts can be imported.
    module.__path__ = []
    # importlib.util.find_spec, by which libraries look for a package, fails on a module without a
    # spec.
    module.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
    vars(module).update(members)
    sys.modules[name] = module
    parent, _, leaf = name.rpartition(".")
    if parent in sys.modules:
        setattr(sys.modules[parent], leaf, module)


def in_fp32() -> bool:
    """Return True if this launch computes in fp32 what it would compute in bf16."""
    return os.environ.get("ORCH_CPU_PASSES") == "fp32"


def refuse(what: str) -> Callable[..., Any]:
    """Return a function that raises RuntimeError: `what` cannot be had on a CPU."""

    def refused(*_: object, **__: object) -> Any:
        raise RuntimeError(f"{what} stands in here: it is not to be had on a CPU")

    return refused


class _Finder(importlib.abc.MetaPathFinder):
    """Finds modules as the others do, and adds what is to happen after their import."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if (package := name.partition(".")[0]) in _STAND_INS:
            raise ModuleNotFoundError(f"No module named {name!r} on a CPU", name=package)
        if name not in _AFTER:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(name, path, target)
            if spec is not None and spec.loader is not None:
                loader: Any = spec.loader
                loader.exec_module = functools.partial(_run, loader.exec_module, _AFTER[name])
                return spec
        return None


def _run(run: After, changes: Sequence[After], module: types.ModuleType) -> None:
    for change in (run, *changes):
        change(module)


def _cpu(device: Any) -> Any:
    """Return the CPU for a GPU, and any other device as it is."""
    # A bool is an int too, and names no device.
    if isinstance(device, bool):
        return device
    # A number alone is that of a GPU.
    if isinstance(device, int):
        return "cpu"
    name = getattr(device, "type", device)
    if isinstance(name, str) and name.partition(":")[0] == "cuda":
        return "cpu" if isinstance(device, str) else sys.modules["torch"].device("cpu")
    return device


def _by_keyword(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def renamed(*arguments: Any, **named: Any) -> Any:
        if "device" in named:
            named["device"] = _cpu(named["device"])
        return function(*arguments, **named)

    return renamed


def _by_place(function: Callable[..., Any]) -> Callable[..., Any]:
    """As `_by_keyword`; the first argument may be a device too."""

    @functools.wraps(function)
    def renamed(self: Any, *arguments: Any, **named: Any) -> Any:
        if arguments and not isinstance(arguments[0], bool):
            arguments = (_cpu(arguments[0]), *arguments[1:])
        return _by_keyword(function)(self, *arguments, **named)

    return renamed


def _itself(self: Any, *_: object, **__: object) -> Any:
    return self


def _constant(value: object) -> Callable[..., Any]:
    def answer(*_: object, **__: object) -> Any:
        return value

    return answer


def _torch(torch: Any) -> None:
    from importlib import import_module

    # `with torch.device("meta")` knows the constructors by identity: remember the real ones first,
    # or buffers that a model makes under it (rotary frequencies) stay uninitialised
    getattr(import_module("torch.utils._device"), "_device_constructors")()  # noqa: B009 - private
    for name in FACTORIES:
        setattr(torch, name, _by_keyword(getattr(torch, name)))
    tensor, module = torch.Tensor, torch.nn.Module
    for owner, name in ((tensor, "to"), (module, "to")):
        setattr(owner, name, _by_place(getattr(owner, name)))
    for name in ("new_empty", "new_zeros", "new_tensor", "new_full", "new_ones"):
        setattr(tensor, name, _by_keyword(getattr(tensor, name)))
    module.to_empty = _by_keyword(module.to_empty)
    tensor.cuda = tensor.pin_memory = module.cuda = _itself
    begin, always = torch.autocast.__init__, {"enabled": False} if in_fp32() else {}
    torch.autocast.__init__ = lambda self, device_type, *a, **k: begin(
        self, _cpu(device_type), *a, **{**k, **always}
    )
    _cuda(torch, torch.cuda)


def _cuda(torch: Any, cuda: Any) -> None:
    for name in SILENT:
        setattr(cuda, name, _constant(None))
    for name in NO_BYTES:
        setattr(cuda, name, _constant(0))
    cuda.current_device, cuda.device_count = _constant(0), _constant(1)
    cuda.get_rng_state = lambda *_, **__: torch.get_rng_state()
    cuda.mem_get_info = _constant((MEMORY_BYTES, MEMORY_BYTES))
    cuda.get_device_name = _constant("CPU")
    cuda.current_stream = _constant(
        types.SimpleNamespace(
            synchronize=_constant(None), wait_stream=_constant(None), cuda_stream=0
        )
    )
    cuda.get_device_properties = _constant(
        types.SimpleNamespace(
            uuid=f"GPU-cpu-{os.environ.get('CUDA_VISIBLE_DEVICES', '0')}",
            name="CPU",
            total_memory=MEMORY_BYTES,
            multi_processor_count=1,
            major=0,
            minor=0,
        )
    )


def _distributed(dist: Any) -> None:
    def init_process_group(begin: Any, backend: Any = None, *given: Any, **named: Any) -> Any:
        # This names a GPU, and only NCCL uses it.
        named.pop("device_id", None)
        if backend is None or "nccl" in str(backend):
            backend = "gloo"
        return begin(backend, *given, **named)

    def new_group(group: Any, *given: Any, **named: Any) -> Any:
        if "nccl" in str(named.get("backend")):
            named["backend"] = "gloo"
        return group(*given, **named)

    around(dist, "init_process_group", init_process_group)
    # Under both names, because libraries take it from either module.
    dist.distributed_c10d.init_process_group = dist.init_process_group
    around(dist, "new_group", new_group)


def _mesh(device_mesh: Any) -> None:
    def init_device_mesh(make: Any, device_type: Any, *given: Any, **named: Any) -> Any:
        return make(_cpu(device_type), *given, **named)

    around(device_mesh, "init_device_mesh", init_device_mesh)
    # The name was imported there before the change.
    distributed = vars(sys.modules["torch.distributed"])
    distributed["init_device_mesh"] = device_mesh.init_device_mesh


def small_ray(ray: Any) -> None:
    """Have `ray.init` start no dashboard: on few cores its agent is too late, and Ray dies."""
    around(
        ray, "init", lambda begin, *a, **named: begin(*a, **{"include_dashboard": False, **named})
    )
