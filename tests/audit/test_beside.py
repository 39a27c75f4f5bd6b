"""What lies beside a script, and what the tables of the readers hold."""

import itertools
import subprocess
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from audit.scripts import COEFFICIENT, IN_REWARD, ON_POLICY, OPENRLHF, TYPE, USE_LOSS, only
from audit.scripts import GRPO as VERL
from backends.prime_rl.releases import TAU_DEFAULT
from orchestrator.audit import AuditFinding, audit
from orchestrator.audit.libraries import NeighbourFiles, Projects, pins
from orchestrator.audit.render import headline
from orchestrator.audit.summary import instead, summary
from orchestrator.cli.audit import command
from orchestrator.library.key_tables import fields, flags
from orchestrator.library.launches import BOUNDS

N8 = "actor_rollout_ref.rollout.n=8"


def test_a_group_deviation_has_its_numbers() -> None:
    finding = only(f"{VERL} {ON_POLICY} {N8} {IN_REWARD}=True")
    told = " ".join(each.text for each in finding.effects)
    assert "β × 4.67 at 50% solved, × 167 at 10% solved, where the KL is alone in" in told
    assert "rescaled for each prompt by its group's standard deviation" in headline(finding)
    told = dict(summary(finding))["It does"]
    assert "weighs differs: in groups whose task rewards are equal" in told
    assert "weighs little" not in told, "at β 0.001 it counts × 167 where one in ten solves"


def read(text: str, name: str = "run.sh", files: Mapping[str, str] | None = None) -> AuditFinding:
    """Return the only finding on a text."""
    (finding,) = audit(text, name, files=files)
    return finding


SLIME = (
    "GRPO_ARGS=({args})\nray job submit --address=http://127.0.0.1:8265 -- python3 {entry} "
    "--actor-num-nodes 1 --rollout-batch-size 32 --n-samples-per-prompt 8 --global-batch-size 256 "
    "${{GRPO_ARGS[@]}}\n"
)


def slime(
    args: str, entry: str = "train.py", files: Mapping[str, str] | None = None
) -> AuditFinding:
    return read(SLIME.format(args=args, entry=entry), files=files)


def test_slimes_grpo_drops_a_kl_in_the_reward_and_the_change_is_judged() -> None:
    finding = slime("--kl-coef 0.01")
    assert finding.problem
    assert "--kl-coef" in [each.flag for each in finding.inactive]
    assert "k2 in the loss" in [each.words for each in finding.changes]


def test_every_table_names_its_releases_in_order_and_holds_their_defaults() -> None:
    for name in ("slime", "nemo_rl", "open_instruct"):
        tables = import_module(f"backends.{name}.audit.reader").tables()
        order = [tuple(int(n) for n in each.split(".")) for each in tables.versions]
        assert order == sorted(order)
        for version, facts in zip(tables.versions, tables.facts, strict=True):
            table = tables.table(version)
            for key, fact in facts.items():
                assert table.has(key)
                usual = fact.default.strip("[]'")
                assert not fact.values or usual in (*fact.values, "null", "?"), (name, key)


def test_source_keys_reads_wrappers_nested_classes_and_no_code() -> None:
    source = """
class Norm:
    level: str | None = field(default=None, metadata={"choices": ["batch", "group"]})
class Base:
    lr: float = 1e-5
class Actor(Base):
    norm: Norm | None = field(default=None)
    kind: Literal["a", "b"] = "a"
    made: list[str] = field(default_factory=lambda: ["x"])
    odd: int = os.getpid()
"""
    facts = fields(source, "Actor")
    assert facts["lr"] == ("float", "1e-05", ())
    assert facts["norm.level"] == ("str", "?", ("batch", "group"))
    assert facts["kind"].values == ("a", "b")
    assert facts["odd"].default == "?"
    assert fields("def broken(:", "Actor") == {}
    text = 'reset_arg(p, "--kl-coef", type=float, default=0.0)\n'
    text += 'p.add_argument("--on", action="store_true")'
    assert flags(text) == {"kl-coef": ("float", "0.0", ()), "on": ("switch", "false", ())}


@pytest.mark.parametrize(
    ("place", "line", "default"),
    [
        (
            "src/prime_rl/configs/trainer.py",
            'kl_tau: Annotated[float, Field(ge=0, description="The tau.")] = 0.0',
            "0.0",
        ),
        (
            "packages/prime-rl-configs/src/prime_rl/configs/trainer.py",
            "kl_tau: float = Field(1e-3, ge=0)",
            "1e-3",
        ),
    ],
)
def test_the_default_of_kl_tau_in_a_checkout(
    tmp_path: Path, place: str, line: str, default: str
) -> None:
    for path, text in ((place, f"class Loss:\n    {line}\n"), ("configs/x/rl.toml", "")):
        (tmp_path / path).parent.mkdir(parents=True)
        (tmp_path / path).write_text(text)
    found = Projects().versions(tmp_path / "configs/x/rl.toml")
    assert found == {TAU_DEFAULT: f"{default} {place} beside it says so"}


@pytest.mark.parametrize(
    ("name", "text"), [("VERSION", "1.10.0.dev0"), ("trl/__init__.py", '__version__ = "0.17.0"\n')]
)
def test_trls_own_repository_says_its_release(tmp_path: Path, name: str, text: str) -> None:
    """A script of its examples was undetermined beside the file that tells."""
    (tmp_path / ".git").mkdir()
    for folder in ("trl", "examples/scripts"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / name).write_text(text)
    said = Projects().versions(tmp_path / "examples/scripts/grpo.py")["trl"]
    assert said.partition(" ")[0] in text


LOCKED = '[[package]]\nname = "trl"\nversion = "1.11.0"\n'


@pytest.mark.parametrize(
    ("path", "text", "release"),
    [
        (".venv/lib/python3.11/site-packages/trl-1.12.0.dist-info/METADATA", "", "1.12.0"),
        ("uv.lock", LOCKED, "1.11.0"),
        ("poetry.lock", LOCKED, "1.11.0"),
        ("Dockerfile", "FROM python:3.11\nRUN pip install vllm trl[vllm]==1.9.1\n", "1.9.1"),
        ("requirements_rl.txt", "trl==1.8.0\n", "1.8.0"),
        ("setup.sh", "pip install trl==1.7.0\n", "1.7.0"),
        ("environment.yml", "dependencies:\n  - pip:\n    - trl==1.6.0\n", "1.6.0"),
        ("requirements.txt", "# old: trl==1.4.0\ntrl==1.8.0\n", "1.8.0"),
        (
            "Dockerfile",
            "ARG TRL=1.7.0\n# RUN pip install trl==1.4.0\nRUN pip install trl==${TRL}",
            "1.7.0",
        ),
        (
            "requirements.txt",
            "-e git+https://github.com/huggingface/trl.git@v1.8.0#egg=trl",
            "1.8.0",
        ),
        ("requirements.txt", "trl<1.12,>=1.0", "<1.12,>=1.0"),
        ("requirements.txt", "trl~=1.9.0  # trl==1.4.0", "~=1.9.0"),
        ("pyproject.toml", 'dependencies = [\n "x", #"trl==1.4.0",\n "trl<=1.8.0"]', "<=1.8.0"),
    ],
)
def test_the_release_beside_a_script_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, text: str, release: str
) -> None:
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
    (tmp_path / ".git").mkdir()
    file = tmp_path / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    scripts = tmp_path / "scripts"
    scripts.mkdir()
    found = Projects().versions(scripts / "run.sh")
    version, _, why = (found.get("trl") or found[f"trl{BOUNDS}"]).partition(" ")
    assert version == release
    assert path.partition("/")[0] in why, "the answer says where it was found"


def test_the_active_environment_counts_where_the_project_names_no_release(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "active/lib/python3.11/site-packages/trl-1.12.0.dist-info").mkdir(parents=True)
    monkeypatch.setenv("VIRTUAL_ENV", str(tmp_path / "active"))
    project = tmp_path / "project"
    (project / ".git").mkdir(parents=True)
    assert Projects().versions(project / "x.py")["trl"].startswith("1.12.0 the active environment")
    (project / "requirements.txt").write_text("trl==1.8.0\n")
    assert Projects().versions(project / "x.py")["trl"].startswith("1.8.0 ")


def test_requirements_may_include_others(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "requirements.txt").write_text("torch\n-r base.txt\n")
    (tmp_path / "base.txt").write_text("trl==1.8.0\n")
    assert Projects().versions(tmp_path / "run.sh")["trl"].startswith("1.8.0 ")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("# pip install verl==0.7.0\n", {}),
        ("pip install 'verl==0.7.0'  # verl==0.8.0\n", {"verl": "0.7.0"}),
        ("#SBATCH --container-image=verlai/verl:app-verl0.5-x\n", {"verl": "0.5"}),
        ('# /// script\n# dependencies = ["trl==1.8.0"]\n# ///\n', {"trl": "1.8.0"}),
        ('# /// script\n# # dependencies = ["trl==1.8.0"]\n# ///\n', {}),
    ],
)
def test_a_comment_names_no_release(text: str, expected: dict[str, str]) -> None:
    assert {name: each.partition(" ")[0] for name, each in pins(text)} == expected


def test_a_bound_leaves_the_newest_release_that_has_the_keys(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "requirements.txt").write_text("openrlhf>=0.9\n")
    around = Projects().versions(tmp_path / "run.sh")
    assert only(f"{OPENRLHF} --prompt_max_len 512", versions=around).version == "0.9.7"


@pytest.mark.parametrize(
    ("script", "version", "guessed"),
    [("", "0.7.1", True), ("pip install verl==0.6.1", "0.6.1", False)],
)
def test_a_bounded_release_is_a_guess(
    tmp_path: Path, script: str, version: str, guessed: bool
) -> None:
    """A release that the script names counts more than a bound beside it."""
    (tmp_path / ".git").mkdir()
    (tmp_path / "requirements.txt").write_text("verl<0.8\n")
    around = Projects().versions(tmp_path / "run.sh")
    finding = only(f"{script}\n{VERL} {USE_LOSS}=True", versions=around)
    assert (finding.version, finding.release_guessed) == (version, guessed)
    assert finding.confidence == "assumed" or not guessed
    assert ("requirements.txt asks for verl<0.8" in finding.version_because) is guessed


def test_bash_does_what_is_told_of_windows_line_ends(tmp_path: Path) -> None:
    """The program is one that writes down its arguments."""
    program = tmp_path / "program"
    program.write_text('#!/bin/sh\nprintf "[%s]" "$@"\n')
    program.chmod(0o755)

    def arguments(script: str) -> bytes:
        (tmp_path / "run.sh").write_bytes(script.encode())
        done = subprocess.run(
            ["/bin/bash", "run.sh"], cwd=tmp_path, capture_output=True, check=False, timeout=10
        )
        return done.stdout

    assert arguments("./program a \\\n  b=1\n") == b"[a][b=1]"
    assert arguments("./program a \\\r\n  b=1\r\n") == b"[a][\r]"
    assert arguments("./program a b=1\r\n") == b"[a][b=1\r]"


VERL_LOSS = f"{VERL} {ON_POLICY} {IN_REWARD}=False {USE_LOSS}=True"


def test_a_case_has_no_weight_that_nobody_gave(tmp_path: Path) -> None:
    script = tmp_path / "x.sh"
    script.write_text(f"{VERL_LOSS} {TYPE}=kl {COEFFICIENT}=$(cat beta)\n", encoding="utf-8")
    done = CliRunner().invoke(command, [str(script)], standalone_mode=False)
    assert done.return_value == 1
    shown = " ".join(done.stdout.split())
    assert "is above 0, nothing: noise of mean zero" in shown
    assert "That depends on what the file does not say: if" in shown
    assert "0.001" not in shown
    concise = CliRunner().invoke(command, ["--format", "concise", str(script)])
    assert "is 0, no KL" in concise.stdout


NEWEST = {"verl": "0.9.1 told", "trl": "1.16.0 told"}


def of(text: str) -> AuditFinding:
    return only(text, versions=NEWEST)


NONE = f"{VERL} {IN_REWARD}=False"


ACTOR = "actor_rollout_ref.actor"


SMALL = f"{NONE} data.train_batch_size=512 {ACTOR}.ppo_mini_batch_size=128"


def test_the_smallest_change_to_a_kl_is_named_and_is_no_fix() -> None:
    finding = of(SMALL)
    assert finding.for_a_kl is not None
    assert f"{USE_LOSS}=True" in instead(finding) or f"{IN_REWARD}=True" in instead(finding)
    assert not finding.changes
    assert not finding.problem


def test_the_gradient_of_k3_times_the_mean_ratio() -> None:
    """By enumeration: two tokens of three words, against the sentence of the audit."""
    rng = np.random.default_rng(0)
    theta, ref, count = rng.normal(size=(2, 3)), rng.normal(size=(2, 3)), 2

    def log_softmax(x: np.ndarray) -> np.ndarray:
        shifted: np.ndarray = x - np.log(np.exp(x).sum(axis=1, keepdims=True))
        return shifted

    old, q = log_softmax(theta), log_softmax(ref)

    def loss(x: np.ndarray) -> float:
        p, total = log_softmax(x), 0.0
        for words in itertools.product(range(3), repeat=count):
            at = (range(count), words)
            gap = q[at] - p[at]
            k3 = np.exp(gap) - 1 - gap
            total += np.exp(old[at].sum()) * np.exp((p[at] - old[at]).mean()) * k3.mean()
        return float(total)

    def forward(x: np.ndarray) -> float:
        return float((np.exp(q) * (q - log_softmax(x))).sum()) / count

    def reverse(x: np.ndarray) -> float:
        p = log_softmax(x)
        return float((np.exp(p) * (p - q)).sum()) / count

    for place in np.ndindex(theta.shape):
        step = np.zeros_like(theta)
        step[place] = 1e-5
        seen, of_forward, of_reverse = (
            (f(theta + step) - f(theta - step)) / 2e-5 for f in (loss, forward, reverse)
        )
        assert seen == pytest.approx((1 - 1 / count) * of_forward + of_reverse / count, abs=1e-8)


def test_a_key_of_the_checkouts_own_parser_is_no_mistake(tmp_path: Path) -> None:
    config = tmp_path / "verl/trainer/config/ppo_trainer.yaml"
    config.parent.mkdir(parents=True)
    defaults = "\ndefaults: [actor, _self_]\nactor_rollout_ref: {actor: {kl_loss_coeff: null}}\n"
    config.write_text(defaults, encoding="utf-8")
    script = tmp_path / "a.sh"
    text = f"{SMALL} {ACTOR}.kl_loss_coeff=null"
    (finding,) = audit(text, str(script), files=NeighbourFiles(script))
    assert not any(each.mistake for each in finding.key_findings)
    parser = tmp_path / "openrlhf/cli/train_ppo_ray.py"
    parser.parent.mkdir(parents=True)
    parser.write_text('p.add_argument("--init_kl_coeff", type=float)\n', encoding="utf-8")
    launch = f"{OPENRLHF} --init_kl_coeff 0"
    (finding,) = audit(launch, str(script), files=NeighbourFiles(script))
    assert not any(each.mistake for each in finding.key_findings)


@pytest.mark.parametrize("reads", [True, False])
def test_a_checkout_whose_actor_reads_no_weight_has_no_kl_in_the_loss(
    reads: bool, tmp_path: Path
) -> None:
    actor = tmp_path / "verl/workers/actor/dp_actor.py"
    actor.parent.mkdir(parents=True)
    line = "loss = loss + kl * self.config.kl_loss_coef"
    actor.write_text(
        f"def update_policy(self):\n    pass\n    {'' if reads else '# '}{line}\n", encoding="utf-8"
    )
    script = tmp_path / "a.sh"
    text = f"{SMALL} {USE_LOSS}=True {ACTOR}.kl_loss_coef=0.01"
    (finding,) = audit(text, str(script), files=NeighbourFiles(script), versions=NEWEST)
    assert bool(finding.in_loss.active) is reads
    assert finding.problem


def test_open_instructs_checkout_tells_its_release_by_a_setting(tmp_path: Path) -> None:
    script = tmp_path / "scripts" / "run.sh"
    script.parent.mkdir()
    script.write_text(
        "python open_instruct/grpo_fast.py --beta 0.0 --async_steps 4 --num_mini_batches 1"
    )
    (tmp_path / "open_instruct").mkdir()
    code = tmp_path / "open_instruct" / "grpo_utils.py"
    for field, is_named in (("use_rho_correction", True), ("beta", False)):
        code.write_text(f"class GRPOExperimentConfig:\n    {field}: bool = True\n")
        projects = Projects()
        (finding,) = audit(
            script.read_text(),
            str(script),
            files=NeighbourFiles(script, projects),
            versions=projects.versions(script),
        )
        assert ("has use_rho_correction" in finding.version_because) is is_named
        assert finding.bound is not None
        assert finding.bound.to == "the policy that sampled"
