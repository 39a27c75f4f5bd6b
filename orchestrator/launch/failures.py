"""The class of a failure, from a trainer's last words.

config          the same again: the request, the environment or the data is wrong
disk            no room to write to
out_of_memory   of a GPU or of the node
node            the machine is at fault; another one may do
hung            it stopped writing
error           anything else: a crash in the library
"""

import re

_PATTERNS: tuple[tuple[str, str], ...] = (
    ("disk", r"No space left on device|Disk quota exceeded"),
    ("out_of_memory", (r"out of memory|OutOfMemoryError|MemoryError|oom[-_]kill|"
     r"No available memory for the cache blocks|worker.*killed due to memory|"
     r"low on memory|Cannot allocate memory")),
    ("node", (r"uncorrectable ECC|\bXid\b|fallen off the bus|GPU is lost|"
     r"CUDA-capable device\(s\) is/are busy or unavailable|No CUDA GPUs are available|"
     r"CUDA driver initialization failed|cuInit|Unable to determine the device handle|"
     r"Failed to initialize NVML|Driver/library version mismatch|unhandled system error|"
     r"ncclRemoteError|ibv_\w+ failed|node with node id.*marked dead|raylet.*(died|crashed)|"
     r"Input/output error|Stale file handle|Transport endpoint is not connected|"
     r"No route to host|Bus error")),
    ("config", (r"ModuleNotFoundError|No module named|cannot import name|command not found|"
     r"unrecognized arguments|error: argument |the following arguments are required|"
     r"invalid choice|ConfigCompositionException|ConfigAttributeError|ConfigKeyError|"
     r"MissingMandatoryValue|Could not override|pydantic.*ValidationError|"
     r"validation errors? for|is not a valid model identifier|Repository Not Found|"
     r"RepositoryNotFoundError|GatedRepoError|401 Client Error|403 Client Error|"
     r"Cannot access gated repo|Attempting to start raylet with|"
     r"Total available GPUs .* is less than total desired GPUs")),
)  # fmt: skip
"""In the order in which they are believed: a run that is out of memory also loses its workers.
`config` is never retried, so only words that nothing else explains stand there."""


def failure_of(tail: str) -> str:
    """The class that the end of a program's stderr speaks for."""
    return next(
        (name for name, words in _PATTERNS if re.search(words, tail, re.IGNORECASE)), "error"
    )
