"""What is hidden, and what must not be."""

import pytest

from orchestrator.spec.redaction import hide, hide_in_text, hide_userinfo, is_secret, secrets_in


@pytest.mark.parametrize(
    "name",
    [
        "HF_TOKEN",
        "WANDB_API_KEY",
        "AWS_SECRET_ACCESS_KEY",
        "MLFLOW_TRACKING_PASSWORD",
        "GH_TOKEN",
        "api-key",
        "hub.private_key",
        "trainer.hf_token",
        "MLFLOW_TRACKING_TOKEN",
        "db_password",
    ],
)
def test_names_of_secrets(name: str) -> None:
    assert is_secret(name)
    assert hide({name: "hush"}) == {name: "***"}
    assert hide_in_text(f"export {name}=hush now").endswith("=*** now")


def test_an_option_hides_the_argument_after_it_only() -> None:
    assert hide({"argv": ["train", "--api-key", "hush", "--steps", "3"]}) == {
        "argv": ["train", "--api-key", "***", "--steps", "3"]
    }
    assert hide(["--api_key=hush", "x=1"]) == ["--api_key=***", "x=1"]


def test_addresses_lose_their_userinfo() -> None:
    assert hide_userinfo("at https://me:p%40ss@host:5000/x and a@b.c") == (
        "at https://***@host:5000/x and a@b.c"
    )
    assert hide({"a": [{"b": "postgresql+psycopg://u:p@h/db"}], "n": 3, "t": True}) == {
        "a": [{"b": "postgresql+psycopg://***@h/db"}],
        "n": 3,
        "t": True,
    }


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("${oc.env:HF_TOKEN}", "would copy a secret into the spec"),
        ("x-${ oc.env:WANDB_API_KEY, none }", "would copy a secret into the spec"),
        ("${oc.env:'AWS_SECRET_ACCESS_KEY'}", "would copy a secret into the spec"),
        ("${oc.env:${oc.env:WHICH}}", "would copy a secret into the spec"),
        ("hf_" + "aB3" * 10, "holds a token"),
        ("sk-" + "aB3" * 10, "holds a token"),
        ("run with tr0ub4dor&3 in it", "holds a token"),
    ],
)
def test_a_secret_in_a_spec_is_found(
    value: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACKING_PASSWORD", "tr0ub4dor&3")
    ((path, sentence),) = secrets_in({"model": [{"path": value}]})
    assert path == ("model", 0, "path")
    assert says in sentence
    assert "inherit the environment" in sentence
    for secret in ("tr0ub4dor", "aB3aB3"):
        assert secret not in sentence


@pytest.mark.parametrize(
    "data",
    [
        {"name": "${oc.env:USER}", "eos_token": "</s>", "max_tokens": 7},
        {"site": {"tracking_uri": "https://me:tr0ub4dor&3@host/"}},
        {"question": "Does a short word do?", "hf_token": ""},
    ],
)
def test_what_may_be_seen_is_left_alone(
    data: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACKING_PASSWORD", "tr0ub4dor&3")
    monkeypatch.setenv("SHORT_TOKEN", "word")
    assert list(secrets_in(data)) == []
