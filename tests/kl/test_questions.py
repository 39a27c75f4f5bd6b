"""The questions asked most are answered by name, with numbers of the laboratory."""

import html
import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from docs.tools import beyond, measured
from orchestrator.cli.explain import ASKED
from orchestrator.cli.explain import command as explain
from orchestrator.errors import LaboratoryError
from orchestrator.estimators import NONE, TABLE, choices
from orchestrator.evidence import stored
from orchestrator.kl.configuration import KlConfiguration
from orchestrator.lab.exact.derivation import NEAR, NEAR_WIDE, NUM_TOKENS
from orchestrator.lab.exact.figures import curves_of, draw_terms
from orchestrator.lab.exact.laboratory import LabSetting, exact
from orchestrator.lab.exact.objectives import gradients
from orchestrator.lab.exact.questions import QUESTIONS, tables
from orchestrator.losses.table import POLICY_LOSSES


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
    ("written", "page"),
    [
        (beyond.page, "beyond_the_paper.md"),
        (measured.comedy_page, "comedy.md"),
        (measured.anchors_picture, "pictures/anchors.svg"),
    ],
)
def test_the_page_is_what_its_tool_writes(written: Callable[[], str], page: str) -> None:
    path = Path(__file__).parents[2] / "docs" / page
    assert written() == path.read_text(encoding="utf-8"), beyond.__doc__


TEN = (
    "deepseek-v3.2",
    "kl-twice",
    "tis+kl",
    "opd-top-k",
    "clamps",
    "same-settings",
    "collapse",
    "moving-reference",
    "logged-kl",
    "which-beta",
)
"""The ten questions that recur in public threads, the most frequent first."""


@pytest.mark.parametrize(("rank", "name"), list(enumerate(TEN)), ids=TEN)
def test_each_of_the_ten_has_equation_bias_noise_picture_and_alternative(
    rank: int, name: str, tmp_path: Path
) -> None:
    """Bias and noise are computed here once more, from the exact moments of each term."""
    assert list(QUESTIONS)[rank] == name
    target = tmp_path / "picture.svg"
    argv = [name, "--json", "--picture", str(target)]
    done = CliRunner().invoke(explain, argv, catch_exceptions=False)
    data = json.loads(done.stdout)
    rows = data["tables"][0]
    question = QUESTIONS[name]
    assert len(rows) == len(question.terms) > 1
    for row, (configuration, on_policy) in zip(rows, question.terms, strict=True):
        bias, noise = _of_the_laboratory(configuration, on_policy)
        assert row["term"] == configuration.label
        equation = row["its gradient is that of"]
        assert equation == "0" or "∇" in equation or equation == "no objective orch knows"
        assert float(row["bias near"].rstrip("%")) == pytest.approx(100 * bias, rel=5e-3, abs=1e-6)
        assert float(row["noise"]) == pytest.approx(noise, rel=6e-2)
    assert any("∇" in row["its gradient is that of"] for row in rows)
    words = set(re.findall(r"[a-z0-9_+]+", data["instead"].lower()))
    assert words & {*choices(), "orch", "kl", "experiments"}, "what to use has a name in orch"
    drawn = target.read_text(encoding="utf-8")
    for line in question.estimators or [line for each in question.curves() for line in each.lines]:
        assert html.escape(line, quote=False) in drawn


def _of_the_laboratory(configuration: KlConfiguration, on_policy: bool) -> tuple[float, float]:
    """Return bias and noise near the reference, in lengths of the true gradient."""
    where = NEAR_WIDE if TABLE[configuration.estimator].top else NEAR
    setting = LabSetting(where[0], where[1], NUM_TOKENS, None if on_policy else where[2])
    true = gradients(setting)["sequence_reverse_kl"]
    moments, length = exact(setting, [configuration]), np.linalg.norm(true)
    off = float(np.linalg.norm(moments.mean[0] - true) / length)
    return off, float(np.sqrt(moments.variance[0].sum()) / length)


CHARGED = {
    "every token of the response": "response",
    "the token and those before it": "to_go",
    "its own token": "token",
}
BASELINES = {
    "leave-one-out": {"leave_one_out"},
    "the group's mean": {"group", "group_mean"},
    "outside it": {"none"},
}
LIBRARIES = {"SkyRL": "skyrl", "OpenRLHF": "openrlhf", "TRL": "trl", "Prime-RL": "prime_rl"}


def test_what_is_said_of_libraries_was_measured_with_their_own_functions() -> None:
    """The rows that name an advantage of orch's, against the stored evidence."""
    ((_, rows),) = QUESTIONS["same-settings"].rows
    compared = 0
    for name, advantages, charged, baseline, _ in rows:
        library, version = name.split()
        evidence = stored.read(LIBRARIES.get(library, library), version)
        assert evidence is not None
        measured = evidence["reward"]
        if library == "Prime-RL":
            measured = {"its own (teacher_tau)": evidence["natives"][1]["reward"]}
        for advantage in advantages.replace("RLOOTrainer", "rloo").split(", "):
            if advantage in measured and "critic" not in baseline:
                assert measured[advantage]["within"] == CHARGED[charged], name
                assert measured[advantage]["others"] in BASELINES[baseline], name
                compared += 1
    assert compared == 8


def test_every_question_has_a_picture(tmp_path: Path) -> None:
    for argv in (["k3", "loss"], ["rb", "both"], *([name] for name in QUESTIONS)):
        target = tmp_path / f"{argv[0]}.svg"
        done = CliRunner().invoke(explain, [*argv, "--picture", str(target)])
        assert done.exit_code == 0, done.output
        assert target.stat().st_size > 1000
    for argv, sentence in ((["tis+kl", "loss"], "takes no placement"),):
        done = CliRunner().invoke(explain, [*argv, "--picture", str(tmp_path / "x.svg")])
        assert done.exit_code != 0
        assert sentence in done.output + str(done.exception)
    with pytest.raises(LaboratoryError, match="not both in one picture"):
        draw_terms(["k1", "full"], tmp_path / "x.svg")


def test_a_picture_over_the_vocabulary_is_the_gradient_of_its_penalty() -> None:
    """By differences; the full sum lies on the true curve, and a sum of four tokens does not."""
    penalty, gradient = curves_of(["full", "top4", "top4_tail", "js", "full_forward"])
    step = penalty.points[1] - penalty.points[0]
    for name, values in penalty.lines.items():
        numeric = np.gradient(np.array(values), step)
        off = np.abs(numeric - np.array(gradient.lines[name]))[1:-1]
        assert np.median(off) < 1e-4, name
    assert penalty.lines["full"] == next(iter(penalty.lines.values()))
    assert np.min(penalty.lines["top4"]) < -0.01, "a truncated sum is below 0: it is no divergence"
    assert np.min(penalty.lines["top4_tail"]) > -1e-12


@pytest.mark.parametrize("name", ["deepseek"])
def test_a_name_that_is_none_is_refused_with_those_there_are(name: str) -> None:
    done = CliRunner().invoke(explain, [name])
    assert done.exit_code == 2
    assert "gspo+k3" in done.output


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (("opd", "top-k", "--json"), "opd-top-k"),
        (("opd", "top", "k", "--json"), "opd-top-k"),
        (("--json", "gspo", "+", "k3"), "gspo+k3"),
        (("tis", "kl", "--json"), "tis+kl"),
        (("icepop", "--json"), "tis+kl"),
        (("dppo", "--json"), "dppo_tv"),
        (("luspo", "--json"), "gspo"),
    ],
)
def test_a_question_needs_no_quotes(words: tuple[str, ...], name: str) -> None:
    """`orch explain opd top-k` was a usage error: top-k is no placement."""
    found = CliRunner().invoke(explain, list(words))
    assert found.exit_code == 0, found.output
    assert json.loads(found.stdout)["name"] == name


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("cispo", "the ratio at most 5, no lower bound (loss.clip low 1, high 4,"),
        ("gspo", "the geometric mean ratio in [0.9997, 1.0004]"),
        ("vespo", "bounds none"),
        ("gspo+k1", "0 (no pull)"),
        ("gspo+k1", "(pushes away)"),
        ("--help", "what a policy loss keeps of the gradient"),
    ],
)
def test_bounds_and_zeros_of_a_policy_loss_are_in_words(words: str, expected: str) -> None:
    text = " ".join(CliRunner().invoke(explain, [words]).output.split())
    assert expected in text
    assert "e-17" not in text


def test_each_policy_loss_has_its_bounds_in_words() -> None:
    for entry in POLICY_LOSSES.values():
        assert bool(entry.bounds_in_words) is bool(entry.measure), entry.name


def test_a_policy_loss_is_explained_in_few_lines_and_fully_with_v() -> None:
    short = CliRunner().invoke(explain, ["gspo"]).output
    assert "none to the policy that sampled" in short
    assert "instead" in short
    assert len(short.splitlines()) < 22
    assert "Zheng et al." not in short


def test_a_question_takes_no_placement() -> None:
    assert CliRunner().invoke(explain, ["opd", "top-k", "loss"]).exit_code == 2
