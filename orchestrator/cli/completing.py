"""Candidates for the word at the cursor, for click's shell completion.

A mistake in the words before it completes nothing: a shell's line is no place for error messages.
"""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import get_args

import click
from click.shell_completion import CompletionItem, split_arg_string

from orchestrator.errors import OrchError
from orchestrator.records import State
from orchestrator.runs.experiment import open_experiment
from orchestrator.spec.compose import GROUPS, group_names
from orchestrator.spec.fields import FIELDS, LABELS
from orchestrator.spec.select import OF_A_CELL, values_of
from orchestrator.spec.sentences import choices
from orchestrator.spec.shipped import shipped_folder, shipped_names

_SITE = ("site.runs_dir", "site.workers", "site.kind")


def _items(words: Iterable[str], incomplete: str) -> list[CompletionItem]:
    unique = dict.fromkeys(word for word in words if word.startswith(incomplete))
    return [CompletionItem(word) for word in unique]


def specs(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return shipped specs and the spec files and folders below what is typed."""
    typed = Path(incomplete + "*")
    below = sorted(typed.parent.glob(typed.name)) if typed.name != "**" else []
    files = [
        f"{path}/" if path.is_dir() else str(path)
        for path in below
        if path.is_dir() or path.suffix in (".yaml", ".yml")
    ]
    return _items([*files, *shipped_names()], incomplete)


def overrides(
    _ctx: click.Context, _param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Return config groups and their entries, fields of a base and their words, of the site."""
    entries = {group: group_names(shipped_folder(), group) for group in sorted(GROUPS)}
    key, equals, _ = incomplete.partition("=")
    if not equals:
        keys = [*entries, "seeds", *_SITE, *(f"base.{name}" for name in FIELDS)]
        return _items([f"{name}=" for name in keys], incomplete)
    field = FIELDS.get(key.removeprefix("base."))
    words = entries.get(key) or (choices(field.annotation) if field else ())
    return _items([f"{key}={word}" for word in words], incomplete)


def terms(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return fields of `--where`; after `FIELD=`, the values that the spec's cells have of it."""
    field, equals, _ = incomplete.partition("=")
    if not equals:
        mark = "!" if field.startswith("!") else ""
        return _items([f"{mark}{name}=" for name in (*OF_A_CELL, *LABELS, *FIELDS)], incomplete)
    name = field.removeprefix("!")
    if name == "state":
        return _items([f"{field}={state}" for state in get_args(State)], incomplete)
    spec = ctx.params.get("spec") or _typed_spec()
    try:
        experiment = open_experiment(spec, ctx.params.get("overrides") or ())
    except OrchError:
        return []
    words = {value for cell in experiment.cells for value in values_of(name, cell)}
    return _items([f"{field}={word}" for word in sorted(words)], incomplete)


def _typed_spec() -> str:
    """Return the first argument of the command: click gives up reading at an option's end."""
    words = split_arg_string(os.environ.get("COMP_WORDS", ""))[2:]
    return next((word for word in words if not word.startswith("-")), "")


def cells(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return cells by id and slug: those launched here, or of the spec that is typed before."""
    typed = ctx.params.get(param.name or "") or ()
    if isinstance(typed, tuple) and typed:
        try:
            candidates = open_experiment(typed[0], typed[2:]).cells
        except OrchError:
            return []
        return _items([word for cell in candidates for word in (cell.slug, cell.id)], incomplete)
    folder = Path(ctx.params.get("runs_dir") or "runs")
    names = [path.name.rpartition("-") for path in sorted(folder.glob("*/cells/*"))]
    words = [word for slug, _, digest in names for word in (slug, digest)]
    spec_files = specs(ctx, param, incomplete) if param.nargs == -1 else []
    return [*_items(words, incomplete), *spec_files]
