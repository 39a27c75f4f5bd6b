"""The parts that all commands share: exit codes, flags, and the line `Next:`.

LazyGroup passes each command through `with_conventions` when it is first called.
"""

import itertools
import re
import shlex
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from orchestrator.pipeline import messages

EXIT_CODES = {
    0: "done; nothing is wrong, and nothing is left to do",
    1: "a fault: of the spec, the data, a cell, a launch script, the machine",
    2: "usage: no such command, option or argument",
    3: "plan --exit-code: orch run would train",
    130: "interrupted by Ctrl-C",
}
"""The only exit codes of every command, and what each means."""

WOULD_CHANGE = 3

NEXT: dict[str, dict[int, str]] = {
    "plan": {0: "orch run {spec}"},
    "run": {0: "orch dashboard {spec}", 1: "orch logs --failed {spec}"},
    "status": {0: "orch compare {spec}"},
    "logs": {0: "orch show CELL"},
    "cancel": {0: "orch retry {spec}"},
    "retry": {0: "orch run {spec}"},
    "prune": {0: "orch status {spec}"},
    "show": {0: "orch explain --all"},
    "eval": {0: "orch compare {spec}", 1: "orch logs --failed {spec}"},
    "compare": {0: "orch report {spec}"},
    "report": {0: "orch dashboard {spec}"},
    "tune": {0: "orch report {spec}"},
    "audit": {0: "orch explain --all"},
    "explain": {0: "orch audit YOUR_SCRIPT.sh"},
    "diagnose": {0: "orch audit YOUR_SCRIPT.sh"},
    "doctor": {0: "orch plan {spec}"},
    "env create": {0: "orch env check {release}"},
    "env list": {0: "orch env create LIBRARY@VERSION"},
    "env check": {0: "orch run SPEC", 1: "orch env create {release} --again"},
    "env lock": {0: "orch env create {release}"},
    "data prepare": {0: "orch plan SPEC"},
}
"""Command -> exit code -> the next step for a person, unless the command sets another by
`set_next`."""

_KEY = "orch.next"
_SHOWS_DATA = ("as_json", "hook", "part")
_FORMATS = ("json", "md", "csv", "parquet")


def set_next(text: str) -> None:
    """Replace the text of this command's line `Next:`; an empty text removes the line."""
    click.get_current_context().meta[_KEY] = text


def _options(command: click.Command) -> list[click.Option]:
    """Return the common options of a command: none that it defines itself."""
    quiet = click.Option(
        ["-q", "--quiet"],
        is_flag=True,
        expose_value=False,
        callback=lambda _ctx, _param, value: messages.set_quiet(value),
        help="Print only results and errors, no messages.",
    )
    verbose = click.Option(
        ["-v", "--verbose"],
        is_flag=True,
        expose_value=False,
        callback=lambda _ctx, _param, value: messages.set_verbose(value),
        help="Print also the time used, and the cause of an error.",
    )
    runs = click.Option(
        ["--runs-dir"],
        type=click.Path(path_type=Path, file_okay=False),
        envvar="ORCH_RUNS_DIR",
        help="The folder of the experiments; short for site.runs_dir=FOLDER.",
    )
    taken = {param.name for param in command.params}
    of_spec = [runs] if {"spec", "overrides"} <= taken else []
    return [each for each in (quiet, verbose, *of_spec) if each.name not in taken]


def with_conventions(name: str, command: click.Command) -> click.Command:
    """Return the command with the common options and a line `Next:` after it. Do it once."""
    if isinstance(command, click.Group):
        for part, each in command.commands.items():
            with_conventions(f"{name} {part}", each)
        return command
    command.name = name.rpartition(" ")[2]
    inner = command.callback
    if inner is None or getattr(inner, "with_conventions", False):
        return command
    added = _options(command)
    command.params += added
    command.callback = _with_next(name, inner, any(each.name == "runs_dir" for each in added))
    return command


def _with_next(name: str, inner: Callable[..., Any], redirected: bool) -> Callable[..., Any]:
    def callback(**options: Any) -> int:
        began = time.perf_counter(), time.process_time()
        folder = options.pop("runs_dir") if redirected else None
        context = click.get_current_context()
        own = context.get_parameter_source("runs_dir")
        if not redirected and options.get("spec") and own not in (None, ParameterSource.DEFAULT):
            folder = options["runs_dir"]
        typed = options
        if folder is not None:
            typed = {**options}
            options["overrides"] = (*options["overrides"], in_folder(folder))
        code = inner(**options) or 0
        text = context.meta.get(_KEY, NEXT.get(name, {}).get(code, ""))
        if options.get("dry_run"):
            text = context.meta.get(_KEY, "" if code else f"orch {name} {{spec}}")
        shows_data = any(options.get(key) for key in _SHOWS_DATA) or any(
            options.get(key) in _FORMATS for key in ("output", "kind", "form")
        )
        if text and not shows_data:
            named = ("--runs-dir", str(folder)) if own is ParameterSource.COMMANDLINE else ()
            messages.say(f"Next: {text.format_map(_Words(typed, named if folder else ()))}")
        if messages.is_verbose():
            wall, cpu = time.perf_counter() - began[0], time.process_time() - began[1]
            messages.say(f"orch {name}: {wall:.1f} s, {cpu:.1f} CPU s")
        return code

    vars(callback)["with_conventions"] = True
    callback.__doc__ = inner.__doc__
    return callback


class _Words(dict[str, Any]):
    """A command's own arguments, as they are typed; the word in capitals where one is not given."""

    def __init__(self, options: dict[str, Any], folder: Sequence[str] = ()) -> None:
        words = dict(options)
        if options.get("spec"):
            chosen = itertools.chain.from_iterable(
                ("-w", term) for term in options.get("where", ())
            )
            words["spec"] = shlex.join(
                [str(options["spec"]), *options.get("overrides", ()), *folder, *chosen]
            )
        for name in ("paths", "target"):
            if isinstance(options.get(name), tuple):
                words[name] = shlex.join(map(str, options[name]))
        super().__init__({key: value for key, value in words.items() if value})

    def __missing__(self, key: str) -> str:
        return key.upper()


def in_folder(folder: Path) -> str:
    """Return the override of the runs folder, quoted where Hydra's grammar asks for it."""
    text = str(folder)
    if re.fullmatch(r"[\w.-]*/[\w./-]*", text, re.ASCII):
        return f"site.runs_dir={text}"
    return "site.runs_dir='" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
