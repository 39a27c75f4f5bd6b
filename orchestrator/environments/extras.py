"""Missing parts of this installation: which extra of orch brings a module, and how to install
it."""

import json
import shlex
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from typing import Any
from urllib.parse import unquote, urlsplit

DISTRIBUTION = "orch-rl"
EXTRAS = {
    "run": ("rich", "scipy", "submitit", "mlflow", "jinja2", "vl_convert"),
    "micro": ("torch", "transformers", "safetensors"),
    "eval": ("lm_eval", "math_verify"),
    "tune": ("optuna",),
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


def lacking() -> str | None:
    """Return one sentence for the modules of RUN that are not installed, with one line that
    installs all of them. Return None if none is missing."""
    left_out = {name: extra_of(name) for name in RUN if find_spec(name) is None}
    if not left_out:
        return None
    extras = ",".join(dict.fromkeys(filter(None, left_out.values())))
    return (
        f"`orch run` needs {', '.join(left_out)}, which this installation of orch leaves out; add "
        f"it with: {install_line(extras)}"
    )


def _target(extra: str) -> str:
    """Return pip's argument: the name, or the wheel, folder or repository from which orch was
    installed."""
    source = origin()
    url = str(source.get("url", ""))
    if source.get("dir_info", {}).get("editable"):
        return f"-e {shlex.quote(f'{unquote(urlsplit(url).path)}[{extra}]')}"
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
