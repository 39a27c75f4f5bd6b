"""The code beside a script: its functions compared with the releases', its lines, its own keys."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir

from backends.verl.audit.composed import ComposedKeys
from lab.adopt import loss_code
from orchestrator import plugins
from orchestrator.audit import checkout
from orchestrator.audit.checkout import KnownCode, functions, places
from orchestrator.audit.judge import AuditFinding
from orchestrator.audit.libraries import NeighbourFiles, Projects
from orchestrator.audit.pipeline import audit_file
from orchestrator.audit.reading import hydra_overrides
from orchestrator.identity import flatten
from orchestrator.library.launches import CommandWord
from tests.backends.environments import contract_python

PENALTY = """
def kl_penalty(logprob, ref_logprob, kl_penalty):
    if kl_penalty == "k1":
        return logprob - ref_logprob
    raise NotImplementedError
"""
SAME = '''
def kl_penalty(
    logprob: "Tensor", ref_logprob, kl_penalty
) -> "Tensor":
    """A docstring, annotations and line breaks change nothing."""
    if kl_penalty == 'k1':  # nor does a comment
        return (logprob - ref_logprob)
    raise NotImplementedError
'''
CORE = "verl/trainer/ppo/core_algos.py"
TRAIN = """python -m verl.trainer.main_ppo actor_rollout_ref.actor.use_kl_loss=True \\
    actor_rollout_ref.actor.kl_loss_type=mse algorithm.adv_estimator=rloo {more}
"""


def of_release(texts: Mapping[str, str], version: str) -> KnownCode:
    code = {
        path: {name: {each.digest: [version]} for name, each in functions(text).items()}
        for path, text in texts.items()
    }
    return KnownCode(tuple(texts), "kl_penalty", code=code)


def audited(
    project: Path,
    texts: Mapping[str, str],
    more: str,
    known: KnownCode,
    monkeypatch: pytest.MonkeyPatch,
) -> AuditFinding:
    for path, text in texts.items():
        (project / path).parent.mkdir(parents=True, exist_ok=True)
        (project / path).write_text(text)
    script = project / "run it.sh"
    script.write_text(TRAIN.format(more=more))
    monkeypatch.setattr("orchestrator.audit.code_beside.known_code", lambda library: known)
    _, (finding,) = audit_file(script, {"verl": "0.9.1 test"}, Projects())
    return finding


def test_a_digest_is_of_what_the_code_does() -> None:
    one, same = functions(PENALTY)["kl_penalty"], functions(SAME)["kl_penalty"]
    assert one.digest == same.digest
    assert functions(PENALTY.replace("-", "+"))["kl_penalty"].digest != one.digest
    assert functions(PENALTY.replace('"k1"', '"k2"'))["kl_penalty"].digest != one.digest
    assert functions("def broken(:") == {}


def test_a_changed_function_is_taken_for_granted_with_its_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = of_release({CORE: PENALTY}, "0.9.1")
    changed = audited(tmp_path, {CORE: "\n" + PENALTY.replace("-", "+")}, "", known, monkeypatch)
    assert any(f"read {CORE}:3-6" in each for each in changed.assumes)
    assert changed.confidence == "assumed"

    equal = audited(tmp_path, {CORE: SAME}, "", known, monkeypatch)
    assert not any(CORE in each for each in equal.assumes)


def test_a_forks_key_is_answered_with_the_lines_that_read_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "# kl_extra in a comment\n" * 2 + "kl_extra = 1\n" + PENALTY
    known = of_release({CORE: PENALTY}, "0.9.1")
    more = "+actor_rollout_ref.actor.kl_extra=0.5"
    finding = audited(tmp_path, {CORE: code}, more, known, monkeypatch)
    assert finding.verdict == "undetermined"
    assert f"read {CORE}:3" in finding.why


def test_a_forks_other_key_is_looked_for_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = of_release({CORE: PENALTY}, "0.9.1")
    more = "+actor_rollout_ref.actor.colour=blue"
    unread = audited(tmp_path, {CORE: PENALTY}, more, known, monkeypatch)
    assert any("no file beside it that has the KL" in each for each in unread.assumes)
    read = audited(tmp_path, {CORE: PENALTY + "x = c.colour\n"}, more, known, monkeypatch)
    assert any(
        "colour: not keys of this release" in each and f"(read {CORE}:6)" in each
        for each in read.assumes
    )


def test_advice_names_only_keys_that_the_checkouts_parser_has(tmp_path: Path) -> None:
    script = tmp_path / "train.sh"
    script.write_text(
        "python -m openrlhf.cli.train_ppo_ray --init_kl_coef 0.01 --use_kl_loss --kl_estimator k3\n"
    )
    _, (advised,) = audit_file(script, {"openrlhf": "0.8.5 test"}, Projects())
    advice = {edit.key for change in advised.changes for edit in change.edits if edit.text}
    assert advice
    parser = tmp_path / "openrlhf/cli/train_ppo_ray.py"
    parser.parent.mkdir(parents=True)
    rest = {"init_kl_coef", "use_kl_loss", "kl_estimator"} - advice
    parser.write_text("".join(f'parser.add_argument("--{name}")\n' for name in rest))
    _, (silent,) = audit_file(script, {"openrlhf": "0.8.5 test"}, Projects())
    named = {edit.key for change in silent.changes for edit in change.edits if edit.text}
    assert not named & advice


DEFAULTS = """
defaults:
- engine: dp
- part@a.b: ${engine}_part
- optional part@nowhere: absent
- nothing: null
- part: [one, two]
- whole@_global_: one
- plain
- override part/deep@part.deep: other
- _self_
top: {x: 1}
"""
CONFIGURATION = {
    "main.yaml": DEFAULTS,
    "plain.yaml": "of_plain: 1",
    "engine/dp.yaml": "# @package _global_\nof_engine: 1",
    "engine/mp.yaml": "# @package _global_\nof_other_engine: 1",
    "part/dp_part.yaml": "defaults: [base, _self_]\nof_dp: {y: 2}",
    "part/mp_part.yaml": "of_mp: 1",
    "part/base.yaml": "of_base: 1",
    "part/one.yaml": "defaults: [{deep: this}, {/whole@here: one}, _self_]\nof_one: 1",
    "part/two.yaml": "# @package two.of\nof_two: 1",
    "part/deep/this.yaml": "of_this: 1",
    "part/deep/other.yaml": "of_that: 1",
    "whole/one.yaml": "of_whole: 1",
}


@pytest.mark.parametrize("override", ["", "engine=mp", "part@a.b=base", "+whole@more=one"])
def test_a_defaults_list_is_composed_as_hydra_does(override: str, tmp_path: Path) -> None:
    for name, text in CONFIGURATION.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    with initialize_config_dir(str(tmp_path), version_base="1.3"):
        theirs = flatten(compose("main", [override] if override else []))
    files = {f"c/{name}": text for name, text in CONFIGURATION.items()}
    given = {k: [v] for k, v in hydra_overrides([CommandWord(override)])}
    composed = ComposedKeys(["c"], "main", files, given)
    assert composed.is_whole()
    sections = {
        name for name in composed.values if any(e.startswith(f"{name}.") for e in composed.values)
    }
    assert composed.values.keys() - sections == {name for name, _ in theirs}


@pytest.mark.parametrize("clone", ["verl", "verl-main"])
def test_the_librarys_repository_may_be_a_folder_of_the_project(clone: str, tmp_path: Path) -> None:
    core = tmp_path / clone / CORE
    core.parent.mkdir(parents=True)
    core.write_text(PENALTY)
    files = NeighbourFiles(tmp_path / "scripts/a.sh")
    assert files.get(CORE) == PENALTY
    assert files.get("examples/core_algos.py") is None


def test_a_file_below_an_unknown_folder_is_the_one_beside_and_said(tmp_path: Path) -> None:
    (tmp_path / "examples").mkdir()
    (tmp_path / "examples/kl.yaml").write_text(
        "algorithm: {disable_kl: false, use_kl_loss: true, kl_penalty: mse, kl_coef: 0.02}\n"
    )
    script = tmp_path / "train.sh"
    script.write_text(
        "cd $(pwd)/x\nD=$(pwd)\npython3 -m verl.trainer.main config=$D/examples/kl.yaml "
        "worker.rollout.n=5\n"
    )
    _, (finding,) = audit_file(script, {}, Projects())
    assert (finding.in_loss.active, finding.in_loss.beta) == (True, 0.02)
    said = "examples/kl.yaml beside it is the file that …/examples/kl.yaml names"
    assert said in finding.assumes


def test_places_are_by_file_and_few() -> None:
    beside = {"a.py": "n_agent = 1\nmy_n_agent = 2\n", "b.py": "x.n_agent\n" * 6}
    assert places(["rollout.n_agent"], beside, ("a.py", "b.py")) == [
        "a.py:1",
        "b.py:1, 2, 3, 4 and 2 more",
    ]


@pytest.mark.thorough  # in a library's environment
@pytest.mark.parametrize(
    ("library", "version"),
    [
        ("verl", "0.9.1"),
        ("verl", "0.8.0"),
        ("openrlhf", "0.11.2"),
        ("trl", "1.16.0"),
        ("skyrl", "0.4.0"),
    ],
)
def test_the_kept_digests_are_those_of_the_release(
    library: str, version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Delete a release from the data, read its code again, and get back what was deleted."""
    (site,) = contract_python(library, version).parents[1].glob("lib/python3*/site-packages")
    kept = plugins.folder(library) / loss_code.KEPT
    copy = tmp_path / loss_code.KEPT
    copy.parent.mkdir()
    shutil.copyfile(kept, copy)
    plain = json.loads(copy.read_text())
    for named in plain["code"].values():
        for digests in named.values():
            for releases in digests.values():
                releases[:] = [each for each in releases if each != version]
    copy.write_text(json.dumps(plain))
    monkeypatch.setattr(plugins, "folder", lambda name: tmp_path)
    loss_code.keep(library, version, site)
    assert copy.read_text() == kept.read_text()
    checkout.known_code.cache_clear()
