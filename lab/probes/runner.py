"""Call a library's own functions, in a process that does nothing else (protocol.py).

The library is not imported: single definitions run from its source files. Imports that torch
arithmetic does not need (Ray, vLLM, DeepSpeed, ...) are stand-ins.
"""

import __future__

import ast
import contextlib
import hashlib
import sys
import types
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from orchestrator.errors import EnvironmentFault

KNOWN = frozenset(sys.stdlib_module_names) | {"torch", "numpy"}
"""Packages whose imports in a library's file are real; all others are stand-ins."""


class _Kind(type):
    """The type of a class that has every attribute and every subscript."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return StandIn

    def __getitem__(cls, _: object) -> Any:
        return cls


class StandIn(metaclass=_Kind):
    """A module, class, function or decorator that the arithmetic does not need."""

    def __new__(cls, *arguments: Any, **_: Any) -> Any:
        """Return a decorated function unchanged; a stand-in for anything else."""
        bare = len(arguments) == 1 and callable(arguments[0])
        return arguments[0] if bare else object.__new__(cls)  # a decorator without arguments

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return StandIn

    def __call__(self, *arguments: Any, **_: Any) -> Any:
        """Return a decorated function unchanged; a stand-in for anything else."""
        return arguments[0] if arguments and callable(arguments[0]) else StandIn()


class Sources:
    """A library's installed files, and the definitions of them that were run."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.used: dict[str, dict[str, Any]] = {}
        """`file:definition` -> its first line and the hash of its text."""
        self._lines: dict[str, list[bytes]] = {}
        self._trees: dict[str, ast.Module] = {}
        self._code: dict[tuple[object, ...], tuple[types.CodeType, list[str]]] = {}

    def load(
        self, file: str, only: Sequence[str] | None = None, *, as_main: bool = False, **within: Any
    ) -> types.ModuleType:
        """Return a module made of a file, or only of some definitions (`f`, `Class.method`).

        `within`: names for the module, in place of its imports and its own functions. Annotations
        are not evaluated. Raise LookupError if the file has no such definition.
        """
        module = types.ModuleType(Path(file).stem)
        sys.modules[f"_asked.{id(module)}"] = module
        module.__name__ = f"_asked.{id(module)}"  # dataclasses look up their module in sys.modules
        module.__dict__.update(within, **({"__name__": "__main__"} if as_main else {}))
        code, absent = self._compiled(file, tuple(only or ()), frozenset(within))
        module.__dict__.update((name, type(name, (StandIn,), {})) for name in absent)
        exec(code, module.__dict__)  # noqa: S102  (the installed library)
        self.uses(file, *(only or ()))
        return module

    def _compiled(
        self, file: str, only: tuple[str, ...], names: frozenset[str]
    ) -> tuple[types.CodeType, list[str]]:
        """Return the compiled definitions, and the names whose imports need a stand-in."""
        key = (file, only, names)
        if key not in self._code:
            tree = self._tree(file)
            body = [_find(tree, name, file) for name in only] if only else tree.body
            kept: list[ast.stmt] = []
            absent: list[str] = []
            for node in body:
                if isinstance(node, ast.Import | ast.ImportFrom):
                    kept += _real_imports(node, names, absent)
                elif getattr(node, "name", None) not in names:
                    kept.append(node)
            # Annotations name types of modules that are not installed here.
            flags = __future__.annotations.compiler_flag
            module = ast.Module(body=kept, type_ignores=[])
            self._code[key] = (
                compile(module, str(self.folder / file), "exec", flags=flags),
                absent,
            )
        return self._code[key]

    def _tree(self, file: str) -> ast.Module:
        if file not in self._trees:
            text = (self.folder / file).read_text(encoding="utf-8")
            self._lines[file] = text.encode().split(b"\n")
            self._trees[file] = ast.parse(text)
        return self._trees[file]

    def assigned(self, file: str, method: str, attribute: str, within: Mapping[str, Any]) -> Any:
        """Return the value of the expression in `self.attribute = ...` of a method."""
        for node in ast.walk(_find(self._tree(file), method, file)):
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == f"self.{attribute}":
                code = compile(ast.Expression(node.value), file, "eval")
                return eval(code, dict(within))  # noqa: S307  (the installed library)
        raise LookupError(f"{file}: {method} assigns no self.{attribute}")

    def uses(self, file: str, *names: str) -> None:
        """Record definitions in `used`."""
        for name in names:
            node = _find(self._tree(file), name, file)
            segment = _text_of(node, self._lines[file])
            digest = hashlib.sha256(segment.encode()).hexdigest()[:16]
            self.used[f"{file}:{name}"] = {"line": node.lineno, "sha256": digest}


def _text_of(node: Any, lines: list[bytes]) -> str:
    """Return the source of a definition; `ast.get_source_segment` takes a file apart each time."""
    text = lines[node.lineno - 1 : node.end_lineno]
    text[-1] = text[-1][: node.end_col_offset]
    text[0] = text[0][node.col_offset :]
    return b"\n".join(text).decode()


def _find(tree: ast.Module, name: str, file: str) -> Any:
    first, _, method = name.partition(".")
    kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    definition: Any = next((n for n in tree.body if isinstance(n, kinds) and n.name == first), None)
    if definition is not None and method:
        definition = next(
            (n for n in definition.body if isinstance(n, kinds) and n.name == method), None
        )
    if definition is None:
        raise LookupError(f"{file} has no {name}")
    return definition


def _real_imports(
    node: ast.Import | ast.ImportFrom, names: frozenset[str], absent: list[str]
) -> Iterator[ast.stmt]:
    """Yield the imports of KNOWN packages. Append other names to `absent`, except `names`."""
    module = node.module if isinstance(node, ast.ImportFrom) else None
    relative = isinstance(node, ast.ImportFrom) and node.level
    for alias in node.names:
        package = (module or alias.name).split(".")[0]
        bound = alias.asname or (alias.name if module or relative else package)
        if bound in names:
            continue
        if package in KNOWN and not relative:
            one = ast.ImportFrom(module, [alias], 0) if module else ast.Import([alias])
            yield ast.fix_missing_locations(ast.copy_location(one, node))
        else:
            absent.append(bound)


# The process that answers.


class LibraryFault(EnvironmentFault):
    """Raised for an exception of a library's own code; `said` is its kind and its sentence."""

    @property
    def said(self) -> str:
        """Return the exception in words."""
        return str(self.args[0])

    def __str__(self) -> str:
        return f"the library's own functions raised {self.said}"


class _Open(NamedTuple):
    """The library whose functions this process runs."""

    probes: Any
    sources: Sources
    read: dict[str, Any]
    """Launch -> what the library read of it."""


_OPEN: list[_Open] = []


def begin(module: str, version: str, folder: Path) -> str:
    """Open a library in this process, which asks functions and ends: no training sees its torch.

    Return a sentence if its functions cannot be run, else an empty one.
    """
    import torch

    torch.set_num_threads(1)
    sources = Sources(folder)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            probes = import_module(module).PROBES(sources, version)
    except Exception as error:
        return _said(error)
    # Libraries call .float() in some places. In double precision that must not round.
    setattr(torch.Tensor, "float", lambda self: self.double())  # noqa: B010  (mypy: no method is assigned to)
    torch.set_default_dtype(torch.float64)
    _OPEN.append(_Open(probes, sources, {}))
    return ""


def answer(
    what: str,
    argv: Sequence[str],
    files: Mapping[str, str],
    batch: Mapping[str, Any],
    place: str,
) -> dict[str, Any]:
    """Return the answer to a question. Prints of the library go to stderr."""
    import torch

    (library,) = _OPEN
    tensors = {
        name: value if name == "groups" else torch.tensor(value, dtype=torch.float64)
        for name, value in batch.items()
    }
    launch = repr((argv, files))
    try:
        with contextlib.redirect_stdout(sys.stderr):
            if launch not in library.read:
                library.read[launch] = library.probes.read(argv, files)
            return _answer(library.probes, what, library.read[launch], tensors, place)
    except Exception as error:
        raise LibraryFault(_said(error)) from None


def used() -> dict[str, dict[str, Any]]:
    """Return the definitions that this process ran."""
    (library,) = _OPEN
    return library.sources.used


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".strip().rstrip(":")


def _answer(
    library: Any, what: str, config: Any, batch: dict[str, Any], place: str
) -> dict[str, Any]:
    import torch

    if what == "controller":
        return {"beta": float(library.controlled(config, batch))}
    if what == "reference":
        return {"reference": library.moved_reference(config)}
    reply: dict[str, Any] = {}
    if what in ("advantages", "update"):
        with torch.no_grad():
            rewards, advantages = library.advantages(config, batch)
        reply = {"rewards": rewards.numpy(), "advantages": advantages.numpy()}
        batch = {**batch, "advantages": advantages}
    logp = batch["logp"].clone().requires_grad_()
    batch = {**batch, "logp": logp}
    if what == "kl":
        value = library.kl(config, place, batch)
        reply = {"value": value.detach().numpy(), "slope": _gradient(value.sum(), logp)}
    elif what in ("loss", "update"):
        value = library.loss(config, batch)
        reply |= {"loss": value.item(), "gradient": _gradient(value, logp)}
    return reply


def _gradient(value: Any, logp: Any) -> Any:
    """Return d value / d logp, [N, T]; zero where the value does not depend on logp."""
    import torch

    gradient = None
    if value.requires_grad:
        (gradient,) = torch.autograd.grad(value, logp, allow_unused=True)
    return (torch.zeros_like(logp) if gradient is None else gradient).detach().numpy()
