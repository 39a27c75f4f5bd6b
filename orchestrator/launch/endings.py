"""Derive how an attempt ended: from an exception, an exit code, or the end of a trainer's stderr.

Classes of failure, which decide if orch makes another attempt by itself:

    config          the request, the environment or the data is wrong: it would fail again
    disk            no room to write to
    out_of_memory   of a GPU or of the node
    node            the machine is at fault; another one may do
    hung            it stopped writing
    no_progress     it is stopped again and again before its next checkpoint
    lost            the process was killed and left no exit record
    error           anything else: a crash in the library
"""

import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from orchestrator.errors import OrchError, RunFolderError
from orchestrator.files import NO_ROOM, read_tail
from orchestrator.launch.processes import node_name
from orchestrator.records import ExitRecord, Outcome, State
from orchestrator.rundir import AttemptDir

_ROOM_BYTES = 1 << 20
"""With less than this free on the disk, a failure counts as a full disk: libraries report a write
that failed in many ways."""
_MESSAGE_LENGTH = 2000
_TAIL_BYTES = 1 << 15


class Stopped(BaseException):
    """Raised when the worker is asked to stop. `state` is the state that its attempt gets.

    A BaseException, so that a library's `except Exception` does not catch it.
    """

    def __init__(self, state: State):
        self.state = state
        super().__init__(state)


class Ending(NamedTuple):
    """The ending of an attempt; see ExitRecord."""

    state: State
    code: int | None = None
    failure: str = ""
    message: str = ""
    outcome: Outcome | None = None
    host: str = ""
    """The node at fault, if it is another node than this one."""

    def record(self, started: float | None = None, ended: float | None = None) -> ExitRecord:
        """Return the exit record, without costs. None: now."""
        now = time.time()
        return ExitRecord(
            state=self.state,
            code=self.code,
            failure=self.failure,
            message=self.message,
            outcome=self.outcome,
            started=now if started is None else started,
            ended=now if ended is None else ended,
            host=self.host or node_name(),
        )


def ending_of(error: BaseException) -> Ending:
    """Return the ending for an exception of a backend's entry."""
    if isinstance(error, Stopped):
        why = "cancelled by a person" if error.state == "cancelled" else "asked to stop"
        return Ending(error.state, message=why)
    if isinstance(error, OrchError):
        full = any(isinstance(c, OSError) and c.errno in NO_ROOM for c in _causes(error))
        failure = "disk" if full else "config"
        return Ending("failed", code=1, failure=failure, message=shortened(str(error)))
    memory = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    failure = "out_of_memory" if memory else "error"
    message = f"{type(error).__name__}: {error}".rstrip(": ")
    return Ending("failed", code=1, failure=failure, message=shortened(message))


def disk_full_error(error: BaseException, path: Path) -> RunFolderError | None:
    """Return the error for a failure that comes from a full disk, a quota or a file size limit.

    Return None for other failures.
    """
    if isinstance(error, OrchError | Stopped):
        return None
    named = any(isinstance(c, OSError) and c.errno in NO_ROOM for c in _causes(error))
    named = named or "No space left on device" in str(error)
    if not named and shutil.disk_usage(path).free >= _ROOM_BYTES:
        return None
    return RunFolderError(
        f"{path}: there is no room left to write to ({error}); free some and run again, the cell "
        "goes on from its last checkpoint"
    )


def shortened(message: str) -> str:
    """Return the end of a long message, because libraries put the cause at the end."""
    return message if len(message) <= _MESSAGE_LENGTH else f"... {message[-_MESSAGE_LENGTH:]}"


def _causes(error: BaseException) -> Iterator[BaseException]:
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__ or cause.__context__


_PATTERNS: tuple[tuple[str, str], ...] = (
    ("disk", r"No space left on device|Disk quota exceeded|OutOfDiskError"),
    (
        "out_of_memory",
        (
            r"out of memory|OutOfMemoryError|MemoryError|oom[-_]kill|"
            r"No available memory for the cache blocks|worker.*killed due to memory|"
            r"low on memory|Cannot allocate memory"
        ),
    ),
    (
        "node",
        (
            r"uncorrectable ECC|\bXid\b|fallen off the bus|GPU is lost|"
            r"CUDA-capable device\(s\) is/are busy or unavailable|No CUDA GPUs are available|"
            r"CUDA driver initialization failed|cuInit|Unable to determine the device handle|"
            r"Failed to initialize NVML|Driver/library version mismatch|unhandled system error|"
            r"ncclRemoteError|ibv_\w+ failed|node with node id.*marked dead|raylet.*(died|crashed)|"
            r"current node timed out during startup|(Failed|Unable) to connect to GCS|"  # Ray
            r"Ray did not come together|"  # node/ray_wait.py
            r"Input/output error|Stale file handle|Transport endpoint is not connected|"
            r"No route to host|Bus error"
        ),
    ),
    (
        "config",
        (
            r"ModuleNotFoundError|No module named|cannot import name|command not found|"
            r"unrecognized arguments|error: argument |the following arguments are required|"
            r"invalid choice|ConfigCompositionException|ConfigAttributeError|ConfigKeyError|"
            r"MissingMandatoryValue|Could not override|pydantic.*ValidationError|"
            r"validation errors? for|is not a valid model identifier|Repository Not Found|"
            r"RepositoryNotFoundError|GatedRepoError|401 Client Error|403 Client Error|"
            r"Cannot access gated repo|Attempting to start raylet with|"
            r"Total available GPUs .* is less than total desired GPUs|"
            r"Version mismatch: The cluster was started with"  # another release of Ray
        ),
    ),
)
"""Patterns of failures. The first match counts, because a run that is out of memory also loses its
workers. `config` is never retried, so it only has words that no other failure explains."""


_NOT_FINITE = re.compile(
    # torch.multinomial on the CPU, its assertion on a GPU, and vLLM's samplers that call it
    r"probability tensor contains either `inf`, `nan` or element < 0"
    # torch/distributions/distribution.py, torch/nn/utils/clip_grad.py, torch's anomaly mode
    r"|to satisfy the constraint .{1,200}but found invalid values:\s*tensor\(\[+\s*nan"
    r"|The total norm of order .{1,80} is non-finite, so it cannot be clipped"
    r"|returned nan values in its \d+th output"
    # json, where vLLM's server answers with log-probabilities
    r"|Out of range float values are not JSON compliant"
    # DeepSpeed, runtime/fp16/loss_scaler.py
    r"|Current loss scale already at minimum",
    re.DOTALL,
)
"""What libraries say when they cannot go on because a number is not finite."""


def not_finite_message(attempt: AttemptDir) -> str:
    """Return the words by which an attempt's output says that a number is not finite, or none."""
    files = [attempt.stderr, attempt.stdout, *sorted(attempt.path.glob("logs/*.stdout"))]
    tails = (read_tail(path, _TAIL_BYTES) for path in files)
    matches = (_NOT_FINITE.search(tail.decode(errors="replace")) for tail in tails)
    return next((" ".join(match[0].split()) for match in matches if match), "")


def failure_of(tail: str) -> str:
    """Return the class of failure that the end of a program's stderr shows."""
    return next(
        (name for name, words in _PATTERNS if re.search(words, tail, re.IGNORECASE)), "error"
    )
