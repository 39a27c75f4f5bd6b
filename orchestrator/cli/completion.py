"""Candidates for the word at the cursor, for click's shell completion."""

from collections.abc import Iterable
from pathlib import Path

import click
from click.shell_completion import CompletionItem

from orchestrator.spec.compose import GROUPS, group_names
from orchestrator.spec.fields import FIELDS
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


def cells(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the ids and names of cells that were launched here, and specs."""
    folder = Path(ctx.params.get("runs_dir") or "runs")
    names = [path.name.rpartition("-") for path in sorted(folder.glob("*/cells/*"))]
    words = [word for slug, _, digest in names for word in (slug, digest)]
    spec_files = specs(ctx, param, incomplete) if param.nargs == -1 else []
    return [*_items(words, incomplete), *spec_files]
