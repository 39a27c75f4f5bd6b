"""The questions asked most are answered by name, with numbers of the laboratory."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from orchestrator.cli.explain import ASKED
from orchestrator.cli.explain import command as explain
from orchestrator.cli.lab import command as lab
from orchestrator.estimators import NONE, choices
from orchestrator.kl import beyond
from orchestrator.kl.questions import QUESTIONS, tables


def test_every_question_has_a_name_that_no_estimator_has_and_numbers() -> None:
    assert tuple(QUESTIONS) == ASKED
    assert not set(ASKED) & {NONE, *choices()}
    for question in QUESTIONS.values():
        found = list(tables(question))
        assert found, question.name
        for columns, rows in found:
            assert rows
            assert all(len(row) == len(columns) for row in rows)


def test_an_answer_gives_equation_bias_and_what_to_use() -> None:
    done = CliRunner().invoke(explain, ["opd top-k"], catch_exceptions=False)
    assert "∇ KL(q‖p)" in done.output
    assert "full in the loss" in done.output
    assert "task_reward: false" in done.output
    assert "∇ js(q)" in done.output
    data = json.loads(CliRunner().invoke(explain, ["deepseek-v3.2", "--json"]).stdout)
    rho = next(row for row in data["tables"][0] if row["term"] == "rho_k3.loss")
    assert rho["its gradient is that of"] == "Σ_t E_(c~q) ∇ KL(q(·|c)‖p(·|c))"
    assert rho["bias near"] == "1.3%"


@pytest.mark.parametrize(
    ("option", "page"), [("--page", "beyond_the_paper.md"), ("--comedy", "comedy.md")]
)
def test_the_page_is_what_the_command_prints(option: str, page: str) -> None:
    done = CliRunner().invoke(lab, [option], catch_exceptions=False)
    path = Path(__file__).parents[2] / "docs" / page
    assert done.stdout == path.read_text(encoding="utf-8"), beyond.__doc__


def test_pictures_and_what_has_none(tmp_path: Path) -> None:
    for argv in (["deepseek-v3.2"], ["k3", "loss"]):
        target = tmp_path / f"{argv[0]}.svg"
        done = CliRunner().invoke(explain, [*argv, "--picture", str(target)])
        assert done.exit_code == 0, done.output
        assert target.stat().st_size > 1000
    for argv, sentence in (
        (["which-beta"], "no picture"),
        (["rb", "both"], "draw k1 or k2"),
        (["tis+kl", "loss"], "takes no placement"),
    ):
        done = CliRunner().invoke(explain, [*argv, "--picture", str(tmp_path / "x.svg")])
        assert done.exit_code != 0
        assert sentence in done.output + str(done.exception)


@pytest.mark.parametrize("name", ["deepseek", "gspo"])
def test_a_name_that_is_none_is_refused_with_those_there_are(name: str) -> None:
    done = CliRunner().invoke(explain, [name])
    assert done.exit_code == 2
    assert "gspo+k3" in done.output
