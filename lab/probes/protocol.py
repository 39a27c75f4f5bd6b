"""Run a library's own functions in one process of its Python, for many questions.

The protocol (JSON; runner.py answers it with a backend's probes.py):

asked
    launches   [{"argv": [...], "files": {name: text}}]: launches as `translate` makes them. They
               decide which functions run: names and defaults are the library's own.
    batches    {name: Batch}
    questions  [{"ask", "launch": index, "batch": name, "place": only for kl,
               "only": the parts of the answer that are wanted}]
answers, one a question, in order
    kl          {"value": [N, T], "slope": [N, T] = d sum(value) / d logp}, with "place" `reward` or
                `loss`: the function and the estimator that the launch uses there. No mask applied.
    advantages  {"rewards": [N, T], "advantages": [N, T]}: rewards of tokens after a KL in the
                reward was subtracted (as the library keeps them), and the advantages that follow.
                The KL is of `old`.
    loss        {"loss": number, "gradient": [N, T] = d loss / d logp}: policy loss, and a KL in the
                loss, of the batch as one micro-batch on one device.
    update      `advantages`, then `loss` with those advantages. The KL in the reward is of `old`,
                that in the loss of `logp`.
    controller  {"beta": number}: beta after the trainer's step with the batch, by its controller.
    reference   {"reference": [4]}: a weight of the reference policy after each of four train steps;
                it begins at 0, and the policy's stays 1.
    functions   {"functions": {name: {"value": ..., "gradient": [N, T]}}}: every function of the
                library around the KL, with the library's defaults (functions.py); "error" in place
                of both where it raised an exception.
    any         {"error": "Kind: sentence"}: the exception that the library raised.
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, TypedDict

import numpy as np

from lab.libraries import folder, part
from orchestrator.environments.lock import find_installed, lock_of
from orchestrator.errors import EnvironmentFault
from orchestrator.evidence.cells import libraries
from orchestrator.exact.laboratory import FloatTable, LabSetting, Sequences, tables
from orchestrator.records import LaunchPlan

NumberRows = Sequence[Sequence[float]]


class ProbeBatch(TypedDict, total=False):
    """Arrays of N rollouts of at most T tokens. An array is [N, T] unless its text has a shape."""

    logp: NumberRows
    """log pi of the sampled tokens, by the policy being trained."""
    ref: NumberRows
    """log pi of the sampled tokens, by the reference policy."""
    old: NumberRows
    """log pi of the sampled tokens, by the rollout policy, as the trainer has it. Constant."""
    engine: NumberRows
    """log pi of the sampled tokens, by the engine that sampled them; without it `old`."""
    mask: NumberRows
    """1 for tokens of the response, 0 for padding at the end."""
    rewards: Sequence[float]
    """[N]: the task's reward of each response."""
    groups: Sequence[int]
    """[N]: the number of each rollout's prompt. Rollouts of one prompt are consecutive."""
    advantages: NumberRows
    """Only for the question `loss`."""


class ProbeQuestion(TypedDict, total=False):
    """One question of the protocol above."""

    ask: str
    launch: int
    batch: str
    place: str
    only: Sequence[str]


class ProbeLaunch(TypedDict):
    """The input that starts a library: its arguments and the files beside them."""

    argv: Sequence[str]
    files: Mapping[str, str]


AnswersByKey = Mapping[Any, Mapping[str, Any]]
"""The key of a question -> its answer."""
AnsweredSources = Mapping[str, Mapping[str, Any]]
"""Of the library's source, `file:definition` -> its line and the sha256 of its text."""


@dataclass(frozen=True, slots=True)
class ProbeTarget:
    """The place where a library's code runs: a Python that has torch, and the folder of the
    package.

    Folder None: the package is where that Python finds it.
    """

    python: Path
    folder: Path | None = None


def probes_file(library: str) -> Path:
    """Return the module of a backend that runs its library's functions.

    Raise EnvironmentFault if the backend has none, as the embedded trainer has none.
    """
    path = folder(library) / "probes.py"
    if not path.exists():
        raise EnvironmentFault(
            f"backend '{library}' has no library whose functions could be asked (there are: "
            f"{', '.join(libraries())})"
        )
    return path


def probes_of(library: str) -> ModuleType:
    """Import the module of `probes_file`, for the facts that it states about its library."""
    probes_file(library)
    module = part(library, "probes")
    if module is None:
        raise EnvironmentFault(f"backend '{library}' is no package: its probes cannot be imported")
    return module


class Inquiry:
    """Questions to one release, which `send` sends to one process. A key finds each answer."""

    def __init__(self, library: str, version: str) -> None:
        self.library, self.version = library, version
        self._launches: list[ProbeLaunch] = []
        self._batches: dict[str, ProbeBatch] = {}
        self._questions: dict[Hashable, ProbeQuestion] = {}

    def add_launch(self, plan: LaunchPlan, *more: str) -> int:
        """Add a launch with further arguments. Return its number for questions."""
        return self.add_own_launch({"argv": [*plan.argv, *more], "files": dict(plan.files)})

    def add_own_launch(self, launch: Mapping[str, Any]) -> int:
        """Add a launch in the library's own words. Return its number for questions.

        Of the launch only `argv` and `files` are used.
        """
        self._launches.append({"argv": launch["argv"], "files": launch["files"]})
        return len(self._launches) - 1

    def add_batch(self, name: str, batch: ProbeBatch) -> None:
        """Add a batch under a name for questions."""
        self._batches[name] = batch

    def add_question(
        self,
        key: Hashable,
        what: str,
        launch: int,
        batch: str,
        *,
        place: str = "",
        only: str = "",
    ) -> None:
        """Add a question. `key`: of its answer. `only`: the one part of the answer to keep."""
        fresh: ProbeQuestion = {"ask": what, "launch": launch, "batch": batch, "place": place}
        if only:
            fresh["only"] = [only]
        self._questions[key] = fresh

    def send(
        self, where: ProbeTarget, probes: Path | None = None
    ) -> tuple[AnswersByKey, AnsweredSources]:
        """Run the functions through the library's probes.py, or through the file `probes`.

        Return key -> answer, and the definitions that were run. Raise EnvironmentFault if they
        cannot run there.
        """
        inquiry = {
            "launches": self._launches,
            "batches": self._batches,
            "questions": list(self._questions.values()),
        }
        folder = [str(where.folder)] if where.folder else []
        runner = Path(__file__).with_name("runner.py")
        file = probes or probes_file(self.library)
        done = subprocess.run(
            [str(where.python), str(runner), str(file), self.version, *folder],
            input=json.dumps(inquiry),
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise EnvironmentFault(
                f"{self.library} {self.version} cannot be asked with {where.python}: it needs "
                "torch and NumPy, and the library's installed source. It said: "
                f"{done.stderr.strip()[-600:]}"
            )
        reply = json.loads(done.stdout)
        return dict(zip(self._questions, reply["answers"], strict=True)), reply["sources"]


# Locate a release's source: in an environment of `orch env`, or in a checkout.


class ProbeSource(NamedTuple):
    """Where to run a release's code, and the commit of a checkout."""

    where: ProbeTarget
    commit: str


@contextlib.contextmanager
def sources(
    library: str,
    version: str,
    *,
    python: Path | None = None,
    source: Path | None = None,
    within: Path | None = None,
) -> Iterator[ProbeSource]:
    """Yield where a release can be probed. The place exists until the caller goes on.

    `python`: a Python with torch (default: this one). `source`: the folder of the library's
    package. Without it the package is that of the contract environment (in `within`, or in the
    folder of environments), else that of the repository in the library's variable. Raise
    EnvironmentFault if none of them has it.
    """
    with_torch = python or Path(sys.executable)
    if source:
        if not source.is_dir():
            raise EnvironmentFault(f"--source {source} is not a folder")
        yield ProbeSource(ProbeTarget(with_torch, source.resolve()), "")
        return
    package = probes_of(library).PACKAGE
    environment = find_installed(library, version, "contract", within)
    packages = (
        sorted(environment.path.glob(f"lib/python*/site-packages/{package}")) if environment else []
    )
    if packages:
        yield ProbeSource(ProbeTarget(with_torch, packages[0]), "")
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
        yield ProbeSource(ProbeTarget(with_torch, checkout / package), commits[0])


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
    old = batch.logp_old[:, :-1]
    return ProbeBatch(
        logp=batch.logp_of(setting.policy)[:, :-1][rows].tolist(),
        ref=batch.logp_ref[:, :-1][rows].tolist(),
        old=old[rows].tolist(),
        mask=np.ones_like(old)[rows].tolist(),
        rewards=[0.0] * len(rows),
        groups=[i // GROUP for i in range(len(rows))],
    )


def expected_gradient(
    setting: LabSetting, gradient: Sequence[Sequence[float]], beta: float
) -> FloatTable:
    """Return the expected gradient [2 parameters] of a loss, per sequence and unit of beta.

    It comes from the loss's gradient in the log-probabilities of every_group. The loss counts as a
    mean over tokens.
    """
    batch = Sequences(setting)
    rows = _rows(len(batch.tokens))
    # The probability of a group: the product of its sequences, at each of its rows.
    probability = batch.probability[rows].reshape(-1, GROUP).prod(1).repeat(GROUP)
    score = batch.taken(tables(setting).score)[:, rows]
    per_token = np.asarray(gradient) * len(rows) * setting.num_tokens
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
    points = CURVE if log_weight is None else NEAR
    old = points - (log_weight or 0.0)
    one = [1.0] * len(points)
    return ProbeBatch(
        logp=[points.tolist()],
        ref=[[0.0] * len(points)],
        old=[old.tolist()],
        mask=[one],
        rewards=[0.0],
        groups=[0],
    )


def ratios() -> ProbeBatch:
    """Return one rollout with advantages 1 whose tokens have log pi / pi_rollout = CURVE."""
    full_curve = curve()
    old = [[0.0] * len(CURVE)]
    return ProbeBatch(
        **{**full_curve, "old": old, "ref": full_curve["logp"], "advantages": full_curve["mask"]}
    )


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
    mask = np.array([[float(t < n) for t in range(max(LENGTHS))] for n in LENGTHS])
    return ProbeBatch(
        logp=logp.tolist(),
        ref=ref.tolist(),
        old=logp.tolist(),
        mask=mask.tolist(),
        rewards=[1.0, 0.0, 0.5, 0.0, 1.0, 1.0, 0.0, 0.25],
        groups=[i // SIZE for i in range(len(LENGTHS))],
    )


def scaled(batch: ProbeBatch, reward: float, kl: float) -> ProbeBatch:
    """Return the rollouts with all rewards and all KLs (k1) multiplied by a factor."""
    ref = np.asarray(batch["logp"]) + kl * (np.asarray(batch["ref"]) - np.asarray(batch["logp"]))
    rewards = [reward * each for each in batch["rewards"]]
    return ProbeBatch(**{**batch, "ref": ref.tolist(), "rewards": rewards})


def ragged() -> ProbeBatch:
    """Return two rollouts of 3 and 1 tokens, on-policy, advantages 1, task rewards 0."""
    logp = [[-1.0, -0.5, -2.0], [-0.7, -1.0, -1.0]]
    ref = [[-1.2, -0.9, -1.5], [-0.9, -1.0, -1.0]]
    return ProbeBatch(
        logp=logp,
        ref=ref,
        old=logp,
        mask=[[1.0] * 3, [1.0, 0.0, 0.0]],
        rewards=[0.0, 0.0],
        groups=[0, 0],
        advantages=[[1.0] * 3, [1.0, 0.0, 0.0]],
    )


def first_error(answers: Iterable[Mapping[str, Any]]) -> str | None:
    """Return the first exception that the library raised in these answers, or None."""
    return next((each["error"] for each in answers if "error" in each), None)


def as_array(answer: Mapping[str, Any], key: str) -> FloatTable:
    """Return an array of an answer. Raise EnvironmentFault if the library raised an error."""
    if "error" in answer:
        raise EnvironmentFault(f"the library's own functions raised {answer['error']}")
    return np.asarray(answer[key], dtype=float)
