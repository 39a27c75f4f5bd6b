"""Asking a library's own functions what they compute: one process of its Python, many questions.

The protocol (JSON; inside.py answers it with a backend's probes.py):

asked
    launches   [{"argv": [...], "files": {name: text}}]: launches as `translate` makes them. What is
               measured is what a launch asks for: names and defaults are the library's own.
    batches    {name: Batch}
    questions  [{"ask", "launch": index, "batch": name, "dtype": "float64" | "float32",
               "more": arrays that replace the batch's, "place": only for kl,
               "only": the parts of the answer that are wanted}]
answers, one a question, in order
    kl          {"value": [N, T], "slope": [N, T] = d sum(value) / d logp}, with "place" `reward` or
                `loss`: the function and the estimator that the launch uses there. No mask applied.
    advantages  {"rewards": [N, T], "advantages": [N, T]}: rewards of tokens after a KL in the
                reward was taken off (as the library keeps them), and what comes of them. The KL is
                of `old`.
    loss        {"loss": number, "gradient": [N, T] = d loss / d logp}: policy loss, and a KL in the
                loss, of the batch as one micro-batch on one device.
    update      all of advantages, then all of loss, with those advantages. The rewards' KL is of
                `old`, the loss's of `logp`.
    any         {"error": "Kind: sentence"}: what the library raised.
"""

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

from orchestrator.errors import EnvironmentFault

Rows = Sequence[Sequence[float]]


class Batch(TypedDict, total=False):
    """Arrays of N rollouts of at most T tokens; [N, T] unless said."""

    logp: Rows
    """log pi of the policy being trained, of the sampled tokens."""
    ref: Rows
    """log pi of the reference policy."""
    old: Rows
    """log pi of the rollout policy, as the trainer has it: constant."""
    mask: Rows
    """1 for tokens of the response, 0 for padding at the end."""
    rewards: Sequence[float]
    """[N] the task's reward of each response."""
    groups: Sequence[int]
    """[N] which prompt a rollout answers; the rollouts of a group stand together."""
    advantages: Rows
    """Only for `loss`."""


class Question(TypedDict, total=False):
    """One question; see the protocol above."""

    ask: str
    launch: int
    batch: str
    dtype: str
    more: Mapping[str, Any]
    place: str
    only: Sequence[str]


class Launch(TypedDict):
    """What starts a library: its arguments and the files beside them."""

    argv: Sequence[str]
    files: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Answers:
    """What a library said, and which of its definitions said it."""

    answers: Sequence[Mapping[str, Any]]
    sources: Mapping[str, Mapping[str, Any]]
    """`file:definition` -> line, sha256 of its text."""
    torch: str


@dataclass(frozen=True, slots=True)
class Where:
    """Where a library's code is run: a Python that has torch, and the folder of the package
    (None: where that Python finds it)."""

    python: Path
    folder: Path | None = None


def ask(
    library: str,
    version: str,
    where: Where,
    *,
    launches: Sequence[Launch],
    batches: Mapping[str, Batch],
    questions: Sequence[Question],
) -> Answers:
    """Ask a library's own functions. Raises EnvironmentFault if it cannot be run there."""
    from orchestrator.registry import probes_file

    asked = {"launches": launches, "batches": batches, "questions": questions}
    folder = [str(where.folder)] if where.folder else []
    inside = Path(__file__).with_name("inside.py")
    done = subprocess.run(
        [str(where.python), str(inside), str(probes_file(library)), version, *folder],
        input=json.dumps(asked), capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise EnvironmentFault(
            f"{library} {version} cannot be asked with {where.python}: it needs torch and NumPy, "
            f"and the library's installed source. It said: {done.stderr.strip()[-600:]}"
        )
    told = json.loads(done.stdout)
    return Answers(told["answers"], told["sources"], told["torch"])
