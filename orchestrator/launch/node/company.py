"""The companions of a run: one process a node, started together, watched, and ended together."""

import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.files import read_tail
from orchestrator.launch.endings import Ending
from orchestrator.launch.failures import failure_of
from orchestrator.launch.node import nodes

_MODULE = "orchestrator.launch.node.companion"
_LAST_LINES = 6
_GRACE_SECONDS = 20.0
"""More than a companion gives what it runs."""
_MEANING = {127: "config"}


@dataclass
class Company:
    """Companions by node. `folder` gets their output, and Ray's logs of a run that failed."""

    token: str
    folder: Path
    scratch: Path | None = None
    members: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)

    def start(
        self, node: str, argv: Sequence[str], env: dict[str, str], cwd: Path, *, here: bool
    ) -> None:
        """Starts argv on a node, beside its companion."""
        self.folder.mkdir(parents=True, exist_ok=True)
        rank = len(self.members)
        own = ["--token", f"{self.token}.{rank}"]
        if self.scratch is not None:
            own += ["--scratch", str(self.scratch), "--logs", str(self.folder / node)]
        command = [sys.executable, "-P", "-m", _MODULE, *own, "--", *argv]
        if not here:
            command, env = nodes.on_node(node, command), nodes.without_step(env)
        with self._log(node).open("ab") as log:
            self.members[node] = subprocess.Popen(
                command, cwd=cwd, env=env, stdin=subprocess.PIPE, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip

    def ending(self) -> Ending | None:
        """The ending that the first companion to end by itself means; None while all are there."""
        for node, member in self.members.items():
            code = member.poll()
            if code is not None:
                return self._left(node, code)
        return None

    def _left(self, node: str, code: int) -> Ending:
        tail = read_tail(self._log(node), 1 << 14).decode(errors="replace")
        spoken = failure_of(tail)
        failure = _MEANING.get(code) or (spoken if spoken != "error" else "node")
        last = "\n".join(tail.rstrip().splitlines()[-_LAST_LINES:])
        what = f"node {node} left the run: what ran there ended with code {code}\n{last}"
        return Ending("failed", code=code, failure=failure, message=what.rstrip())

    def stop(self, *, keep_logs: bool) -> None:
        """Ends all companions, each of which ends what it started. Waits for them."""
        for member in self.members.values():
            if member.stdin is not None:
                with suppress(OSError):
                    if keep_logs:
                        member.stdin.write(b"keep\n")
                        member.stdin.flush()
                with suppress(OSError):
                    member.stdin.close()
        deadline = time.monotonic() + _GRACE_SECONDS
        for member in self.members.values():
            try:
                member.wait(timeout=max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                member.kill()
                member.wait()

    def _log(self, node: str) -> Path:
        return self.folder / f"{node}.log"
