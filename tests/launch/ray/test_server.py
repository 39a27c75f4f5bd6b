"""The job server's address, headers and answers, without a Ray."""

import json
from pathlib import Path

import pytest

from orchestrator.errors import EnvironmentFault
from orchestrator.launch.ray.server import JobServer, ServerRefusal, server_of
from orchestrator.spec.site_options import RayOptions
from tests.launch.ray.model_server import model_server


def test_another_machine_needs_the_users_say() -> None:
    for address in ("http://10.0.0.1:8265", "https://ray.example.org", "http://localhost.evil:1"):
        with pytest.raises(EnvironmentFault, match="allow_remote"):
            server_of(RayOptions(address=address))
        assert server_of(RayOptions(address=address, allow_remote=True)).address == address


def test_headers_are_sent_and_never_carried_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_JOB_HEADERS", json.dumps({"Authorization": "Bearer 7"}))
    with model_server() as server, model_server() as moved:
        assert JobServer(server.address).jobs() == {}
        assert server.headers[0]["Authorization"] == "Bearer 7"
        moved.always = (302, "", {"Location": f"{server.address}/api/jobs/"})
        with pytest.raises(ServerRefusal, match="answers 302"):
            JobServer(moved.address).jobs()
        assert len(server.headers) == 1
    monkeypatch.setenv("RAY_JOB_HEADERS", "secret-token")
    with pytest.raises(EnvironmentFault, match="is a JSON object") as refused:
        JobServer(server.address).jobs()
    assert "secret-token" not in str(refused.value)


def test_the_token_is_read_where_ray_reads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RAY_JOB_HEADERS", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    with model_server() as server:
        server.always = (401, "Unauthorized: Missing authentication token", {})

        def sent() -> str | None:
            with pytest.raises(ServerRefusal, match=r"401: Unauthorized.*token is that of") as told:
                JobServer(server.address).jobs()
            assert "of-" not in str(told.value), "the token is in no message"
            return server.headers[-1].get("Authorization")

        assert sent() is None
        (tmp_path / ".ray").mkdir()
        (tmp_path / ".ray" / "auth_token").write_text("of-home\n")
        assert sent() == "Bearer of-home"
        (tmp_path / "mine").write_text("of-file")
        monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "mine"))
        assert sent() == "Bearer of-file"
        monkeypatch.setenv("RAY_AUTH_TOKEN", "of-variable")
        assert sent() == "Bearer of-variable"
        monkeypatch.setenv("RAY_JOB_HEADERS", json.dumps({"authorization": "Bearer mine"}))
        assert sent() == "Bearer mine"
        monkeypatch.delenv("RAY_JOB_HEADERS")
        monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
        assert sent() is None
