"""What a release changes: launches by key, mathematics by evidence."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from orchestrator import plugins
from orchestrator.cli import orch as group
from orchestrator.errors import SelectionError, UnsupportedSetting
from orchestrator.evidence import stored
from orchestrator.evidence.cells import settings, term
from orchestrator.lab.probes.drift import arguments, changes, drift
from orchestrator.records import Cell
from orchestrator.settings import Resources
from orchestrator.spec import load
from orchestrator.spec.expand import expand
from tests.command_line import ROOT, orch

VERL = (("verl", "0.8.0"), ("verl", "0.9.1"))
SPEC = ROOT / "experiments" / "comedy_full.yaml"


def cell(library: str = "verl", **more: Any) -> Cell:
    wanted = settings(library, "0.9.1" if library == "verl" else "0.11.2", term("k3", "loss"))
    return Cell(
        id="c1",
        slug="x",
        studies=("x",),
        axes={},
        settings=wanted.model_copy(update=more),
        resources=Resources(num_nodes=2, gpus_per_node=4),
    )


def found(one: Cell, releases: Any = VERL) -> dict[str, tuple[str, str]]:
    before, after = releases
    told = changes(one, before, after, plugins.load(before[0]).translate)
    return {f"{each.kind} {each.what}": (each.before, each.after) for each in told}


def test_arguments_are_told_by_key() -> None:
    argv = ["python", "-m", "x.main", "a.b=1", "+c=d=e", "--flag", "1", "2", "--on", "--k=v"]
    assert arguments(argv) == {
        "word 1": "python",
        "word 2": "-m",
        "word 3": "x.main",
        "a.b": "1",
        "c": "d=e",
        "--flag": "1 2",
        "--on": "",
        "--k": "v",
    }


@given(st.lists(st.text(max_size=8), max_size=8))
def test_any_argv_can_be_told(argv: list[str]) -> None:
    assert len(arguments(argv)) <= len(argv)


def test_a_release_against_itself_changes_nothing() -> None:
    for release in VERL:
        assert found(cell(), (release, release)) == {}


def test_new_and_changed_arguments_are_found_and_the_version_is_none() -> None:
    told = found(cell())
    assert told["argument trainer.use_v1"] == ("(absent)", "True")
    assert told["argument actor_rollout_ref.rollout.seed"] == ("(absent)", "0")
    assert not any("0.9.1" in after for _, after in told.values())
    assert "ledger seed" in told


def test_renamed_arguments_are_told_as_that() -> None:
    told = found(cell("openrlhf"), (("openrlhf", "0.10.1.post2"), ("openrlhf", "0.11.2")))
    renamed = [what for what in told if what.startswith("renamed")]
    assert "renamed --init_kl_coef -> --algo.kl.init_coef" in renamed
    assert "renamed --pretrain -> --actor.model_name_or_path" in renamed
    assert all(before == after for what, (before, after) in told.items() if what in renamed)
    assert "argument --actor.loss_agg_mode" in told


def test_a_cell_that_only_one_release_runs_is_told() -> None:
    one = cell("openrlhf").model_copy(
        update={"settings": settings("openrlhf", "0.11.2", term("rho_k3", "loss"))}
    )
    both = (("openrlhf", "0.10.1.post2"), ("openrlhf", "0.11.2"))
    assert found(one, both)["offered the cell"][1] == "accepted"
    assert found(one, both[::-1])["refused the cell"][0] == "accepted"


@pytest.fixture
def other(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Evidence on verl 0.9.1 that can be changed, as if a release had changed its code."""
    own = stored.read
    changed = {v: copy.deepcopy(own("verl", v)) for _, v in VERL}
    monkeypatch.setattr(stored, "read", lambda _, version: changed[version])
    return changed["0.9.1"]


def test_changed_mathematics_is_told_for_the_cells_it_touches(other: Any) -> None:
    other["loss"]["token_mean"]["kl"] = "sequence_mean"
    for name in other["names"]:
        if name["name"] == "k3":
            name |= {"value_bound": 20.0, "flat_below": -3.2}
    told = found(cell())
    assert "kl=sequence_mean" in told["objective how the loss is averaged"][1]
    before, after = told["objective value, gradient and bounds of k3 in the loss"]
    assert "±10" in before
    assert "±20" in after
    plain = cell(kl=term("k1", None))
    assert not any(what.startswith("objective") for what in found(plain))
    assert not any("bounds" in what for what in found(cell(kl=term("k2", "loss"))))


def test_another_objective_is_told(other: Any) -> None:
    cells = {(c["estimator"], c["placement"], c["on_policy"]): c for c in other["cells"]}
    wanted = cells["k3", "loss", True]
    wanted |= {"objective": "zero", "terms": []}
    told = found(cell())["objective what its KL term optimises"]
    assert told == ("token-level forward KL", "nothing: zero-mean noise")


def test_cells_of_one_change_are_one_group_whatever_their_seed() -> None:
    cells = [each for each in expand(load(SPEC)) if each.settings.backend.name == "verl"]
    groups = drift(cells, *VERL, plugins.load("verl").translate)
    assert sum(len(group.cells) for group in groups) == len(cells)
    seeds = {
        change.after
        for group in groups
        for change in group.changes
        if change.what == "actor_rollout_ref.rollout.seed"
    }
    assert seeds == {"0 | 1 | 2"}


# ---------------------------------------------------------------- the command

CHANGED, SAME = ("verl@0.8.0", "verl@0.9.1"), ("verl@0.9.1", "verl@0.9.1")


def run(before: str, after: str, *more: str) -> Any:
    return orch(ROOT, "audit", "--from", before, "--to", after, SPEC, *more)


def test_the_command_exits_2_where_something_changes() -> None:
    done = run(*CHANGED, "--json", "-w", "study=onpolicy")
    assert done.returncode == 3, done.stderr
    told = json.loads(done.stdout)
    assert told["cells"] == told["changed"] == sum(len(g["cells"]) for g in told["groups"])
    assert told["rewritten"] == ["trainer/ppo/core_algos.py:agg_loss"]
    assert "trainer.use_v1" in {change["what"] for change in told["groups"][0]["changes"]}


def test_the_command_exits_0_where_nothing_does() -> None:
    done = run(*SAME)
    assert done.returncode == 0
    assert "nothing changes for" in done.stdout


@pytest.mark.parametrize(
    ("arguments_", "sentence", "code"),
    [
        (("verl@0.8.0", "skyrl@0.4.0"), "two libraries", 2),
        (("verl", "verl@0.9.1"), "names no release: write LIBRARY@VERSION", 2),
        (("verl@0.8.1", "verl@0.9.1"), "orch does not drive verl 0.8.1 (it drives: ", 1),
        (("virl@0.8.0", "verl@0.9.1"), "no library 'virl' to measure, did you mean 'verl'?", 1),
        (("verl@0.8.0", "verl@0.9.1", "-w", "study=nowhere"), "selects none of", 1),
    ],
)
def test_mistakes_are_sentences(arguments_: tuple[str, ...], sentence: str, code: int) -> None:
    done = run(*arguments_)
    assert done.returncode == code
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr


def test_a_spec_that_is_not_there_is_a_sentence(tmp_path: Path) -> None:
    done = orch(tmp_path, "audit", "--from", "verl@0.8.0", "--to", "verl@0.9.1", "no.yaml")
    assert done.returncode == 1
    assert "Traceback" not in done.stderr


SCRIPT = "trl grpo --dataset_name d --reward_funcs f --beta 0.04 {}\n"


@pytest.mark.parametrize(
    ("flags", "before", "after", "code", "expected"),
    [
        ("", "1.9.2", "1.10.0", 3, "because use_bias_correction_kl is True by default in 1.10.0"),
        (
            "--use_bias_correction_kl false",
            "1.9.2",
            "1.10.0",
            3,
            "the settings of 1 launch from trl@1.9.2 to trl@1.10.0 mean the same, but orch has",
        ),
        ("--use_vllm true", "0.22.0", "0.23.0", 3, "what surrounds the KL changed"),
        ("--vllm_device auto", "0.17.0", "0.18.0", 3, "has no --vllm_device"),
    ],
)
def test_a_script_between_releases(
    tmp_path: Path, flags: str, before: str, after: str, code: int, expected: str
) -> None:
    script = tmp_path / "run.sh"
    script.write_text(SCRIPT.format(flags))
    done = orch(tmp_path, "audit", "run.sh", "--from", f"trl@{before}", "--to", f"trl@{after}")
    assert done.returncode == code, done.stderr
    assert expected in done.stdout
    assert "Next: orch audit run.sh" in done.stderr, "no spec, so nothing to plan"
    if code == 3 and not expected.startswith("the settings"):
        assert "the forward KL of each token" in done.stdout


def test_a_rule_that_is_new_is_the_reason_where_no_default_differs(tmp_path: Path) -> None:
    """NeMo-RL 0.7.0 gives the KL the score's gradient; to override a base file is no slip."""
    (tmp_path / "base.yaml").write_text(
        "grpo: {num_prompts_per_step: 32, num_generations_per_prompt: 16}\n"
        "loss_fn: {reference_policy_kl_penalty: 0.01, reference_policy_kl_type: k2}\n"
        "policy: {train_global_batch_size: 512}\n"
    )
    (tmp_path / "mine.yaml").write_text(
        "defaults: base.yaml\nloss_fn: {reference_policy_kl_penalty: 0.05}\n"
    )
    releases = ("--from", "nemo_rl@0.6.0", "--to", "nemo_rl@0.7.0")
    done = orch(tmp_path, "audit", "mine.yaml", *releases, "--json")
    (change,) = json.loads(done.stdout)["changed"]
    assert change["because"][0].startswith("since 0.7.0 the KL is multiplied by exp(log π - sg(log")
    audited = orch(tmp_path, "audit", "mine.yaml").stdout
    assert "β = 0.05" in audited
    assert "times" not in audited


@pytest.mark.parametrize(
    ("library", "script", "known"),
    [
        ("trl", "trl grpo --dataset_name d --reward_funcs f --beta 0.04\n", "1.16.0"),
        ("ms_swift", "swift rlhf --rlhf_type grpo --model m --beta 0.04\n", "4.5.2"),
    ],
)
def test_a_release_without_a_table_is_said_so(
    tmp_path: Path, library: str, script: str, known: str
) -> None:
    (tmp_path / "run.sh").write_text(script)
    releases = ("--from", f"{library}@{known}", "--to", f"{library}@99.1.0")
    done = orch(tmp_path, "audit", "run.sh", *releases)
    sentence = f"{library} 99.1.0, of which orch has no table, has the keys and defaults of {known}"
    assert done.returncode == 1
    assert f"nothing was compared: one would take for granted that {sentence}" in done.stderr
    audited = orch(tmp_path, "audit", "run.sh", "--library", f"{library}@99.1.0", "-v").stdout
    assert "This is certain" not in audited
    assert "of which orch has no table" in " ".join(audited.split())


def test_a_release_that_nothing_names_is_taken_for_granted(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text("swift rlhf --rlhf_type grpo --model m --beta 0.04\n")
    guessed = orch(tmp_path, "audit", "run.sh").stdout
    assert "taken for granted: the release is 4.5.2: nothing names it" in " ".join(guessed.split())
    assert "(a guess)" in guessed
    named = orch(tmp_path, "audit", "run.sh", "--library", "ms_swift@4.5.2").stdout
    assert "(a guess)" not in named
    assert "taken for granted" not in named


def test_a_recipe_is_no_spec_and_a_script_without_the_library_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("model_name_or_path: m\nnum_generations: 8\n")
    done = orch(tmp_path, "audit", "c.yaml", "--from", "trl@0.18.2", "--to", "trl@0.19.0", "--json")
    (change,) = json.loads(done.stdout)["changed"]
    assert change["objective"]
    assert change["because"] == ["beta is 0.0 by default in 0.19.0 (0.04 in 0.18.2)"]
    (tmp_path / "v.sh").write_text("python -m verl.trainer.main_ppo algorithm.adv_estimator=grpo")
    done = orch(tmp_path, "audit", "v.sh", "--from", "trl@0.18.2", "--to", "trl@0.19.0")
    assert "starts nothing of trl" in done.stderr


GSPO = (
    "python3 -m verl.trainer.main_ppo actor_rollout_ref.actor.policy_loss.loss_mode=gspo "
    "actor_rollout_ref.actor.use_kl_loss=True {}\n"
)


def test_gspo_is_aggregated_by_another_rule_since_verl_0_9_1(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(GSPO.format(""))
    done = orch(tmp_path, "audit", "--from", "verl@0.9.0", "--to", "verl@0.9.1", "run.sh")
    assert done.returncode == 3, done.stderr
    assert "of 0.9.0: each response's tokens are averaged before the responses" in done.stdout
    before = orch(tmp_path, "audit", "--from", "verl@0.8.0", "--to", "verl@0.9.0", "run.sh")
    assert before.returncode == 0, before.stdout


def test_a_launch_that_no_release_determines_is_not_compared(tmp_path: Path) -> None:
    text = GSPO.format("actor_rollout_ref.actor.kl_loss_coef=$KL")
    (tmp_path / "run.sh").write_text(text)
    done = orch(tmp_path, "audit", "--from", "verl@0.9.0", "--to", "verl@0.9.1", "run.sh")
    assert (done.returncode, done.stdout) == (1, "")
    assert "nothing was compared: the launch of line 1 is not determined" in done.stderr


def test_cells_that_neither_release_accepts_are_not_compared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    backend = plugins.load("verl")

    def translate(cell: Cell, _: object) -> None:
        raise UnsupportedSetting("verl", "kl.beta", 1.0, (0.0,), "Set kl.beta=0.")

    monkeypatch.setattr(backend, "translate", translate)
    words = ["audit", "--from", SAME[0], "--to", SAME[1], str(SPEC)]
    done = CliRunner().invoke(group, words, standalone_mode=False)  # here: `translate` is patched
    assert isinstance(done.exception, SelectionError)
    assert "nothing was compared: " in str(done.exception)
    assert "which neither release accepts" in str(done.exception)
    assert done.stdout == ""
