"""Ask a library's own functions, in a process of their own.

`runner.py` answers there, with the library's `probes.py`, from a launch and a batch. The launch is
one as `translate` makes it. It decides which functions run: names and defaults are the library's
own. The answers hold plain numbers and NumPy arrays:

kl          {"value": [N, T], "slope": [N, T] = d sum(value) / d logp}, with the place `reward` or
            `loss`: the function and the estimator that the launch uses there. No mask applied.
advantages  {"rewards": [N, T], "advantages": [N, T]}: rewards of tokens after a KL in the reward
            was subtracted (as the library keeps them), and the advantages that follow. The KL is of
            `old`.
loss        {"loss": number, "gradient": [N, T] = d loss / d logp}: policy loss, and a KL in the
            loss, of the batch as one micro-batch on one device.
update      `advantages`, then `loss` with those advantages. The KL in the reward is of `old`, that
            in the loss of `logp`.
controller  {"beta": number}: beta after the trainer's step with the batch, by its controller.
reference   {"reference": [4]}: a weight of the reference policy after each of four train steps; it
            begins at 0, and the policy's stays 1.
"""

import contextlib
import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import wraps
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any, NamedTuple, Protocol

import numpy as np

from lab.libraries import part
from lab.probes import runner
from orchestrator.environments.lock import find_installed, lock_of
from orchestrator.errors import EnvironmentFault
from orchestrator.evidence.cells import libraries
from orchestrator.exact.laboratory import FloatTable, LabSetting, Sequences, tables

Answer = Mapping[str, Any]
AnsweredSources = Mapping[str, Mapping[str, Any]]
"""Of the library's source, `file:definition` -> its line and the sha256 of its text."""
Bounds = tuple[float | None, float | None]
"""The lower and the upper bound of a launch's correction; None: it has none."""
LEAST, MOST = 0.5, 3.0
"""Bounds of the ratio in the corrections that are measured. 1 / MOST is not LEAST: a library that
bounds the inverse ratio is seen."""


class ProbeBatch(NamedTuple):
    """N rollouts of at most T tokens. An array is [N, T] unless its text has a shape."""

    logp: FloatTable
    """log pi of the sampled tokens, by the policy being trained."""
    ref: FloatTable
    """log pi of the sampled tokens, by the reference policy."""
    old: FloatTable
    """log pi of the sampled tokens, by the rollout policy, as the trainer has it. Constant."""
    mask: FloatTable
    """1 for tokens of the response, 0 for padding at the end."""
    rewards: FloatTable
    """[N]: the task's reward of each response."""
    groups: Sequence[int]
    """[N]: the number of each rollout's prompt. Rollouts of one prompt are consecutive."""
    advantages: FloatTable | None = None
    """Only for the question `loss`."""
    engine: FloatTable | None = None
    """log pi of the sampled tokens, by the engine that sampled them; without it `old`."""


class ProbeLaunch(Protocol):
    """The input that starts a library: its arguments and the files beside them."""

    @property
    def argv(self) -> Sequence[str]:
        """The program and its arguments."""

    @property
    def files(self) -> Mapping[str, str]:
        """Name -> text."""


class OwnLaunch(NamedTuple):
    """A launch in a library's own words."""

    argv: Sequence[str]
    files: Mapping[str, str] = MappingProxyType({})
    bounds: Bounds = (None, None)
    """Of its correction of the engine's mismatch."""
    estimator: str | None = None
    """That of the KL in the loss; None: the launch has none, or one that is not compared."""
    is_silent: bool = False
    """True: the launch says nothing about a correction."""


class NativeTerm(NamedTuple):
    """A KL term that no cell is translated into."""

    launch: OwnLaunch
    """With groups of two rollouts."""
    of_four: OwnLaunch
    """The same with groups of four."""
    beta: float
    sums_a_response: bool = False
    """True if the loss sums a response's tokens; False if it is a mean over tokens."""


def probes_of(library: str) -> ModuleType:
    """Return the module that runs a library's functions, and states facts about the library.

    Raise EnvironmentFault if the backend has none, as the embedded trainer has none.
    """
    module = part(library, "probes")
    if module is None:
        raise EnvironmentFault(
            f"backend '{library}' has no library whose functions could be asked (there are: "
            f"{', '.join(libraries())})"
        )
    return module


class AskedRelease:
    """A release whose functions answer, until `close`. Raise EnvironmentFault if they cannot.

    folder: of the library's package.
    """

    def __init__(self, library: str, version: str, folder: Path) -> None:
        self.library, self.version = library, version
        context = get_context("forkserver")
        context.set_forkserver_preload(["torch"])  # importing it takes most of a process's time
        self._process = ProcessPoolExecutor(1, context)
        module = probes_of(library).__name__
        begun = self._process.submit(runner.begin, module, version, folder)
        if fault := begun.result():
            self.close()
            raise EnvironmentFault(f"{library} {version} cannot be asked, in {folder}: {fault}")

    def ask(self, what: str, launch: ProbeLaunch, batch: ProbeBatch, place: str = "") -> Answer:
        """Return the answer to a question. Raise LibraryFault if the library raises an exception.

        place: of `kl`, the place of the estimator.
        """
        given = {name: value for name, value in batch._asdict().items() if value is not None}
        question = (what, tuple(launch.argv), dict(launch.files), given, place)
        answer: Answer = self._process.submit(runner.answer, *question).result()
        return answer

    def sources(self) -> AnsweredSources:
        """Return the definitions that were run."""
        used: AnsweredSources = self._process.submit(runner.used).result()
        return used

    def close(self) -> None:
        """End the process."""
        self._process.shutdown()


_Measuring = Callable[..., dict[str, Any]]


def or_error(how: _Measuring) -> _Measuring:
    """Have a function return the exception that the library raised, as the entry `error`."""

    @wraps(how)
    def measured(*given: Any, **named: Any) -> dict[str, Any]:
        try:
            return how(*given, **named)
        except runner.LibraryFault as fault:
            return {"error": fault.said}

    return measured


# Locate a release's source: in an environment of `orch env`, or in a checkout.


class ProbeSource(NamedTuple):
    """The folder of a release's package, and the commit of a checkout."""

    folder: Path
    commit: str = ""


@contextlib.contextmanager
def sources(
    library: str, version: str, *, source: Path | None = None, within: Path | None = None
) -> Iterator[ProbeSource]:
    """Yield where a release can be probed. The place exists until the caller goes on.

    `source`: the folder of the library's package. Without it the package is that of the contract
    environment (in `within`, or in the folder of environments), else that of the repository in the
    library's variable. Raise EnvironmentFault if none of them has it.
    """
    if source:
        yield ProbeSource(source.resolve())
        return
    package = probes_of(library).PACKAGE
    environment = find_installed(library, version, "contract", within)
    packages = (
        sorted(environment.path.glob(f"lib/python*/site-packages/{package}")) if environment else []
    )
    if packages:
        yield ProbeSource(packages[0])
        return
    commits = lock_of(library, version, "gpu").words("checkout")
    if not commits:
        raise EnvironmentFault(
            f"the source of {library} {version} is not here: make its environment with "
            f"`orch env create {library}@{version} --contract`, or give the folder of its package "
            "with --source"
        )
    with tempfile.TemporaryDirectory() as folder:
        checkout = _extracted(library, version, commits[0], Path(folder))
        yield ProbeSource(checkout / package, commits[0])


def _extracted(library: str, version: str, commit: str, folder: Path) -> Path:
    """Return the folder above the package, with its sources in a commit of the repository.

    Raise EnvironmentFault if there is no such repository or commit.
    """
    (variable, *_) = lock_of(library, version, "gpu").words("variable")
    repository = os.environ.get(variable)
    if not repository:
        raise EnvironmentFault(
            f"{library} is on no registry: point {variable} to a git repository of it that has "
            f"commit {commit[:9]}, or give the folder of its package with --source"
        )
    package = probes_of(library).PACKAGE
    archive = folder / "source.tar"
    git = [str(shutil.which("git")), "-C", repository, "archive", "-o", str(archive), commit]
    done = subprocess.run([*git, f"src/{package}"], capture_output=True, text=True, check=False)
    if done.returncode:
        raise EnvironmentFault(f"{variable}={repository}: {done.stderr.strip()[-300:]}")
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    return folder / "src"


# The batches of the questions, and the quantities computed from the answers.


GROUP = 2


def every_group(setting: LabSetting) -> ProbeBatch:
    """Return every ordered pair of rollouts that a policy can write, as a group. Rewards are 0."""
    batch = Sequences(setting)
    rows = _rows(len(batch.tokens))
    old = batch.logp_old[:, :-1][rows]
    return ProbeBatch(
        logp=batch.logp_of(setting.policy)[:, :-1][rows],
        ref=batch.logp_ref[:, :-1][rows],
        old=old,
        mask=np.ones_like(old),
        rewards=np.zeros(len(rows)),
        groups=[i // GROUP for i in range(len(rows))],
    )


def expected_gradient(setting: LabSetting, gradient: FloatTable, beta: float) -> FloatTable:
    """Return the expected gradient [2 parameters] of a loss, per sequence and unit of beta.

    It comes from the loss's gradient in the log-probabilities of every_group. The loss counts as a
    mean over tokens.
    """
    batch = Sequences(setting)
    rows = _rows(len(batch.tokens))
    # The probability of a group: the product of its sequences, at each of its rows.
    probability = batch.probability[rows].reshape(-1, GROUP).prod(1).repeat(GROUP)
    score = batch.taken(tables(setting).score)[:, rows]
    per_token = gradient * len(rows) * setting.num_tokens
    return np.asarray((score * per_token * probability[:, None]).sum((1, 2)) / GROUP / beta)


def _rows(count: int) -> FloatTable:
    """Return the number of the sequence in each row of every_group: all pairs, in order."""
    return np.array(list(product(range(count), repeat=GROUP))).reshape(-1)


CURVE = np.round(np.arange(-3000, 3001) / 100, 2)
"""log pi / pi_ref of tokens, from below every bound of a library to above it."""


NEAR = CURVE[np.abs(CURVE) <= 1.5]
"""The points of CURVE at which no clamp at 10 changes k1, k2, k3 or abs."""


def curve(log_weight: float | None = None) -> ProbeBatch:
    """Return one rollout with a token at each point of CURVE, on-policy.

    With `log_weight` it has a token at each point of NEAR, all with this log pi / pi_rollout.
    """
    points = (CURVE if log_weight is None else NEAR)[None]
    return ProbeBatch(
        logp=points,
        ref=np.zeros_like(points),
        old=points - (log_weight or 0.0),
        mask=np.ones_like(points),
        rewards=np.zeros(1),
        groups=[0],
    )


def ratios() -> ProbeBatch:
    """Return one rollout with advantages 1 whose tokens have log pi / pi_rollout = CURVE."""
    plain = curve()
    return plain._replace(old=plain.ref, ref=plain.logp, advantages=plain.mask)


SIZE = 4
LENGTHS = (3, 3, 1, 2, 3, 2, 3, 3)
AT = (0, 1)
"""Row and token whose KL is changed."""
STEP = 1e-3


def two_groups(changed: float = 0.0) -> ProbeBatch:
    """Return two groups of four rollouts, on-policy. Token AT has `changed` more KL (k1)."""
    rng = np.random.default_rng(5)
    logp = -rng.uniform(0.2, 2.0, (len(LENGTHS), max(LENGTHS)))
    ref = logp - rng.uniform(-0.5, 0.5, logp.shape)
    ref[AT] -= changed
    return ProbeBatch(
        logp=logp,
        ref=ref,
        old=logp,
        mask=np.array([[float(t < n) for t in range(max(LENGTHS))] for n in LENGTHS]),
        rewards=np.array([1.0, 0.0, 0.5, 0.0, 1.0, 1.0, 0.0, 0.25]),
        groups=[i // SIZE for i in range(len(LENGTHS))],
    )


def ragged() -> ProbeBatch:
    """Return two rollouts of 3 and 1 tokens, on-policy, advantages 1, task rewards 0."""
    logp = np.array([[-1.0, -0.5, -2.0], [-0.7, -1.0, -1.0]])
    mask = np.array([[1.0, 1.0, 1.0], [1.0, 0.0, 0.0]])
    return ProbeBatch(
        logp=logp,
        ref=np.array([[-1.2, -0.9, -1.5], [-0.9, -1.0, -1.0]]),
        old=logp,
        mask=mask,
        rewards=np.zeros(2),
        groups=[0, 0],
        advantages=mask,
    )
