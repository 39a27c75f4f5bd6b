"""Call a library's own functions. Runs under any Python with torch; orch never imports it.

    python runner.py PROBES VERSION [FOLDER] < asked.json

PROBES is a backend's probes.py; FOLDER holds the library's package (default: where this Python
finds it). The protocol is in protocol.py. The library is not imported: single definitions run from
its installed source files. Imports that torch arithmetic does not need (Ray, vLLM, DeepSpeed, ...)
are stand-ins.
"""

import __future__

import ast
import contextlib
import hashlib
import importlib
import importlib.util
import json
import sys
import types
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

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
        for name in only or ():
            self.uses(file, name)
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

    def uses(self, file: str, name: str) -> None:
        """Record a definition in `used`."""
        if f"{file}:{name}" in self.used:
            return
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


def answers(
    probes: Any, sources: Sources, version: str, inquiry: Mapping[str, Any]
) -> Iterator[Any]:
    """Yield one answer for each question, in order. An exception of the library is an answer."""
    import torch

    own_float = torch.Tensor.float
    library = probes.open_library(sources, version)
    read: dict[int, Any] = {}
    batches = {
        name: {key: _tensor(key, value) for key, value in batch.items()}
        for name, batch in inquiry["batches"].items()
    }
    # Libraries call .float() in some places. In double precision that must not round. This process
    # asks functions and ends: no training sees it.
    setattr(torch.Tensor, "float", lambda self: self.double())  # noqa: B010  (mypy: no method is assigned to)
    torch.set_default_dtype(torch.float64)
    for each in inquiry["questions"]:
        batch = dict(batches[each["batch"]])
        try:
            at = each["launch"]
            if at not in read:
                launch = inquiry["launches"][at]
                read[at] = library.read(launch["argv"], launch["files"])
            reply = _answer(library, each, read[at], batch)
            reply = {key: reply[key] for key in each.get("only", reply)}
        except Exception as error:  # the library's own: report it as the answer
            reply = {"error": f"{type(error).__name__}: {error}".strip().rstrip(":")}
        yield reply
    setattr(torch.Tensor, "float", own_float)  # noqa: B010  (mypy: no method is assigned to)


def _answer(library: Any, each: Mapping[str, Any], config: Any, batch: dict[str, Any]) -> Any:
    import torch

    what = each["ask"]
    if what == "kl":
        logp = batch["logp"].clone().requires_grad_()
        value = library.kl(config, each["place"], {**batch, "logp": logp})
        slope = _gradient(value.sum(), logp)
        return {"value": value.tolist(), "slope": slope.tolist()}
    if what == "functions":
        return {"functions": dict(_functions(library, batch))}
    if what == "controller":
        return {"beta": float(library.controlled(config, batch))}
    if what == "reference":
        return {"reference": library.moved_reference(config)}
    reply: dict[str, Any] = {}
    if what in ("advantages", "update"):
        with torch.no_grad():
            rewards, advantages = library.advantages(config, batch)
        reply = {"rewards": rewards.tolist(), "advantages": advantages.tolist()}
        batch = {**batch, "advantages": advantages}
    if what in ("loss", "update"):
        logp = batch["logp"].clone().requires_grad_()
        value = library.loss(config, {**batch, "logp": logp})
        reply |= {"loss": value.item(), "gradient": _gradient(value, logp).tolist()}
    return reply


def _functions(library: Any, batch: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the name of each function, and its value and gradient in logp, or its exception.

    A function is in the library's `file`, or in the file that is named with it, `FILE:NAME`.
    """
    import torch

    logp = batch["logp"].clone().requires_grad_()
    for name, defined, call in library.functions({**batch, "logp": logp}):
        torch.manual_seed(0)  # some losses choose tokens at random
        try:
            value = call()
        except Exception as error:  # the library's own: report it as the answer
            yield name, {"error": f"{type(error).__name__}: {error}".strip().rstrip(":")}
            continue
        file, _, name_there = defined.rpartition(":")
        library.sources.uses(file or library.file, name_there)
        reply = {"function": name_there, "value": value.tolist()}
        if value.requires_grad:
            reply["gradient"] = _gradient(value.sum(), logp).tolist()
        yield name, reply


def _gradient(value: Any, logp: Any) -> Any:
    """Return d value / d logp, [N, T]; zero where the value does not depend on logp."""
    import torch

    if not value.requires_grad:
        return torch.zeros_like(logp)
    (gradient,) = torch.autograd.grad(value, logp, allow_unused=True)
    return torch.zeros_like(logp) if gradient is None else gradient


def _tensor(key: str, value: Any) -> Any:
    import torch

    if key == "groups":
        return list(value)
    return torch.tensor(value, dtype=torch.float64)


def main() -> None:
    """Read questions on stdin and write answers on stdout. Prints of libraries go to stderr."""
    import torch

    torch.set_num_threads(1)
    file, version, *folder = sys.argv[1:]
    probes = _module(Path(file))
    sources = Sources(Path(folder[0]) if folder else _installed(probes.PACKAGE))
    inquiry = json.load(sys.stdin)
    with contextlib.redirect_stdout(sys.stderr):
        replies = list(answers(probes, sources, version, inquiry))
    result = {"answers": replies, "sources": sources.used}
    sys.stdout.write(json.dumps(result) + "\n")


def _module(file: Path) -> types.ModuleType:
    """Return a backend's file as a module that can import the files beside it."""
    package = types.ModuleType("_lab")
    package.__path__ = [str(file.parent)]
    sys.modules[package.__name__] = package
    return importlib.import_module(f"{package.__name__}.{file.stem}")


def _installed(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        sys.exit(f"{package} is not installed for {sys.executable}, and no folder was given")
    return Path(spec.submodule_search_locations[0])


if __name__ == "__main__":
    main()
