"""The audit reads the launches that a Python file would start, without running it."""

import pytest

from audit.scripts import IN_REWARD, TYPE, USE_LOSS, only, verdict
from orchestrator.audit import UnreadableScript, audit

HEAD = '"python", "-m", "verl.trainer.main_ppo"'
FLAGS = f'"{USE_LOSS}=True", "{TYPE}=kl", "{IN_REWARD}=False"'


@pytest.mark.parametrize(
    "text",
    [
        f"run([{HEAD}, {FLAGS}])",
        f"flags = [{FLAGS}]\nrun([{HEAD}, *flags])",
        f"flags = [{FLAGS}]\nrun([{HEAD}] + flags)",
        f'kind = "kl"\nrun([{HEAD}, "{USE_LOSS}=True", f"{TYPE}={{kind}}", "{IN_REWARD}=False"])',
        (
            f'p.add_argument("--kl-type", default="kl")\nargs = p.parse_args()\n'
            f'run([{HEAD}, "{USE_LOSS}=True", f"{TYPE}={{args.kl_type}}", "{IN_REWARD}=False"])'
        ),
        f'os.system("python -m verl.trainer.main_ppo {USE_LOSS}=True {TYPE}=kl {IN_REWARD}=False")',
        (
            'C = {"algorithm": {"adv_estimator": "grpo", "use_kl_in_reward": False},\n'
            ' "actor_rollout_ref": {"actor": {"use_kl_loss": True, "kl_loss_type": "kl"}}}'
        ),
    ],
)
def test_k1_in_the_loss_is_noise_however_python_says_it(text: str) -> None:
    assert verdict(text, "launch.py") == "zero_mean_noise"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (f"cmd = [{HEAD}]\nif x:\n    cmd += [{FLAGS}]\nrun(cmd)", "line 3"),
        (f"cmd = [{HEAD}]\ncmd.append(extra)\nrun(cmd)", "line 2"),
        (f"def go(flags):\n    run([{HEAD}, *flags])", "'flags'"),
        (f'run([{HEAD}, f"{USE_LOSS}={{on()}}"])', "put in by Python"),
        (
            (
                f'run(f"python -m verl.trainer.main_ppo {USE_LOSS}=True {TYPE}={{kind()}} '
                f'{IN_REWARD}=False", shell=True)'
            ),
            f"{TYPE} comes from a value put in by Python",
        ),
        (
            (
                'C = {"algorithm": {"use_kl_in_reward": False},\n'
                ' "actor_rollout_ref": {"actor": {"use_kl_loss": True, "kl_loss_type": "kl"}}}\n'
                'if x:\n    C["actor_rollout_ref"]["actor"]["use_kl_loss"] = False'
            ),
            "line 4",
        ),
    ],
)
def test_what_python_decides_is_said_so(text: str, why: str) -> None:
    found = only(text, "launch.py")
    assert found.term_verdict == "undetermined"
    assert why in found.why


@pytest.mark.parametrize(
    "text", ["x = 1", "def f(:", 'FILES = ["verl/trainer/main_ppo.py", "verl/trainer/main.py"]']
)
def test_other_python_is_no_launch(text: str) -> None:
    with pytest.raises(UnreadableScript):
        audit(text, "other.py")


@pytest.mark.parametrize(
    ("code", "entry"),
    [
        ("from verl.trainer.main_ppo import main; main()", "verl.trainer.main_ppo"),
        ("import verl.trainer.main_ppo as m\nm.main()", "verl.trainer.main_ppo"),
        ("import verl.trainer.main_ppo; verl.trainer.main_ppo.main()", "verl.trainer.main_ppo"),
        ("from verl.trainer import main_ppo as m; m.main()", "verl.trainer.main_ppo"),
        (
            "import runpy; runpy.run_module('verl.trainer.main_ppo', run_name='__main__')",
            "verl.trainer.main_ppo",
        ),
    ],
)
def test_code_on_the_command_line_that_runs_a_trainer_is_a_launch(code: str, entry: str) -> None:
    text = f'uv run python3.11 -u -c "{code}" algorithm.use_kl_in_reward=True'
    (finding,) = audit(text, "run.sh", versions={"verl": "0.9.1 told"})
    assert (finding.entry_point, finding.confidence) == (entry, "certain")
    assert finding.kl_in_reward.active


def test_code_on_the_command_line_with_a_prefix_of_a_flag() -> None:
    code = "from openrlhf.cli.train_ppo_ray import train; train()"
    (finding,) = audit(f"python -c '{code}' --pretrain m --init_kl 0", "run.sh")
    assert (finding.library, finding.verdict) == ("openrlhf", "no_kl")


@pytest.mark.parametrize("code", ["print(1)", "import verl; print(verl.__version__)", "main("])
def test_other_code_on_the_command_line_is_no_launch(code: str) -> None:
    with pytest.raises(UnreadableScript, match="no launch"):
        audit(f'python -c "{code}"', "run.sh")


def test_what_an_f_string_leaves_open_is_no_empty_variable() -> None:
    """A hole of Python's was once a variable of the shell that nobody sets, so an empty value: the
    audit then said that the launch stops."""
    text = (
        "for beta in betas:\n"
        "    run(f'python -m verl.trainer.main_ppo trainer.experiment_name={beta} "
        f"{USE_LOSS}=True {TYPE}={{kind}} {IN_REWARD}=False', shell=True)"
    )
    found = only(text, "launch.py")
    assert not found.contradictions
    assert not any("not set in the environment" in each for each in found.assumes)
    literal = text.replace("{kind}", "kl")
    assert only(literal, "launch.py").term_verdict == "zero_mean_noise", (
        "another hole decides nothing"
    )


def test_a_file_that_tells_how_to_run_itself_has_one_launch() -> None:
    """Each command in its text was a further launch, without the lines of the settings."""
    text = (
        '"""Sums.\n\nAlone:\n  python examples/grpo_sums.py\nOn two:\n  accelerate launch '
        '--num_processes 2 examples/grpo_sums.py\n"""\nfrom trl import GRPOConfig\n\n'
        "arguments = GRPOConfig(beta=0.1, num_generations=4, num_iterations=1)\n"
    )
    finding = only(
        text, "grpo_sums.py", files={"examples/grpo_sums.py": text}, versions={"trl": "1.16.0 said"}
    )
    assert finding.line == 10
    assert {each.key: each.lines for each in finding.settings}["beta"] == (10,)


def test_a_file_that_runs_itself_with_other_options_has_both_launches_with_their_lines() -> None:
    text = (
        '"""\naccelerate launch grpo_sums.py --kl 0.2\n"""\n'
        "import argparse\nfrom trl import GRPOConfig\n\n"
        "parser = argparse.ArgumentParser()\n"
        'parser.add_argument("--kl", type=float, default=0.0)\n'
        "options = parser.parse_args()\n"
        "arguments = GRPOConfig(beta=options.kl, num_generations=4, num_iterations=1)\n"
    )
    found = audit(
        text, "grpo_sums.py", files={"grpo_sums.py": text}, versions={"trl": "1.16.0 said"}
    )
    betas = [(each.line, each.kl_in_loss.beta, each.settings[0].lines) for each in found]
    assert betas == [(2, 0.2, (10,)), (10, 0.0, (10,))]


def test_a_default_of_the_environment_names_its_variable() -> None:
    text = (
        "import os\nfrom trl import GRPOConfig\n"
        'beta = float(os.environ.get("KL", "0.04"))\nGRPOConfig(beta=beta)\n'
    )
    given = only(text, "train.py", versions={"trl": "1.16.0 said"}).settings[0]
    assert (given.key, given.value, given.default_of) == ("beta", "0.04", ("$KL",))


PARAMETERS = """
import argparse, subprocess
from trl import GRPOConfig
parser = argparse.ArgumentParser()
parser.add_argument("--kl", type=float, default=0.03)
args = parser.parse_args()
def train(kl=0.04, *, more=1):
    GRPOConfig(output_dir="x", beta={beta})
train({call})
"""


@pytest.mark.parametrize(
    ("beta", "call", "expected"),
    [
        ("kl", "", (0.04, "kl of train()")),
        ("kl", "more=2", (0.04, "kl of train()")),
        ("args.kl", "", (0.03, "--kl")),
        ("kl", "0.1", (None, "")),
        ("kl", "kl=0.1", (None, "")),
        ("kl", "**given", (None, "")),
    ],
)
def test_a_default_that_stands_in_the_file_is_read_as_the_scripts(
    beta: str, call: str, expected: tuple[float | None, str]
) -> None:
    text = PARAMETERS.format(beta=beta, call=call)
    (finding,) = audit(text, "x.py", versions={"trl": "1.9.2 told"})
    names = [name for each in finding.settings for name in each.default_of]
    assert (finding.kl_in_loss.beta, "".join(names)) == expected


@pytest.mark.parametrize(
    "line", ["a = p.parse_args()", "a, _ = p.parse_known_args()", "a = parse_args()"]
)
def test_the_options_of_a_parser_have_any_name(line: str) -> None:
    text = (
        "import argparse\nfrom trl import GRPOConfig\np = argparse.ArgumentParser()\n"
        f'p.add_argument("--beta", type=float, default=0.04)\n{line}\nGRPOConfig(beta=a.beta)\n'
    )
    (finding,) = audit(text, "x.py", versions={"trl": "1.9.2 told"})
    assert finding.kl_in_loss.beta == 0.04
    other = text.replace(line, "a = somebody()")
    assert audit(other, "x.py", versions={"trl": "1.9.2 told"})[0].kl_in_loss.beta is None


@pytest.mark.parametrize("default", ["0.04", "field(default=0.04)"])
def test_the_default_of_a_dataclass_that_a_parser_reads(default: str) -> None:
    text = (
        "from dataclasses import dataclass, field\nfrom transformers import HfArgumentParser\n"
        f"from trl import GRPOConfig\n@dataclass\nclass Mine:\n    kl: float = {default}\n"
        "mine, = HfArgumentParser(Mine).parse_args_into_dataclasses()\nGRPOConfig(beta=mine.kl)\n"
    )
    (finding,) = audit(text, "x.py", versions={"trl": "1.9.2 told"})
    names = [name for each in finding.settings for name in each.default_of]
    assert (finding.kl_in_loss.beta, names) == (0.04, ["--kl"])


def test_a_list_with_a_star_has_the_default_of_its_parameter() -> None:
    text = """
import subprocess
def run(more=["actor_rollout_ref.actor.kl_loss_type=mse"]):
    subprocess.run(["python", "-m", "verl.trainer.main_ppo",
                    "actor_rollout_ref.actor.use_kl_loss=True", *more])
run()
"""
    (finding,) = audit(text, "x.py")
    assert finding.kl_in_loss.estimator == "k2"
    assert "more of run()" in {name for each in finding.settings for name in each.default_of}
    (other,) = audit(text.replace("\nrun()", "\nrun(sys.argv)"), "x.py")
    assert other.verdict == "undetermined"
