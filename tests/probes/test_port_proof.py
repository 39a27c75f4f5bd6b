"""`orch port --prove`: the same rollouts in the own functions of both libraries."""

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import cache
from itertools import permutations
from pathlib import Path

import pytest
from click.testing import CliRunner

from orchestrator.audit.port import Ported, PortRow, launch_of, moved, ported
from orchestrator.cli import orch
from orchestrator.errors import EnvironmentFault
from orchestrator.lab.probes import port_proof
from orchestrator.lab.probes.port_proof import PortProof, own_launch, prove, text_of
from orchestrator.lab.probes.protocol import ProbeTarget, sources
from orchestrator.records import LaunchPlan
from tests.backends.environments import contract_python, root
from tests.probes.ports import CHANGES, RELEASES, VERL, script

pytestmark = [pytest.mark.slow, pytest.mark.long(60)]  # runs two libraries' functions a pair

PAGE = Path(__file__).parents[2] / "docs" / "port.md"
PAIRS = list(permutations(RELEASES, 2))


@pytest.fixture(scope="module")
def targets() -> Iterator[dict[str, ProbeTarget]]:
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(_source(name, version)).where
            for name, version in RELEASES.items()
        }


def _source(library: str, version: str):  # type: ignore[no-untyped-def]  # a context manager
    contract_python(library, version)
    return sources(library, version, within=root())


@cache
def launched(library: str, other: str) -> Ported:
    launch, reading, _ = launch_of(script(library, other), "train.sh", {}, RELEASES)
    return ported(launch, reading)


def port(library: str, other: str) -> tuple[Ported, LaunchPlan, list[PortRow]]:
    launch = launched(library, other)
    plan, rows = moved(launch, other, RELEASES[other], CHANGES.get(other, {}))
    assert plan is not None, [row.note for row in rows]
    return launch, plan, rows


PROOFS: dict[tuple[str, str], PortProof] = {}


@pytest.mark.parametrize(("library", "other"), PAIRS)
def test_a_port_has_the_launchs_gradient_or_a_row(
    targets: dict[str, ProbeTarget], library: str, other: str
) -> None:
    proof = prove(*port(library, other), targets[library], targets[other])
    PROOFS[library, other] = proof
    assert proof.stale
    assert proof.num_tokens > 100
    if {library, other} == {"openrlhf", "skyrl"}:
        assert not proof.is_equal
        assert {row.field for row in proof.rows} == {"loss.aggregation"}, list(text_of(proof))
    else:
        assert proof.is_equal, list(text_of(proof))


def test_the_page_has_what_was_measured(targets: dict[str, ProbeTarget]) -> None:
    """Run after the pairs; a pair that this process has not asked is asked here."""
    for library, other in PAIRS:
        if (library, other) not in PROOFS:
            PROOFS[library, other] = prove(*port(library, other), targets[library], targets[other])
    names = dict.fromkeys(library for library, _ in PAIRS)
    lines = ["| from \\ to | " + " | ".join(f"{n} {RELEASES[n]}" for n in names) + " |"]
    lines.append("|---|" + "---|" * len(names))
    for library in names:
        cells = ["" if other == library else _cell(PROOFS[library, other]) for other in names]
        lines.append(f"| {library} | {' | '.join(cells)} |")
    assert "\n".join(lines) in PAGE.read_text(encoding="utf-8"), "\n".join(lines)
    assert sum(proof.is_equal for proof in PROOFS.values()) >= 8


PRIME = """\
max_steps = 100
seq_len = 1536
[model]
name = "Qwen/Qwen2.5-0.5B"
[trainer.optim]
lr = 1e-6
[trainer.loss]
kl_tau = 0.0
dppo_mask_low = 1.0
dppo_mask_high = 1.0
[orchestrator]
batch_size = 128
group_size = 8
[orchestrator.train.sampling]
max_completion_tokens = 1024
"""
"""Its own loss, with its masks open and without kl_tau."""


@pytest.mark.skipif("ORCH_PRIME_RL_CHECKOUT" not in os.environ, reason="needs a checkout")
@pytest.mark.parametrize("other", RELEASES)
def test_the_ratio_of_prime_rl_is_to_the_engine(
    targets: dict[str, ProbeTarget], other: str
) -> None:
    launch, reading, _ = launch_of(PRIME, "rl.toml", {}, {"prime_rl": "0.8.0 --library"})
    changes = CHANGES.get(other, {})
    plan, rows = moved(ported(launch, reading), other, RELEASES[other], changes)
    assert plan is not None
    with sources("prime_rl", "0.8.0") as prime:
        proof = prove(ported(launch, reading), plan, rows, prime.where, targets[other])
    assert not proof.is_equal
    assert "an engine that agrees" in proof.without
    assert {row.field for row in proof.rows} == {"loss.correction"}


def _cell(proof: PortProof) -> str:
    if proof.is_equal:
        return "equal"
    return ", ".join(f"`{row.field}`" for row in proof.rows) or "not explained"


def test_a_difference_that_no_row_explains_is_one(targets: dict[str, ProbeTarget]) -> None:
    """The port has twice the beta, and no row says so."""
    launch, plan, rows = port("verl", "skyrl")
    argv = tuple(word.replace("kl_loss_coef=0.05", "kl_loss_coef=0.1") for word in plan.argv)
    assert argv != plan.argv
    rows = [row for row in rows if not row.field.startswith("kl.")]
    proof = prove(launch, replace_argv(plan, argv), rows, targets["verl"], targets["skyrl"])
    assert not proof.is_equal
    assert not proof.is_explained
    text = "\n".join(text_of(proof))
    assert "the same where the policy is the reference policy" in text
    assert "No row of the port explains it" in text


def replace_argv(plan: LaunchPlan, argv: tuple[str, ...]) -> LaunchPlan:
    return plan.model_copy(update={"argv": argv})


def test_rollouts_without_a_gradient_prove_nothing(
    targets: dict[str, ProbeTarget], monkeypatch: pytest.MonkeyPatch
) -> None:
    own = port_proof.rollouts

    def flat(*given, **named):  # type: ignore[no-untyped-def]  # the function's own
        batch = own(*given, **{**named, "without": ("kl",)})
        return {**batch, "rewards": [1.0] * len(batch["rewards"])}

    monkeypatch.setattr(port_proof, "rollouts", flat)
    with pytest.raises(EnvironmentFault, match="nothing was compared"):
        prove(*port("verl", "skyrl"), targets["verl"], targets["skyrl"])


def test_the_words_of_a_launch_are_its_scripts_own() -> None:
    words = own_launch(launched("openrlhf", "verl"))["argv"]
    at = words.index("--actor.eps_clip_low_high")
    assert words[at + 1 : at + 3] == ["0.2", "0.28"]
    less = own_launch(launched("openrlhf", "verl"), "actor.eps_clip_low_high")["argv"]
    assert less == [*words[:at], *words[at + 3 :]]
    verl = own_launch(launched("verl", "skyrl"))["argv"]
    assert "actor_rollout_ref.actor.kl_loss_type=low_var_kl" in verl
    trl = own_launch(launched("trl", "verl"))["argv"]
    assert trl[0] == "grpo"
    assert trl[trl.index("--epsilon_high") + 1] == "0.28"
    unread = replace(launched("verl", "skyrl"), left={"data.train_batch_size": port_proof.UNREAD})
    assert not any(word.startswith("data.train_batch_size") for word in own_launch(unread)["argv"])


def test_the_command_says_it_first(
    targets: dict[str, ProbeTarget], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    del targets  # the environments are there
    monkeypatch.setenv("ORCH_ENVIRONMENTS", str(root()))
    file = tmp_path / "train.sh"
    file.write_text(VERL)
    words = ["port", str(file), "--library", "verl@0.9.1", "--to", "skyrl@0.4.0", "--prove"]
    done = CliRunner().invoke(orch, words, standalone_mode=False)
    assert done.exception is None, done.exception
    assert done.return_value == 0
    first, *_ = done.output.splitlines()
    assert first.startswith("verl 0.9.1 and skyrl 0.4.0 have the same gradient, to ")
    printed = CliRunner().invoke(orch, [*words, "--json"], standalone_mode=False)
    assert json.loads(printed.output)["proof"]["is_equal"] is True
