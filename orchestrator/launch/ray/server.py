"""The job server of a Ray: its HTTP API as functions (`/api/jobs/`, the same from Ray 2.9 to 2.60).

A status code alone decides nothing. The server refuses an id that it has seen with an error 500 and
a traceback as text, and after a restart without state it accepts the same id again. So a caller
asks for the list of jobs, and compares it with the run directory.
"""

import http.client
import json
import os
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from orchestrator.errors import EnvironmentFault
from orchestrator.spec.site_options import RayOptions

DEADLINE_SECONDS = 60.0
ADDRESS, HEADERS = "RAY_ADDRESS", "RAY_JOB_HEADERS"
TOKEN, TOKEN_PATH, AUTH_MODE = "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_AUTH_MODE"
"""Ray's own variables."""
TOKEN_FILE = Path(".ray") / "auth_token"
"""Where Ray keeps its token below the home, if no variable says so."""
_SHOWN = 300


class ServerUnavailable(EnvironmentFault):
    """Raised if no job server answers, or if what answers is none."""


class ServerRefusal(EnvironmentFault):
    """Raised if the job server answers a request with an error. It may have done it all the
    same."""


class RayJob(NamedTuple):
    """One job, as the server describes it."""

    status: str
    """PENDING, RUNNING, STOPPED, SUCCEEDED or FAILED."""
    message: str = ""
    metadata: Mapping[str, str] = {}
    started: float = 0.0
    ended: float = 0.0

    @property
    def is_over(self) -> bool:
        """Return True if nothing of it runs any more, by the server."""
        return self.status in ("STOPPED", "SUCCEEDED", "FAILED")


class ClusterTotals(NamedTuple):
    """The nodes of a Ray and all that they have."""

    nodes: int
    cpus: float
    gpus: float
    resources: Mapping[str, float]
    """All resources by Ray's own names, CPU and GPU among them."""


@dataclass(frozen=True)
class JobServer:
    """A job server. `address` is http://HOST:PORT."""

    address: str

    def jobs(self) -> dict[str, RayJob]:
        """Return every job that the server knows, by submission id. Raise ServerUnavailable."""
        listed = self._call("GET", "/api/jobs/")
        if not isinstance(listed, list):
            raise ServerUnavailable(f"{self.address} does not list jobs: it is no Ray job server")
        known = {}
        for each in listed:
            if isinstance(each, dict) and each.get("submission_id"):
                times = (float(each.get(name) or 0) / 1000 for name in ("start_time", "end_time"))
                metadata = {str(k): str(v) for k, v in (each.get("metadata") or {}).items()}
                known[str(each["submission_id"])] = RayJob(
                    str(each.get("status", "")), str(each.get("message") or ""), metadata, *times
                )
        return known

    def submit(self, request: Mapping[str, object]) -> None:
        """Send a job. Raise ServerUnavailable or ServerRefusal: the job may be there or not."""
        self._call("POST", "/api/jobs/", request)

    def stop(self, submission: str) -> None:
        """Ask the server to stop a job. Raise ServerUnavailable or ServerRefusal."""
        self._call("POST", f"/api/jobs/{urllib.parse.quote(submission, safe='')}/stop")

    def release(self) -> str:
        """Return the release of Ray, such as 2.60.0. Raise ServerUnavailable."""
        answer = self._call("GET", "/api/version")
        return str(answer.get("ray_version", "")) if isinstance(answer, dict) else ""

    def totals(self) -> ClusterTotals | None:
        """Return what the living nodes have; None if the server does not tell."""
        try:
            answer = self._call("GET", "/nodes?view=summary")
            raylets = [each["raylet"] for each in answer["data"]["summary"]]
        except (EnvironmentFault, KeyError, TypeError):
            return None
        totals: dict[str, float] = {}
        alive = [each for each in raylets if each.get("state") == "ALIVE"]
        for each in alive:
            for name, number in (each.get("resourcesTotal") or {}).items():
                totals[name] = totals.get(name, 0.0) + float(number)
        return ClusterTotals(len(alive), totals.get("CPU", 0.0), totals.get("GPU", 0.0), totals)

    def _call(self, method: str, path: str, body: object = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json", **_headers()}
        request = urllib.request.Request(  # noqa: S310  (the address is http, by its pattern)
            f"{self.address.rstrip('/')}{path}", data, headers, method=method
        )
        try:
            with _opener(self.address).open(request, timeout=DEADLINE_SECONDS) as answer:
                content = answer.read()
        except urllib.error.HTTPError as error:
            with error:
                sentence = f"{self.address} answers {error.code}: {_last_line(error.read())}"
                if error.code in (401, 403):
                    sentence += f". Ray's token is that of {TOKEN}, {TOKEN_PATH} or ~/{TOKEN_FILE}"
                raise ServerRefusal(sentence) from error
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", None) or error
            raise ServerUnavailable(
                f"the job server {self.address} does not answer ({reason})"
            ) from error
        try:
            return json.loads(content) if content.strip() else None
        except ValueError as error:
            raise ServerUnavailable(
                f"{self.address} answers with no JSON: it is no Ray job server"
            ) from error


def server_of(options: RayOptions) -> JobServer:
    """Return the job server of a site.

    Raise EnvironmentFault if none is named, or if it is on another machine and the site file does
    not allow this.
    """
    named = options.address or os.environ.get(ADDRESS, "")
    if not named:
        raise EnvironmentFault(
            "no job server is named: set site.options.address to http://HOST:8265, or export "
            f"{ADDRESS}"
        )
    try:
        address = RayOptions(address=named).address or ""
    except ValueError as error:
        raise EnvironmentFault(
            f"{ADDRESS} is not the address of a job server: it is http://HOST:8265, without a user "
            "or a password"
        ) from error
    if not is_loopback(address) and not options.allow_remote:
        raise EnvironmentFault(
            f"the job server {address} is on another machine. Whoever reaches it can run programs "
            "there, and http sends jobs and headers in the clear. If you trust the network, set "
            "site.options.allow_remote to true; or `kubectl port-forward` it to 127.0.0.1"
        )
    return JobServer(address)


def is_loopback(address: str) -> bool:
    """Return True for an address of this machine only."""
    host = urllib.parse.urlsplit(address).hostname or ""
    return host == "localhost" or host == "::1" or host.startswith("127.")


def _headers() -> dict[str, str]:
    """Return the headers in $RAY_JOB_HEADERS, and Ray's token where they have none.

    The token is read where Ray's own client reads it (AuthenticationTokenLoader, Ray 2.60). Raise
    EnvironmentFault, without any value.
    """
    text = os.environ.get(HEADERS, "") or "{}"
    try:
        plain = json.loads(text)
    except ValueError:
        plain = None
    if not isinstance(plain, dict) or not all(
        isinstance(word, str) and "\n" not in word and "\r" not in word
        for word in (*plain, *plain.values())
    ):
        raise EnvironmentFault(
            f'{HEADERS} is a JSON object of header -> value, such as {{"Authorization": "..."}}'
        )
    given = "authorization" in map(str.lower, plain)
    if not given and os.environ.get(AUTH_MODE) != "disabled" and (token := _token()):
        plain["Authorization"] = f"Bearer {token}"
    return plain


def _token() -> str:
    """Return Ray's token; empty if there is none."""
    if token := os.environ.get(TOKEN, "").strip():
        return token
    try:
        path = Path(os.environ.get(TOKEN_PATH) or Path.home() / TOKEN_FILE)
        return path.read_text(encoding="ascii").strip()
    except (OSError, ValueError, RuntimeError):  # none, no text, no home
        return ""


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Headers may hold a token: they are not carried to another address."""

    def redirect_request(self, *_arguments: object, **_more: object) -> None:
        """Return nothing: the redirection becomes an error."""


def _opener(address: str) -> urllib.request.OpenerDirector:
    handlers: list[urllib.request.BaseHandler] = [_NoRedirect()]
    if is_loopback(address):
        handlers.append(urllib.request.ProxyHandler({}))  # no proxy knows this machine's loopback
    return urllib.request.build_opener(*handlers)


def _last_line(content: bytes) -> str:
    """Return the last line of an answer: of a traceback, the one that says what is wrong."""
    lines = content.decode(errors="replace").strip().splitlines() or [""]
    line = lines[-1].strip()
    return line if len(line) <= _SHOWN else f"{line[:_SHOWN]}..."
