"""`orch port`: a launch as a spec, and as a launch of another library, with a row for each key."""

import json
import os
import random
import re
import shlex
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from audit import port_wild
from orchestrator import plugins
from orchestrator.audit.port import launch_of, moved, ported, rows_of_spec
from orchestrator.cli import orch
from orchestrator.errors import SpecError
from orchestrator.records import AttemptPaths
from orchestrator.runs.experiment import open_experiment
from orchestrator.spec.expand import expand
from orchestrator.spec.load import load

VERL = """\
#!/bin/bash
set -x
export VLLM_USE_V1=1
MODEL=Qwen/Qwen2.5-7B
python3 -m verl.trainer.main_ppo \\
    algorithm.adv_estimator=grpo \\
    data.train_files=$HOME/data/math/train.parquet \\
    data.val_files=$HOME/data/math/test.parquet \\
    data.train_batch_size=512 \\
    data.max_prompt_length=1024 \\
    data.max_response_length=2048 \\
    data.filter_overlong_prompts=True \\
    actor_rollout_ref.model.path=$MODEL \\
    actor_rollout_ref.model.use_remove_padding=True \\
    actor_rollout_ref.actor.optim.lr=1e-6 \\
    actor_rollout_ref.actor.ppo_mini_batch_size=128 \\
    actor_rollout_ref.actor.use_kl_loss=True \\
    actor_rollout_ref.actor.kl_loss_coef=0.001 \\
    actor_rollout_ref.actor.kl_loss_type=low_var_kl \\
    actor_rollout_ref.actor.clip_ratio_low=0.2 \\
    actor_rollout_ref.actor.clip_ratio_high=0.28 \\
    actor_rollout_ref.rollout.name=vllm \\
    actor_rollout_ref.rollout.n=16 \\
    actor_rollout_ref.rollout.temperature=1.0 \\
    algorithm.use_kl_in_reward=False \\
    trainer.n_gpus_per_node=8 \\
    trainer.total_training_steps=400 \\
    trainer.project_name='my project β' $@
"""
SKYRL = """\
uv run --isolated -m skyrl.train.entrypoints.main_base \\
  trainer.algorithm.advantage_estimator=rloo trainer.algorithm.use_kl_loss=false \\
  trainer.algorithm.use_kl_in_reward=true trainer.algorithm.kl_estimator_type=k1 \\
  trainer.algorithm.kl_loss_coef=0.05 trainer.policy.model.path=Qwen/Qwen2.5-1.5B \\
  trainer.train_batch_size=256 trainer.policy_mini_batch_size=256 generator.n_samples_per_prompt=5
"""
TRL = """\
trl grpo --model_name_or_path Qwen/Qwen2.5-7B --dataset_name org/data --beta 0.04 \\
  --num_generations 8 --learning_rate 2e-6 --per_device_train_batch_size 8 --max_steps 50
"""
OPENRLHF = """\
python3 -m openrlhf.cli.train_ppo_ray --actor.model_name_or_path Qwen/Qwen2.5-7B \\
  --algo.kl.init_coef 0.01 --algo.kl.use_loss --algo.kl.estimator k3 --train.batch_size 128 \\
  --rollout.batch_size 128 --algo.advantage.estimator group_norm \\
  --rollout.n_samples_per_prompt 8 --data.prompt_dataset org/data
"""
SCRIPTS = {"verl": VERL, "skyrl": SKYRL, "trl": TRL, "openrlhf": OPENRLHF}


def port(folder: Path, text: str, *words: str) -> Result:
    script = folder / "a 'train' β.sh"
    script.write_text(text, encoding="utf-8")
    done = CliRunner().invoke(orch, ["port", str(script), *words], standalone_mode=False)
    done.exit_code = done.return_value or done.exit_code
    return done


@pytest.mark.parametrize("library", SCRIPTS)
def test_every_key_has_a_row_and_the_spec_is_a_cell(tmp_path: Path, library: str) -> None:
    done = port(tmp_path, SCRIPTS[library], "--to", "spec", "--json")
    assert done.exit_code == 0, done.output
    data = json.loads(done.output)
    sources = {row["source"].partition("=")[0] for row in data["rows"] if row["source"]}
    words = [w.lstrip("-") for w in shlex.split(SCRIPTS[library].replace("$@", ""), comments=True)]
    keys = {w.partition("=")[0] for w in words if "." in w and "=" in w and w[0].islower()}
    if library in ("trl", "openrlhf"):
        keys = {w.lstrip("-") for w in shlex.split(SCRIPTS[library]) if w.startswith("--")}
    assert len(keys) >= 6
    assert keys <= sources, keys - sources
    written = port(tmp_path, SCRIPTS[library], "--to", "spec")
    spec = tmp_path / "ported.yaml"
    spec.write_text(written.stdout, encoding="utf-8")
    (cell,) = expand(load(spec))
    assert cell.settings.backend.name == library


def test_a_spec_launches_what_the_script_does(tmp_path: Path) -> None:
    """What a row calls carried is in the launch of the spec, with the same value or its synonym."""
    spec = tmp_path / "ported.yaml"
    spec.write_text(port(tmp_path, VERL, "--to", "spec").stdout, encoding="utf-8")
    (cell,) = expand(load(spec))
    backend = plugins.load("verl")
    assert (
        "trainer.n_gpus_per_node=8" in backend.translate(cell, AttemptPaths(*[tmp_path] * 3)).argv
    )
    settings = cell.settings
    assert (settings.kl.estimator, settings.kl.placement, settings.kl.beta) == ("k3", "loss", 0.001)
    assert settings.loss.clip is not None
    assert settings.loss.clip.high == 0.28
    assert (settings.batch.num_prompts, settings.batch.num_minibatches) == (512, 4)
    assert settings.num_train_steps == 1600, "verl counts rollout batches"
    assert settings.rollout.group_size == 16


@pytest.mark.parametrize("source", ["trl", "openrlhf", "skyrl"])
def test_a_default_of_none_has_its_value(tmp_path: Path, source: str) -> None:
    """TRL's epsilon_high is epsilon, OpenRLHF's entropy_coef no bonus."""
    script = SCRIPTS[source].replace("--beta 0.04", "--beta 0.04 --epsilon 0.3")
    chosen = {"trl": "optimizer.schedule=constant", "openrlhf": "optimizer.num_warmup_steps=0"}
    done = port(tmp_path, script, "--to", "verl", *filter(None, [chosen.get(source)]), "--json")
    assert done.exception is None, done.exception
    data = json.loads(done.output)
    assert done.exit_code == 0, data
    if source == "trl":
        assert "actor_rollout_ref.actor.clip_ratio_high=0.3" in data["argv"]
        assert "actor_rollout_ref.actor.clip_ratio_low=0.3" in data["argv"]


def test_what_a_script_leaves_to_its_data_is_asked_for(tmp_path: Path) -> None:
    """OpenRLHF stops when its prompts run out; a spec has a number of steps."""
    written = port(tmp_path, OPENRLHF, "--to", "spec").stdout
    assert "# give data.num_prompts: openrlhf cannot run data.num_prompts=null" in written
    assert "# give" not in port(tmp_path, VERL, "--to", "spec").stdout


@pytest.mark.parametrize("target", ["skyrl", "trl"])
def test_a_launch_of_another_library_reads_back_as_the_same_cell(
    tmp_path: Path, target: str
) -> None:
    out = tmp_path / "out $x"
    done = port(tmp_path, VERL, "--to", target, "--out", str(out), "--json")
    assert done.exit_code == 0, done.output
    data = json.loads(done.output)
    again = plugins.load(target).parse(data["argv"], data["files"])
    assert (again.kl.estimator, again.kl.placement, again.kl.beta) == ("k3", "loss", 0.001)
    assert again.batch.num_prompts == 512
    assert again.rollout.group_size == 16
    rows = {row["field"]: row["kind"] for row in data["rows"] if row["field"]}
    assert rows["kl.beta"] == "carried"
    lost = [row["source"] for row in data["rows"] if row["kind"] == "not carried"]
    assert any(each.startswith("actor_rollout_ref.model.use_remove_padding") for each in lost)


def test_files_of_a_launch_are_written_and_secrets_are_not_asked(tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = port(tmp_path, VERL, "--to", "skyrl", "--out", str(out))
    assert done.exit_code == 0, done.output
    script = (out / "launch.sh").read_text(encoding="utf-8")
    assert "# approximated: " in script
    assert (out / "orch_skyrl.py").exists()
    assert f"{out}/orch_skyrl.py" in script


def test_what_a_library_cannot_do_is_refused_until_a_value_is_chosen(tmp_path: Path) -> None:
    refused = port(tmp_path, VERL, "--to", "prime_rl")
    assert refused.exit_code == 1
    assert "batch.num_minibatches=4" in refused.output
    assert "FIELD=VALUE" in refused.output
    chosen = port(tmp_path, VERL, "--to", "skyrl", "kl.estimator=k2", "--json")
    assert chosen.exit_code == 0
    assert "trainer.algorithm.kl_estimator_type=k2" in json.loads(chosen.output)["argv"]


def test_mistakes_are_sentences(tmp_path: Path) -> None:
    for text, words, message in (
        ("echo hello\n", ("--to", "spec"), "has no launch"),
        (VERL.replace("rollout.n=16", "rollout.n=1"), ("--to", "spec"), "at least 2, got 1  @"),
        (VERL, ("--to", "verll"), "did you mean 'verl'"),
        (VERL, ("--to", "skyrl", "beta"), "FIELD=VALUE"),
    ):
        done = port(tmp_path, text, *words)
        assert message in str(done.exception) + done.output, (words, done.output, done.exception)


def test_a_value_that_only_a_run_shows_is_not_carried(tmp_path: Path) -> None:
    text = VERL.replace("data.train_batch_size=512", "data.train_batch_size=$(nproc)")
    done = port(tmp_path, text, "--to", "spec")
    assert "# not carried: data.train_batch_size=" in done.output
    assert "only a run of the script shows" in done.output


def test_the_first_of_several_launches_is_ported_and_said(tmp_path: Path) -> None:
    both = f"{VERL}\n{VERL.replace('low_var_kl', 'kl')}"
    done = port(tmp_path, both, "--to", "spec")
    assert done.exit_code == 0
    assert "has 2 launches or cases; this is the first, of line 5" in done.stderr
    assert "estimator: k3" in done.stdout


def test_a_secret_of_a_script_is_in_no_spec(tmp_path: Path) -> None:
    secret = "0123456789abcdef0123456789abcdef01234567"
    text = (
        OPENRLHF.rstrip()
        + f" --logger.wandb.key {secret} --reward.remote_url http://me:{secret}@h/\n"
    )
    for words in (("--to", "spec"), ("--to", "spec", "--json"), ("--to", "trl", "--json")):
        done = port(tmp_path, text, *words)
        assert secret not in done.output
        assert "logger.wandb.key=***" in done.output


def test_a_launch_with_a_critic_says_what_stands_for_its_advantage(tmp_path: Path) -> None:
    """OpenRLHF's default is gae, with groups of one: what stands for it must be a cell."""
    text = OPENRLHF.replace("--algo.advantage.estimator group_norm", "")
    done = port(tmp_path, text.replace("--rollout.n_samples_per_prompt 8", ""), "--to", "spec")
    assert "# give advantage.estimator: orch has no advantage.estimator for 'gae'" in done.output
    assert "estimator: reinforce" not in done.output


def test_an_objective_that_orch_lacks_is_chosen_or_refused(tmp_path: Path) -> None:
    text = VERL.replace("adv_estimator=grpo", "adv_estimator=gae")
    refused = port(tmp_path, text, "--to", "trl")
    assert refused.exit_code == 1
    assert "orch has no advantage.estimator for 'gae'" in refused.output
    chosen = port(tmp_path, text, "--to", "skyrl", "advantage.estimator=grpo")
    assert chosen.exit_code == 0, chosen.output
    assert "(chosen here, orch has no advantage.estimator for 'gae'" in chosen.output


@pytest.mark.parametrize(
    ("key", "row"),
    [
        ("actor_rollout_ref.actor.ppo_epochs=2", "ppo_epochs=1: the new launch is another"),
        ("actor_rollout_ref.rollout.tensor_model_parallel_size=2", "tensor_model_parallel_size=1"),
        ("trainer.logger=['console','wandb']", "as loggers"),
        ("algorithm.rollout_correction.rollout_is=token", "no key: loss.correction.applies_to"),
    ],
)
def test_a_row_is_true_of_the_new_launch(tmp_path: Path, key: str, row: str) -> None:
    text = VERL.replace("algorithm.use_kl_in_reward=False", key)
    lines = port(tmp_path, text, "--to", "skyrl").stdout.splitlines()
    name = key.partition("=")[0]
    assert any(name in line and row in line for line in lines if line.startswith("#")), lines


def test_a_warm_up_of_an_unknown_number_of_steps_is_not_carried(tmp_path: Path) -> None:
    text = VERL.replace("trainer.total_training_steps=400", "trainer.total_epochs=3").replace(
        "optim.lr=1e-6", "optim.lr=1e-6 actor_rollout_ref.actor.optim.lr_warmup_steps_ratio=0.03"
    )
    data = json.loads(port(tmp_path, text, "--to", "skyrl", "--json").output)
    (row,) = (row for row in data["rows"] if "lr_warmup_steps_ratio" in row["source"])
    assert row["kind"] == "approximated"
    assert row["is_other"]
    assert "set optimizer.num_warmup_steps" in row["note"]


def test_a_spec_has_carried_rows_and_says_what_a_program_hides(tmp_path: Path) -> None:
    written = port(tmp_path, VERL, "--to", "spec").stdout
    assert "# carried: actor_rollout_ref.rollout.n=16 -> rollout.group_size=16" in written
    script = tmp_path / "t.py"
    script.write_text(
        "from trl import GRPOConfig, GRPOTrainer\n"
        "args = GRPOConfig(beta=0.04, num_generations=8, num_iterations=4)\n"
        'GRPOTrainer(model="Qwen/Qwen2.5-0.5B", args=args).train()\n',
        encoding="utf-8",
    )
    done = CliRunner().invoke(orch, ["port", str(script), "--to", "spec"], standalone_mode=False)
    assert "(orch does not read it from a program: check it)" in done.stdout
    assert "num_iterations=1: the new launch is another training" in done.stdout


def test_a_refused_rehearsal_leaves_the_declared_launch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = VERL.replace(
        "optim.lr=1e-6", "optim.lr=1e-6 actor_rollout_ref.actor.entropy_coeff=0.001"
    )
    (tmp_path / "s.yaml").write_text(port(tmp_path, text, "--to", "spec").stdout, encoding="utf-8")
    (cell,) = open_experiment("s.yaml").cells
    done = CliRunner().invoke(orch, ["show", "s.yaml", cell.id, "--argv"], standalone_mode=False)
    assert "actor_rollout_ref.actor.entropy_coeff=0.001" in done.stdout, done.exception
    assert "this machine cannot rehearse the cell" in done.stderr
    done = CliRunner().invoke(orch, ["plan", "s.yaml"], standalone_mode=False)
    assert "cannot be rehearsed on this machine" in str(done.exception)
    assert "only the rehearsal is refused: site=slurm_a100" in str(done.exception)


def test_a_warm_up_is_read_beside_minibatches_of_any_size(tmp_path: Path) -> None:
    """Each key is left out in turn to see what it decides: without the size of minibatches a batch
    makes less than one of verl's default."""
    small = VERL.replace("size=512", "size=64").replace("size=128", "size=64")
    warm = small.replace(
        "optim.lr=1e-6", "optim.lr=1e-6 actor_rollout_ref.actor.optim.lr_warmup_steps_ratio=0.1"
    )
    done = port(tmp_path, warm, "--to", "spec")
    assert done.exit_code == 0, done.exception
    assert "num_warmup_steps: 40" in done.output


def test_what_an_asynchronous_skyrl_cannot_have_is_said(tmp_path: Path) -> None:
    section = "trainer.algorithm.off_policy_correction"
    text = SKYRL.replace("skyrl.train.entrypoints.main_base", "examples.main_fully_async").rstrip()
    text += " trainer.fully_async.enabled=true trainer.fully_async.max_staleness_steps=2"
    text += f" {section}.tis_ratio_type=token\n"
    done = port(tmp_path, text, "--to", "spec")
    assert done.exit_code == 0, done.exception
    assert "# give loss.correction" in done.output


@pytest.mark.parametrize("target", ["skyrl", "openrlhf", "trl"])
def test_bash_runs_the_script_that_is_written(tmp_path: Path, target: str) -> None:
    """Only the trainer is another program: it prints its arguments, which are those of --json."""
    changes = ["data.num_prompts=7000"] if target == "openrlhf" else []
    out = tmp_path / "it's {an} out β"
    words = ("--to", target, *changes, "--out", str(out))
    written = port(tmp_path, VERL, *words)
    assert written.exit_code == 0, written.output
    assert f"Next: bash {shlex.quote(str(out / 'launch.sh'))}" in written.stderr
    asked = json.loads(port(tmp_path, VERL, *words, "--json").output)
    programs = tmp_path / "programs"
    programs.mkdir()
    program = programs / Path(asked["argv"][0]).name
    program.write_text('#!/bin/sh\nfor each; do printf "%s\\0" "$each"; done\n')
    program.chmod(0o755)
    path = f"{programs}:/usr/bin:/bin"
    done = subprocess.run(
        ["/bin/bash", "launch.sh"], cwd=out, env={"PATH": path}, capture_output=True, check=True
    )
    assert done.stdout.decode().split("\0")[:-1] == asked["argv"][1:]


FLAT = """\
python3 -m openrlhf.cli.train_ppo_ray --pretrain Qwen/Qwen2.5-7B --init_kl_coef 0.02 --use_kl_loss \
  --kl_estimator k3 --train_batch_size 128 --rollout_batch_size 128 \
  --advantage_estimator group_norm --n_samples_per_prompt 8 --prompt_data org/data --eps_clip 0.3
"""


def test_a_flag_of_two_words_has_both(tmp_path: Path) -> None:
    text = OPENRLHF.replace("--algo.kl.use_loss", "--actor.eps_clip_low_high 0.1 0.28")
    data = json.loads(port(tmp_path, text, "--to", "spec", "--json").output)
    assert data["fields"]["loss"]["clip"] == {"low": 0.1, "high": 0.28, "dual": None}
    sources = [row["source"] for row in data["rows"]]
    assert "actor.eps_clip_low_high=0.1 0.28" in sources


def test_a_release_of_other_names_is_ported(tmp_path: Path) -> None:
    """The flags of OpenRLHF had no dots before 0.10.2, and one bound for both sides."""
    data = json.loads(port(tmp_path, FLAT, "--to", "spec", "--json").output)
    fields = data["fields"]
    assert fields["kl"] == {"estimator": "k3", "placement": "loss", "beta": 0.02}
    assert fields["loss"]["clip"] == {"low": 0.3, "high": 0.3, "dual": None}
    assert (fields["model"]["path"], fields["data"]["path"]) == ("Qwen/Qwen2.5-7B", "org/data")
    assert fields["rollout"]["group_size"] == 8
    lost = {row["source"] for row in data["rows"] if row["kind"] == "not carried"}
    assert not lost


def test_a_chosen_value_is_a_row(tmp_path: Path) -> None:
    words = ("--to", "skyrl", "kl.estimator=k2", "--json")
    data = json.loads(port(tmp_path, VERL, *words).output)
    (row,) = (row for row in data["rows"] if row["field"] == "kl.estimator")
    assert row["kind"] == "set"
    assert row["note"].startswith("chosen here, in place of k3")


def test_equal_values_of_other_names_are_carried(tmp_path: Path) -> None:
    """transformers' `constant` has no warm-up; verl's of 0 steps needs no number of steps."""
    text = TRL.rstrip() + " --lr_scheduler_type constant --warmup_steps 5\n"
    data = json.loads(port(tmp_path, text, "--to", "verl", "--json").output)
    rows = {row["field"]: row for row in data["rows"]}
    assert rows["optimizer.schedule"]["kind"] == "carried"
    assert rows["optimizer.schedule"]["source"] == "lr_scheduler_type=constant"
    assert rows["optimizer.num_warmup_steps"]["value"] == "0"
    text = VERL.replace("trainer.total_training_steps=400", "trainer.total_epochs=3").replace(
        "optim.lr=1e-6", "optim.lr=1e-6 actor_rollout_ref.actor.optim.lr_warmup_steps=0"
    )
    data = json.loads(port(tmp_path, text, "--to", "skyrl", "--json").output)
    (row,) = (row for row in data["rows"] if row["field"] == "optimizer.num_warmup_steps")
    assert (row["kind"], row["source"].partition("=")[2]) == ("carried", "0")


def test_a_refused_value_is_no_business_of_the_other_keys(tmp_path: Path) -> None:
    text = TRL.rstrip() + " --lr_scheduler_type cosine_with_min_lr\n"
    data = json.loads(port(tmp_path, text, "--to", "verl", "--json").output)
    lost = [row["source"] for row in data["rows"] if row["kind"] == "not carried"]
    assert "lr_scheduler_type=cosine_with_min_lr" in lost
    assert all(row["source"].count(", ") < 4 for row in data["rows"])


def test_a_ported_spec_shows_the_librarys_launch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine without a cluster rehearses the cell: that is said, and the launch is shown."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.yaml").write_text(port(tmp_path, VERL, "--to", "spec").stdout, encoding="utf-8")
    (cell,) = open_experiment("s.yaml").cells
    assert cell.scale == "micro"
    done = CliRunner().invoke(orch, ["show", "s.yaml", cell.id, "--argv"], standalone_mode=False)
    assert "verl.trainer.main_ppo" in done.stdout
    assert "actor_rollout_ref.actor.clip_ratio_high=0.28" in done.stdout
    assert "rehearses the cell with micro" in done.stderr


NEWEST = {"verl": "0.9.1", "openrlhf": "0.11.2", "skyrl": "0.4.0", "trl": "1.16.0"}
NEWEST["prime_rl"] = "0.8.0"
SCRIPT_FILES = sorted((Path(__file__).parent / "port").iterdir())
ASKED = {
    "openrlhf": {"data.num_prompts": 12800},
    "trl": {"max_staleness_steps": 0, "kl.estimator": "k3", "precision.rollout": None}
    | {"loss.aggregation": "constant"},
    "prime_rl": {"advantage.estimator": "dr_grpo", "kl.estimator": "none", "kl.placement": None}
    | {"kl.beta": 0.0, "batch.num_minibatches": 1, "max_staleness_steps": 1}
    | {"optimizer.schedule": "constant", "loss.aggregation": "token_mean"},
}
"""Target -> the end of the port's sentence where the target cannot do what the script does."""


def mutated(text: str, seed: int) -> str:
    """A script without a third of its lines with a number, and other numbers in some."""
    chance = random.Random(seed)  # noqa: S311  # no secret
    lines = []
    for line in text.splitlines():
        is_number = re.search(r"[= ]\d+(\.\d+)?( \\)?$", line) and "model" not in line
        if is_number and chance.random() < 0.33:
            continue
        if is_number and chance.random() < 0.2:
            line = re.sub(r"(\d+)(?=( \\)?$)", lambda m: str(2 * int(m[1])), line)
        lines.append(line)
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("script", SCRIPT_FILES, ids=[file.stem for file in SCRIPT_FILES])
def test_each_key_of_a_script_has_a_row_in_each_target(script: Path) -> None:
    """Of forty keys, as they are and mutated: each is in the source of a row."""
    pinned = {library: f"{version} --library" for library, version in NEWEST.items()}
    text, judged = script.read_text(encoding="utf-8"), 0
    for variant in (text, *(mutated(text, seed) for seed in range(4))):
        launch = ported(*launch_of(variant, script.name, {}, pinned)[:2])
        assert launch.library == script.stem
        whole = {row.source.partition("=")[0] for row in rows_of_spec(launch)}
        assert launch.given.keys() <= whole
        for target, version in NEWEST.items():
            try:
                plan, rows = moved(launch, target, version, {})
                if plan is None:
                    plan, rows = moved(launch, target, version, ASKED.get(target, {}))
            except SpecError:
                continue  # this variant makes no cell
            if plan is None:
                assert rows
                continue
            judged += 1
            sources = ", ".join(row.source for row in rows)
            missing = {key for key in launch.given if f"{key}=" not in sources}
            assert not missing, (target, missing)
    assert judged >= 8


def test_labelled_scripts_of_others_are_answered() -> None:
    """The facts are complete; those whose text is at hand are asked again."""
    answers = port_wild.kept()
    assert len(answers) >= 60
    assert all("refused" in each or each["without_row"] == 0 for each in answers)
    if not (folder := os.environ.get("ORCH_WILD_TEXTS")):
        pytest.skip("ORCH_WILD_TEXTS names no folder of their texts")
    texts = [(each, port_wild.text_of(Path(folder), each)) for each in answers]
    again = [(each, port_wild.facts(each, text)) for each, text in texts if text is not None]
    assert again
    assert all(before == after for before, after in again)


def test_a_release_without_tables_has_the_keys_of_the_nearest(tmp_path: Path) -> None:
    """OpenRLHF 0.5.9 has flat flags, as 0.10.1 has; the newest release has none of them."""
    words = ("--to", "spec", "--library", "openrlhf@0.5.9", "--json")
    done = port(tmp_path, FLAT, *words)
    assert "read as those of 0.10.1.post2" in done.stderr
    fields = json.loads(done.stdout)["fields"]
    assert fields["kl"]["beta"] == 0.02
    assert fields["rollout"]["group_size"] == 8


def test_the_own_loss_of_prime_rl_has_rows() -> None:
    """Its ratio, its mask and its kl_tau are there also where the file does not name them."""
    text = (Path(__file__).parent / "port" / "prime_rl.toml").read_text(encoding="utf-8")
    text = re.sub(r"(?m)^(kl_tau|dppo_\w+|adv_tau) = .*\n", "", text)
    pinned = {"prime_rl": "0.8.0 --library"}
    launch = ported(*launch_of(text, "rl.toml", {}, pinned)[:2])
    plan, rows = moved(launch, "verl", "0.9.1", {})
    assert plan is not None
    others = {row.field for row in rows if row.kind == "not carried" and row.is_other}
    assert others == {"loss.correction", "loss.clip", "kl.estimator"}


OWN = sorted((Path(__file__).parent / "port").glob("*.sh"))


STARTERS = {"num_processes", "mixed_precision", "module", "address", "runtime-env-json"}
"""Flags of what starts a trainer."""


def keys_of(text: str) -> set[str]:
    """The keys of a script, one a line: KEY=VALUE with a dot in the key, and --KEY."""
    keys = re.findall(r"^\s*(?:--([a-z][\w.-]*)|([a-z_]+\.[\w.]+)=)", text, re.MULTILINE)
    return {flag or key for flag, key in keys} - STARTERS


@pytest.mark.parametrize("script", OWN, ids=[file.stem for file in OWN])
def test_a_script_of_forty_keys_loses_none(tmp_path: Path, script: Path) -> None:
    """A key is in the launch of its spec, or in a row that says where it went."""
    text = script.read_text(encoding="utf-8")
    keys = keys_of(text)
    assert len(keys) >= 40
    changes = ["data.num_prompts=12800"] if script.stem == "openrlhf" else []
    data = json.loads(port(tmp_path, text, "--to", "spec", "--json").output)
    rows = {row["source"].partition("=")[0]: row for row in data["rows"] if row["source"]}
    spec = tmp_path / "s.yaml"
    written = port(tmp_path, text, "--to", "spec").stdout
    spec.write_text(written, encoding="utf-8")
    (cell,) = expand(load(spec, changes))
    assert cell.settings.backend.name == script.stem
    plan = plugins.load(script.stem).translate(cell, AttemptPaths(*[tmp_path] * 3))
    launched = " ".join(plan.argv) + " ".join(plan.files.values())
    missing = {key for key in keys if key not in rows and key not in launched}
    assert not missing
    comments = "\n".join(line for line in written.splitlines() if line.startswith("#"))
    lost = {key for key, row in rows.items() if row["kind"] == "not carried"}
    assert len(lost) >= 1
    assert all(f"# not carried: {key}=" in comments for key in lost)


def test_a_key_that_is_left_has_its_place_in_a_spec(tmp_path: Path) -> None:
    text = (Path(__file__).with_name("port") / "verl.sh").read_text(encoding="utf-8")
    rows = json.loads(port(tmp_path, text, "--to", "spec", "--json").output)["rows"]
    notes = {row["source"].partition("=")[0]: row["note"] for row in rows if row["source"]}
    micro = notes["actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu"]
    assert micro == "a spec has it as system.micro_batch: set it there"
    assert "cadence.checkpoint_every_steps" in notes["trainer.save_freq"]
    assert "backend.extra" in notes["trainer.total_epochs"]
    # the file hangs on a variable: what stands in its place is verl's own, and that is said
    assert "set data.path, where orch put the default of verl" in notes["data.train_files"]
    (steps,) = (row for row in rows if row["field"] == "num_train_steps")
    assert "the launch does not say it" in steps["note"]
