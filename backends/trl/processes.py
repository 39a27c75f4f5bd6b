"""The number of processes that a command starts."""

import re
from collections.abc import Sequence

_PROCESSES = re.compile(r"(?<!\S)--(?:num|nproc)[_-](?:processes|per[_-]node)[= ](\d+)\b")


def number_of_processes(argv: Sequence[str]) -> int | None:
    """Return the number of processes that a command starts; None where it does not say."""
    is_python = argv and re.fullmatch(r"(?:.*/)?python[\d.]*", argv[0])
    if is_python and "torch.distributed.run" not in argv:
        return 1
    numbers = _PROCESSES.findall(" ".join(argv))
    return int(numbers[-1]) if numbers and not any("nnodes" in each for each in argv) else None
