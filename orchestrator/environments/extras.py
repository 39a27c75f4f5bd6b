"""Missing parts of this installation: which extra of orch brings a module, and how to install
it."""

import json
import shlex
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from typing import Any
from urllib.parse import unquote, urlsplit

DISTRIBUTION = "orch-rl"
EXTRAS = {
    "run": ("rich", "scipy", "submitit", "mlflow", "jinja2", "vl_convert"),
    "micro": ("torch", "transformers", "safetensors"),
    "eval": ("lm_eval", "math_verify"),
    "tune": ("optuna", "optuna_dashboard"),
    "data": ("datasets", "reasoning_gym"),
}
"""Extra of orch -> the modules that it brings, as pyproject.toml declares them."""


def extra_of(module: str) -> str | None:
    """Return the extra of orch that brings a module, or None if no extra does."""
    name = module.partition(".")[0]
    return next((extra for extra, modules in EXTRAS.items() if name in modules), None)


def install_line(extra: str) -> str:
    """Return the shell command that adds an extra to this installation, from the same source."""
    return f"pip install {_target(extra)}"


def missing(module: str) -> str | None:
    """Return the sentence for a module that is not installed, or None if no extra brings it."""
    extra = extra_of(module)
    if extra is None:
        return None
    return (
        f"this needs {module.partition('.')[0]}, which this installation of orch leaves out; "
        f"add it with: {install_line(extra)}"
    )


RUN = ("scipy", "mlflow", "vl_convert", "rich", "torch", "transformers", "lm_eval")
"""Modules that a whole run on this machine imports: training, evaluation, MLflow, report."""


def lacking(modules: Iterable[str] = RUN) -> str | None:
    """Return one sentence for the modules that are not installed, with one line that installs all
    of them. Return None if none is missing or no extra brings it."""
    left_out = {name: extra_of(name) for name in modules if find_spec(name) is None}
    extras = dict.fromkeys(extra for extra in left_out.values() if extra is not None)
    if not extras:
        return None
    names = ", ".join(name for name, extra in left_out.items() if extra is not None)
    return (
        f"`orch run` needs {names}, which this installation of orch leaves out; add it with: "
        f"{install_line(','.join(extras))}"
    )


def _target(extra: str) -> str:
    """Return pip's argument: the name, or the wheel, folder or repository from which orch was
    installed."""
    source = origin()
    url = str(source.get("url", ""))
    folder = source.get("dir_info")
    if folder is not None:
        path = shlex.quote(f"{unquote(urlsplit(url).path)}[{extra}]")
        return f"-e {path}" if folder.get("editable") else path
    if "vcs_info" in source:
        vcs = source["vcs_info"]
        url = f"{vcs['vcs']}+{url}@{vcs['commit_id']}"
    return shlex.quote(f"{DISTRIBUTION}[{extra}] @ {url}" if url else f"{DISTRIBUTION}[{extra}]")


def origin() -> dict[str, Any]:
    """Return where pip installed orch from (PEP 610), or {} for a package index."""
    try:
        text = distribution(DISTRIBUTION).read_text("direct_url.json")
    except PackageNotFoundError:
        return {}
    written: dict[str, Any] = json.loads(text) if text else {}
    return written
