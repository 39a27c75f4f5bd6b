"""Launches of TRL as people write them, release by release."""

import pytest

from backends.trl.options import SCRIPTS, VERSIONS, options, own_options
from orchestrator.audit import AuditFinding, UnreadableScript, audit

TRL = "trl grpo --model_name_or_path org/m --dataset_name org/d --reward_funcs accuracy_reward"
IMPORT = "from trl import GRPOConfig, RLOOConfig\n"


def only(text: str, name: str = "launch.sh", release: str = "") -> AuditFinding:
    found = audit(text, name, versions={"trl": f"{release} given"} if release else {})
    assert len(found) == 1, found
    return found[0]


@pytest.mark.parametrize(
    ("text", "release", "verdict"),
    [
        (f"{TRL} --beta 0.04", "1.9.2", "token_forward_kl"),
        (f"{TRL} --beta 0.04", "1.10.0", "token_reverse_kl"),
        (f"{TRL} --beta 0.04 --use_bias_correction_kl false", "1.16.0", "token_forward_kl"),
        (f"{TRL} --beta 0.04 --importance_sampling_level sequence", "1.10.0", "other_objective"),
        (TRL, "0.18.2", "token_forward_kl"),
        (TRL, "0.19.0", "no_kl"),
        (TRL.replace("grpo", "rloo"), "1.9.2", "unbiased_reverse_kl"),
        ("torchrun src/open_r1/grpo_jsonl.py --num_generations 8", "", "token_forward_kl"),
        ("accelerate launch x/grpo.py --num_generations 8 --beta 0", "", "no_kl"),
        (
            "accelerate launch x/grpo.py --config gone.yaml --beta 0.04",
            "0.15.2",
            "token_forward_kl",
        ),
    ],
)
def test_commands(text: str, release: str, verdict: str) -> None:
    assert only(text, release=release).term_verdict == verdict


@pytest.mark.parametrize(
    ("estimator", "place", "verdict"),
    [
        ("rb", "reward_and_loss", "unbiased_reverse_kl"),
        ("full", "reward_and_loss", "unbiased_reverse_kl"),
        ("full_forward", "reward_and_loss", "both"),
        ("full", "loss", "token_reverse_kl"),
    ],
)
def test_a_kl_that_orch_ships_is_read_in_every_place(
    estimator: str, place: str, verdict: str
) -> None:
    """The launch's own words, as orch writes them; both parts together are judged as one term."""
    own = f"--kl-estimator {estimator} --kl-placement {place}"
    sizes = "--per_device_train_batch_size 8 --num_generations 8"
    finding = only(f"python3 plan/orch_trl.py grpo {own} --beta 0.1 {sizes}", release="1.16.0")
    assert finding.term_verdict == verdict
    if verdict == "unbiased_reverse_kl":
        assert "its two parts" in finding.why


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        (f"{IMPORT}GRPOConfig(beta=0.04, max_prompt_length=512)", "token_forward_kl"),
        (f"{IMPORT}GRPOConfig(beta=0.04, entropy_coef=0.1)", "undetermined"),
        (
            f"{IMPORT}os.system('pip install trl==1.12.0')\nGRPOConfig(beta=0.04)",
            "token_reverse_kl",
        ),
        (f"{IMPORT}a = GRPOConfig(max_prompt_length=9)\na.beta = 0.0", "no_kl"),
        (f"{IMPORT}a = GRPOConfig(vllm_device='auto')\nif x:\n    a.beta = 0.0", "undetermined"),
        (f"{IMPORT}C = {{'b': 0.1}}\nGRPOConfig(beta=C['b'], vllm_device='a')", "token_forward_kl"),
        (
            f"{IMPORT}class C:\n  b: float = field(default=1)\nGRPOConfig(beta=C.b, vllm_device=1)",
            "token_forward_kl",
        ),
        (
            f"{IMPORT}import os\nb = float(os.environ.get('B', '0'))\nGRPOConfig(beta=b)",
            "no_kl",
        ),
        (f"{IMPORT}GRPOConfig(beta=beta())", "undetermined"),
        (f"{IMPORT}GRPOConfig(**settings)", "undetermined"),
        (f"{IMPORT}RLOOConfig(kl_coef=0.1, rloo_k=4)", "unbiased_reverse_kl"),
        ("import unsloth\n" + IMPORT + "GRPOConfig(num_generations=4)", "token_forward_kl"),
        ("import verifiers as vf\na = vf.grpo_defaults(run_name='x')", "token_forward_kl"),
        (
            "import verifiers as vf\na = vf.grpo_defaults(run_name='x')\na.micro_batch_size = 8",
            "undetermined",
        ),
    ],
)
def test_python(text: str, verdict: str) -> None:
    assert only(text, "train.py").term_verdict == verdict


def test_recipes() -> None:
    flat = "model_name_or_path: m\nnum_generations: 8\nbeta: 0.01\nvllm_device: auto\n"
    assert only(flat, "config_demo.yaml").term_verdict == "token_forward_kl"
    hydra = "trainer:\n  _target_: trl.GRPOConfig\n  beta: 0.01\n  vllm_device: auto\n"
    assert only(hydra, "grpo.yaml").in_loss.beta == 0.01
    command = "accelerate launch src/open_r1/grpo.py --config recipes/c.yaml --beta 0"
    found = audit(command, "run.sh", files={"recipes/c.yaml": flat})
    assert [each.verdict for each in found] == ["no_kl"]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("from mine import GRPOConfig\nGRPOConfig(beta=0.1)", "train.py"),
        ("class GRPOConfig: ...\nGRPOConfig(beta=0.1)", "train.py"),
        ("swift rlhf --rlhf_type grpo --num_generations 8 --beta 0.1", "run.sh"),
        ("python -m verl.trainer.main --num_generations 8 --beta 0.1", "run.sh"),
        ("python grpo.py --lr 1e-5", "run.sh"),
        ("model: m\nbeta: 0.1\nlearning_rate: 1", "dpo.yaml"),
    ],
)
def test_what_is_not_trls(text: str, name: str) -> None:
    try:
        libraries = [each.library for each in audit(text, name)]
    except UnreadableScript:
        libraries = []
    assert "trl" not in libraries


def test_the_regime_and_what_surrounds_the_kl() -> None:
    found = only(
        f"{TRL} --beta 0.04 --steps_per_generation 8 --gradient_accumulation_steps 2 --use_vllm "
        "--loss_type grpo --entropy_coef 0.01 --sync_ref_model",
        release="1.16.0",
    )
    assert found.regime.on_policy is False
    assert "4 updates" in found.regime.why
    words = " ".join(each.text for each in found.effects)
    for expected in (
        "standard deviation (scale_rewards group)",
        "sequence-level importance masks against vLLM",
        "1 / its length",
        "entropy bonus",
        "every 512 steps it becomes 0.6 of the policy",
        "the clip [0.8, 1.2]",
    ):
        assert expected in words, expected
    for release, on_policy in (("0.18.0", False), ("", None), ("0.24.0", True)):
        assert only(f"{IMPORT}RLOOConfig(rloo_k=4)", "x.py", release).regime.on_policy is on_policy


def test_keys_are_held_against_their_release() -> None:
    found = only(f"{TRL} --beta 0.04 --num_generation 8 --vllm_device auto", release="1.16.0")
    texts = {each.key: each.text for each in found.key_findings}
    assert "did you mean --num_generations?" in texts["num_generation"]
    assert "another release has it" in texts["vllm_device"]


def test_the_history_is_what_the_releases_themselves_say() -> None:
    for version in VERSIONS:
        for script in SCRIPTS:
            imported, read = options(script, version), own_options(script)[version]
            assert {k: o.default for k, o in read.items()} == {k: imported[k].default for k in read}


def test_a_change_that_the_release_offers() -> None:
    found = only(f"{TRL} --beta 0.04", release="1.9.2")
    assert [e.text for c in found.changes for e in c.edits] == ["--use_bias_correction_kl True"]
    assert not only(f"{TRL} --beta 0.04", release="0.18.0").changes


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("trl grpo --bet 0.04", "token_reverse_kl"),
        ("trl grpo --beta 0.04 --use_bias False", "token_forward_kl"),
        ("trl grpo --beta 0.04 --no_use_bias_correction_kl", "token_forward_kl"),
        ("trl grpo --beta 0.04 --no-use-bias-correction-kl", "token_forward_kl"),
        ("accelerate launch -m trl.scripts.rloo --bet 0", "no_kl"),
        ("python -m trl.cli.main grpo --beta 0.04", "token_reverse_kl"),
    ],
)
def test_flags_are_read_as_trls_parser_reads_them(text: str, verdict: str) -> None:
    """HfArgumentParser takes abbreviations, and `--no_x` for a switch that is on by default."""
    finding = only(text, release="1.16.0")
    assert (finding.term_verdict, finding.confidence) == (verdict, "certain")


@pytest.mark.parametrize(
    ("text", "consequence"),
    [
        ("trl grpo --beta 0.04 --num_processes 8 --multi_gpu --accelerate_config zero3", ""),
        ("trl grpo --beta 0.04 --bogus 3", "would not start"),
        ("trl grpo --beta 0.04 --num_gen 8", "would not start"),
        ("trl grpo --config=x.yaml", "would not start"),
        ("python -m trl.scripts.grpo --beta 0.04 --num_processes 8", "would not start"),
        ("trl grpo --config x.yaml", "would not start"),
        ("python -m trl.scripts.grpo --config x.yaml", "is ignored"),
    ],
)
def test_what_trl_does_with_a_flag_that_it_does_not_know(text: str, consequence: str) -> None:
    """`trl` hands it to `accelerate launch`; a script refuses it, and ignores it in a file."""
    files = {"x.yaml": "beta: 0.04\nbogus: 3\n"}
    (finding,) = audit(text, "a.sh", files=files, versions=RELEASE)
    found = {each.consequence for each in finding.key_findings}
    assert found == ({consequence} if consequence else set())
    assert (finding.verdict == "undetermined") == ("--config=" in text)


PLAIN = f"{IMPORT}GRPOConfig(beta=0.02, num_generations=8)\n"
ARGPARSE = f"""import argparse
{IMPORT}parser = argparse.ArgumentParser()
parser.add_argument("--beta", type=float, default=0.04)
args = parser.parse_args()
GRPOConfig(beta=args.beta, num_generations=8)
"""
PARSER = """from trl import GRPOConfig, ModelConfig, TrlParser
training, model = TrlParser((GRPOConfig, ModelConfig)).parse_args_and_config()
"""
TYRO = f"""import tyro
{IMPORT}class Args:
    kl: float = 0.04
def main(cfg: Args):
    GRPOConfig(beta=cfg.kl)
main(tyro.cli(Args))
"""
RELEASE = {"trl": "1.16.0 given"}
ON, OFF, OPEN = "token_reverse_kl", "no_kl", "undetermined"


@pytest.mark.parametrize(
    ("program", "arguments", "verdict"),
    [
        (PLAIN, "", ON),
        (ARGPARSE, "", ON),
        (ARGPARSE, "--beta 0", OFF),
        (ARGPARSE, "--bet=0.0", OFF),
        (ARGPARSE, "--beta $BETA", OPEN),
        (PARSER, "--beta 0.04", ON),
        (PARSER, "--config x.yaml", ON),
        (PARSER, "--config x.yaml --beta 0", OFF),
        (PARSER, "--config gone.yaml", OPEN),
        (f"{PARSER}training.beta = 0.0\n", "--beta 0.04", OFF),
        (TYRO, "", ON),
        (TYRO, "--kl 0", OFF),
    ],
)
def test_a_command_that_runs_a_program_is_read_through_it(
    program: str, arguments: str, verdict: str
) -> None:
    text = f"accelerate launch --num_processes 8 train.py {arguments}"
    files = {"train.py": program, "x.yaml": "beta: 0.04\n"}
    (finding,) = audit(text, "a.sh", files=files, versions=RELEASE)
    assert finding.term_verdict == verdict
    assert finding.entry_point == "train.py: GRPOConfig"
    heredoc = f"cat > train.py <<'PY'\n{program}PY\n{text}"
    (own,) = audit(heredoc, "a.sh", files={"x.yaml": files["x.yaml"]}, versions=RELEASE)
    assert own.term_verdict == verdict
