"""What is hidden, and what must not be."""

import pytest

from orchestrator.tracking.secrets import hide, hide_in_text, hide_userinfo, is_secret


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


@pytest.mark.parametrize(
    "name",
    [
        "max_token_len",
        "eos_token",
        "rollout.max_response_tokens",
        "tokenizer",
        "prompt_key",
        "reward_fn_key",
        "loss.constant_tokens",
        "kl.estimator",
        "keyboard",
    ],
)
def test_words_of_the_field_are_no_secrets(name: str) -> None:
    assert hide([f"{name}=1024", f"--{name}", "7"]) == [f"{name}=1024", f"--{name}", "7"]


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
