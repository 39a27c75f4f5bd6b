"""`orch audit --summary` counts the launches of a tree."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from audit.scripts import COEFFICIENT, IN_REWARD, ON_POLICY, TYPE, USE_LOSS, VERL, only
from orchestrator.audit import UnreadableScript, audit
from orchestrator.audit.bounds import CLIP, ENGINE_WEIGHT, NEVER_ACTS, NO_BOUND, SAMPLER_KL
from orchestrator.audit.counts import (
    OTHER,
    REFERENCE,
    UNDETERMINED,
    facts,
    headline,
    launches,
    tables,
)
from orchestrator.cli.audit import command

ACTOR = "actor_rollout_ref.actor"
NONE = f"{VERL} {IN_REWARD}=False"
SMALL = f"{NONE} data.train_batch_size=512 {ACTOR}.ppo_mini_batch_size=128"
K3 = f"{VERL} {IN_REWARD}=False {USE_LOSS}=True {TYPE}=low_var_kl {COEFFICIENT}"
CORRECTED = "algorithm.rollout_correction.rollout_is=token"


TEACHER = '[orchestrator]\nbatch_size = 128\ngroup_size = 16\n[orchestrator.algo]\ntype = "opd"\n'


@pytest.mark.parametrize(
    ("text", "anchor", "name"),
    [
        (f"{K3}=0.001", REFERENCE, "x.sh"),
        (f"{K3}=0", CLIP, "x.sh"),
        (f"{K3}=$(cat beta)", UNDETERMINED, "x.sh"),
        (SMALL, CLIP, "x.sh"),
        (f"{NONE} {ON_POLICY}", NEVER_ACTS, "x.sh"),
        (f"{NONE} {ON_POLICY} {CORRECTED}", ENGINE_WEIGHT, "x.sh"),
        (f"{SMALL} {ACTOR}.policy_loss.loss_mode=gspo", "GSPO", "x.sh"),
        (f"{SMALL} {ACTOR}.policy_loss.loss_mode=gpg", NO_BOUND, "x.sh"),
        ("[trainer.loss]\nkl_tau = 0.001\n[orchestrator]\nbatch_size = 4\n", SAMPLER_KL, "x.toml"),
        (TEACHER, OTHER, "x.toml"),
    ],
)
def test_what_holds_a_launch_has_a_name(text: str, anchor: str, name: str) -> None:
    assert facts(only(text, name)).anchor == anchor


def test_the_file_of_an_inference_server_is_no_launch() -> None:
    server = '[vllm]\nmodel = "m"\n[deployment]\ntype = "disaggregated"\n[slurm]\njob_name = "s"\n'
    with pytest.raises(UnreadableScript, match="no launch"):
        audit(server, "infer.toml")


def test_a_command_counts_once_whatever_its_cases() -> None:
    loop = f'for b in 0.001 0.01; do\n{K3}=$b\ndone\nif [ "$1" = kl ]; then\n{SMALL}\nfi\n'
    every = audit(loop, "x.sh")
    assert len(every) > 2
    assert len(launches(every)) == 2


def test_the_tables_add_up() -> None:
    texts = [*[f"{K3}={beta}" for beta in ("0.001", "0.003", "0.1")], SMALL, f"{K3}=$(cat beta)"]
    every = [facts(only(text)) for text in texts]
    assert "1 (25 %) have no KL to a reference policy" in headline(every, 5)
    anchors, terms, *_ = tables(every)
    assert {name: n for name, n, _ in anchors.rows} == {
        REFERENCE: 3,
        CLIP: 1,
        UNDETERMINED: 1,
    }
    ((name, n, more),) = terms.rows
    assert (name, n) == ("k3 in the loss", 3)
    assert more.startswith("0.001 to 0.1, median 0.003; ")


def test_the_command_prints_one_table_for_a_tree(tmp_path: Path) -> None:
    for i, text in enumerate((f"{K3}=0.001", SMALL, f"{SMALL} {COEFFICIENT}=1")):
        (tmp_path / f"{i}.sh").write_text(text)
    done = CliRunner().invoke(command, ["--summary", str(tmp_path)], standalone_mode=False)
    assert "3 launches in 3 files: 2 (67 %) have no KL" in done.stdout
    assert "a KL setting without effect" in done.stdout
    assert str(tmp_path) not in done.stdout
    words = ["--summary", "--json", str(tmp_path)]
    plain = json.loads(CliRunner().invoke(command, words, standalone_mode=False).stdout)
    assert plain["launches"] == 3
    assert plain["tables"][0]["rows"][0] == [CLIP, 2, "67 %"]
