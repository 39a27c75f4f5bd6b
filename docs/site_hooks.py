"""What mkdocs builds out of the product: the front page and the reference."""

import inspect
import re
from pathlib import Path
from typing import Any

import click
from mkdocs.structure.files import File, Files

import orch
from orchestrator.cli import COMMANDS
from orchestrator.cli import orch as group
from orchestrator.cli.conventions import EXIT_CODES
from orchestrator.spec.fields import FIELDS, SpecFile, StudyFile
from orchestrator.spec.schema import about, described
from orchestrator.spec.sentences import choices

DOCS = Path(__file__).resolve().parent


def on_files(files: Files, config: Any) -> Files:
    """Add the front page, which is the README, and the pages of the reference."""
    pages = {
        "index.md": front_page,
        "reference/spec.md": spec_page,
        "reference/cli.md": command_page,
        "reference/api.md": python_page,
    }
    for name, content in pages.items():
        files.append(File.generated(config, name, content=content()))
    return files


def front_page() -> str:
    """Return the README with its links as seen from this folder."""
    text = (DOCS.parent / "README.md").read_text(encoding="utf-8")
    return re.sub(r"\]\((?!https?:)(docs/)?", lambda m: "](" if m[1] else "](../", text)


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Name files outside the site."""
    folder = DOCS / Path(page.file.src_uri).parent

    def named(match: re.Match[str]) -> str:
        target = (folder / match[2].partition("#")[0]).resolve()
        if "://" in match[2] or target.is_relative_to(DOCS):
            return match[0]
        return f"{match[1]} (`{target.relative_to(DOCS.parent)}`)"

    return re.sub(r"(?<!!)\[([^\]]+)\]\(([^)]+)\)", named, markdown)


def command_page() -> str:
    """Return the page of the commands."""
    return (
        "# Commands\n\nEvery command ends with one of these codes:\n\n| code | means |\n|---|---|\n"
        f"{exit_rows()}\n\n{command_entries()}\n"
    )


def python_page() -> str:
    """Return the page of `import orch`."""
    own = "show_root_heading: false\n      show_source: false\n      members_order: source"
    options = f"    options:\n      {own}\n      heading_level: 2\n"
    return f"# Python\n\n::: orch\n{options}\n## What they return\n\n{type_entries()}\n"


def exit_rows() -> str:
    """Return a row of each exit code."""
    return "\n".join(f"| {code} | {meaning} |" for code, meaning in EXIT_CODES.items())


def command_entries() -> str:
    """Return what `--help` says of each command."""
    lines = []
    for name in COMMANDS:
        command = group.get_command(None, name)
        assert command is not None, name
        parts = getattr(command, "commands", {})
        for each in [f"{name} {part}" for part in parts] if parts else [name]:
            one = parts[each.split()[1]] if parts else command
            context = click.Context(one, info_name=f"orch {each}", max_content_width=88)
            lines += [f"## orch {each}", "", "```text", one.get_help(context), "```", ""]
    return "\n".join(lines)


def type_entries() -> str:
    """Return what the functions of `orch` return: each class, its fields, what one asks of it."""
    lines = []
    for name in orch.__all__:
        promised = getattr(orch, name)
        if not inspect.isclass(promised):
            continue
        lines += [f"### `{name}`", "", inspect.cleandoc(promised.__doc__ or ""), ""]
        fields = {} if issubclass(promised, Exception) else inspect.get_annotations(promised)
        lines += [f"- `{field}`: `{_cell(str(kind))}`" for field, kind in fields.items()]
        for member, value in vars(promised).items():
            text = inspect.getdoc(value.fget if isinstance(value, property) else value)
            own = not member.startswith(("_", "model_")) and member not in fields
            if own and text and (callable(value) or isinstance(value, property)):
                lines.append(f"- `{member}`: {_cell(text)}")
        lines.append("")
    return "\n".join(lines)


def spec_page() -> str:
    """Return the reference of spec files: each field, what it is, its words and its default."""
    lines = [
        "# Spec files",
        "",
        "`orch init --schema` prints the same for editors.",
        "",
    ]
    for title, model in (("A spec", SpecFile), ("A study", StudyFile)):
        lines += [f"## {title}", "", "| field | what it is |", "|---|---|"]
        lines += [f"| `{name}` | {_cell(described(model, name))} |" for name in model.model_fields]
        lines.append("")
    lines += ["## A cell", "", "Below `base`, in `axes`, in filters and as columns of results.", ""]
    lines += ["| field | what it is | values | default |", "|---|---|---|---|"]
    for name, field in FIELDS.items():
        if field.section is None:
            words = ", ".join(f"`{word}`" for word in choices(field.annotation))
            default = "" if field.default is None else f"`{field.default}`"
            lines.append(f"| `{name}` | {_cell(about(name))} | {words} | {default} |")
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
