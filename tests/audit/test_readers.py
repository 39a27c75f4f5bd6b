"""Libraries that are only read: their traps, their keys, a fork's own source, and real scripts."""

from collections.abc import Mapping
from importlib import import_module

import pytest

from orchestrator.audit import AuditFinding, UnreadableScript, audit
from orchestrator.library.key_tables import fields, flags

BASELINE = "reinforce_plus_plus_baseline"
SLIME = (
    "GRPO_ARGS=({args})\nray job submit --address=http://127.0.0.1:8265 -- python3 {entry} "
    "--actor-num-nodes 1 --rollout-batch-size 32 --n-samples-per-prompt 8 --global-batch-size 256 "
    "${{GRPO_ARGS[@]}}\n"
)


def read(text: str, name: str = "run.sh", files: Mapping[str, str] | None = None) -> AuditFinding:
    """Return the only finding on a text."""
    (finding,) = audit(text, name, files=files)
    return finding


def slime(
    args: str, entry: str = "train.py", files: Mapping[str, str] | None = None
) -> AuditFinding:
    return read(SLIME.format(args=args, entry=entry), files=files)


@pytest.mark.parametrize(
    ("args", "entry", "verdict"),
    [
        ("--use-kl-loss --kl-loss-coef 0.01", "train.py", "zero_mean_noise"),
        ("--use-kl-loss --kl-loss-coef 0.01", "train_async.py", "unlikelihood_of_old_samples"),
        ("--use-kl-loss --kl-loss-type k2", "train.py", "no_kl"),
        (
            "--use-kl-loss --kl-loss-coef 0.01 --kl-loss-type low_var_kl --use-unbiased-kl",
            "train.py",
            "token_reverse_kl",
        ),
        ("--kl-coef 0.01", "train.py", "no_kl"),
        (
            "--kl-coef 0.01 --advantage-estimator reinforce_plus_plus --normalize-advantages",
            "train.py",
            "unbiased_reverse_kl",
        ),
        (
            "--kl-coef 0.01 --advantage-estimator " + BASELINE + " --normalize-advantages",
            "train.py",
            "token_reverse_kl",
        ),
        ("--kl-coef 0.01 --advantage-estimator mine", "train.py", "undetermined"),
    ],
)
def test_slimes_terms(args: str, entry: str, verdict: str) -> None:
    finding = slime(args, entry)
    assert (finding.library, finding.verdict) == ("slime", verdict)


def test_slimes_grpo_drops_a_kl_in_the_reward_and_the_change_is_judged() -> None:
    finding = slime("--kl-coef 0.01")
    assert finding.problem
    assert "--kl-coef" in [each.flag for each in finding.inactive_flags]
    assert "k2 in the loss" in [each.words for each in finding.changes]


def test_slime_drops_a_misspelt_flag_without_a_word_and_miles_refuses_it() -> None:
    typo = "--use-kl-loss --kl-loss-coeff 0.01 --kl-loss-type k2"
    (key,) = slime(typo).key_findings
    assert (key.consequence, key.mistake) == ("is ignored", True)
    assert "did you mean --kl-loss-coef?" in key.text
    (key,) = slime(typo + " --hf-checkpoint /models/miles").key_findings
    assert key.consequence == "may not start"


def test_the_source_of_a_fork_beside_the_script_gives_the_defaults() -> None:
    source = 'p.add_argument("--kl-loss-type", choices=["k2", "mine"], default="k2")\n'
    finding = slime("--use-kl-loss --kl-loss-coef 0.01", files={"slime/utils/arguments.py": source})
    assert finding.verdict == "token_reverse_kl"
    assert "slime/utils/arguments.py beside it" in finding.version_because
    assert "as it was published" in slime("--use-kl-loss").version_because


NEMO = "grpo: {{num_prompts_per_step: 8, num_generations_per_prompt: 4}}\nloss_fn: {{{loss}}}\n"


@pytest.mark.parametrize(
    ("arguments", "verdict"),
    [
        ("f'{common}{kl}'", "token_forward_kl"),
        ("common + kl", "token_forward_kl"),
        ("common", "no_kl"),
        ("f'{common} --use-kl-loss --kl-loss-coef {weight()} '", "undetermined"),
    ],
)
def test_a_launch_that_slimes_own_function_starts(arguments: str, verdict: str) -> None:
    text = f"""import slime.utils.external_utils.command_utils as U
class Sizes:
    samples: int = 8
def execute(sizes: Sizes):
    common = f"--rollout-num-gpus 8 --rollout-batch-size 32 --global-batch-size 256 "
    common_ = "--advantage-estimator grpo "
    kl = "--use-kl-loss --kl-loss-coef 0.01 --kl-loss-type low_var_kl "
    U.execute_train(train_args={arguments} + common_ + f"--n-samples-per-prompt {{sizes.samples}}",
                    num_gpus_per_node=8)
"""
    finding = read(text, "run.py")
    assert (finding.entry_point, finding.verdict) == ("slime/train.py", verdict)
    assert finding.group_size == 8
    assert finding.regime.on_policy is True


@pytest.mark.parametrize(
    ("release", "loss", "verdict"),
    [
        ("0.6.0", "reference_policy_kl_type: k3", "token_forward_kl"),
        ("0.7.0", "reference_policy_kl_type: k3", "token_reverse_kl"),
        ("0.6.0", "reference_policy_kl_type: k2", "token_reverse_kl"),
        ("0.7.0", "reference_policy_kl_type: k2", "other_objective"),
        ("0.6.0", "reference_policy_kl_type: k1", "zero_mean_noise"),
        ("0.7.0", "reference_policy_kl_type: k1", "token_reverse_kl"),
        ("0.7.0", "use_kl_in_reward: true", "no_kl"),
        ("0.7.0", "reference_policy_kl_penalty: 0", "no_kl"),
    ],
)
def test_what_nemo_rls_releases_make_of_equal_keys(release: str, loss: str, verdict: str) -> None:
    text = NEMO.format(loss=loss) + "policy: {train_global_batch_size: 32}\n"
    (finding,) = audit(text, "grpo.yaml", versions={"nemo_rl": f"{release} it is pinned"})
    assert (finding.library, finding.verdict) == ("nemo_rl", verdict)


def test_nemo_rls_bases_are_followed_or_known_or_missed() -> None:
    child = "defaults: ../base.yaml\nloss_fn: {ratio_clip_max: 0.3}\ngrpo: {max_num_steps: 5}\n"
    base = "loss_fn: {reference_policy_kl_penalty: 0.5}\n"
    found = read(child, "child.yaml", {"../base.yaml": base})
    assert found.kl_in_loss.beta == 0.5
    assert read(child.replace("../base", "x/grpo_math_8B"), "c.yaml").kl_in_loss.beta == 0.01
    assert read(child, "child.yaml").verdict == "undetermined"


def test_nemo_rls_loss_beside_the_script_says_which_gradient_it_is() -> None:
    score = "torch.exp(\n    curr_logprobs_unfiltered - curr_logprobs_unfiltered.detach()\n)"
    source = f"kl_importance_weights = {score}"
    run = "uv run examples/run_grpo.py loss_fn.reference_policy_kl_type=k3"
    path = "nemo_rl/algorithms/loss/loss_functions.py"
    assert read(run, files={path: source}).verdict == "token_reverse_kl"
    assert read(run, files={path: "w = 1"}).verdict == "token_forward_kl"
    of_policy = f"log_ratios = curr_logprobs - curr_logprobs.detach()  # 0.6.0\nratios = {score}"
    assert read(run, files={path: of_policy}).verdict == "token_forward_kl"
    assert "0.7.0 changed the gradient" in " ".join(read(run).assumes)


@pytest.mark.parametrize(
    ("args", "verdict"),
    [
        ("--async_steps 0", "token_forward_kl"),
        ("--async_steps 0 --kl_estimator 3", "token_reverse_kl"),
        ("--kl_estimator 3", "other_objective"),
        ("--kl_estimator 3 --use_vllm_logprobs true", "token_reverse_kl"),
        ("--kl_estimator kl3 --async_steps 0", "token_forward_kl"),
        ("--load_ref_policy false --beta 0.1", "no_kl"),
        ("--kl_estimator 4", "undetermined"),
    ],
)
def test_open_instructs_estimators(args: str, verdict: str) -> None:
    run = (
        f"python mason.py --gpus 8 -- source ray.sh \\&\\& python open_instruct/grpo_fast.py {args}"
    )
    finding = read(run)
    assert (finding.library, finding.verdict) == ("open_instruct", verdict)


def test_open_instructs_reference_policy_moves() -> None:
    finding = read("python open_instruct/grpo_fast.py --ref_policy_update_freq 4")
    assert any("the reference policy moves" in each.text for each in finding.effects)
    assert "--ref_policy_update_freq" in finding.moving_reference


def test_a_ratio_to_a_later_policy_is_no_correction() -> None:
    args = "--use-kl-loss --kl-loss-coef 0.01 --use-unbiased-kl --kl-loss-type"
    late = "train_async.py"
    assert slime(f"{args} k3", late).verdict == "k2_of_old_samples"
    assert slime(f"{args} k1", late).verdict == "other_objective"
    assert slime(f"{args} k1 --use-rollout-logprobs", late).verdict == "token_reverse_kl"


@pytest.mark.parametrize(
    ("text", "trainer"),
    [
        ("llamafactory-cli train examples/ppo.yaml", "LLaMA-Factory"),
        ("python src/train.py --stage ppo --do_train", "LLaMA-Factory"),
        ("deepspeed main.py --actor_zero_stage 2 --critic_zero_stage 2", "DeepSpeed-Chat"),
        ("python examples/nlp/gpt/train_gpt_ppo_actor.py trainer.ppo.max_steps=1", "NeMo-Aligner"),
        ("python train.py --config-name _2_sokoban", "RAGEN"),
        ("swift rlhf --rlhf_type grpo --model m", "ms-swift"),
        ("python3 -m areal.launcher.local examples/math/gsm8k_rl.py --config a.yaml", "AReaL"),
        ("python examples/start_rlvr_pipeline.py --config_name rlvr_config", "ROLL"),
    ],
)
def test_a_trainer_that_orch_does_not_read_is_named(text: str, trainer: str) -> None:
    with pytest.raises(UnreadableScript, match=f"this is {trainer}; orch does not read it"):
        audit(text, "run.sh")


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


OPEN_R1 = "torchrun --nproc_per_node 8 src/open_r1/grpo.py --output_dir o --num_generations 8"
RECIPE = "model_name_or_path: m\ndataset_prompt_column: problem\nnum_generations: 16\nbeta: null\n"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (f"{OPEN_R1} --max_prompt_length 1024", "run.sh"),
        (RECIPE.replace("beta: null\n", "use_vllm: true\nreward_funcs: [accuracy]\n"), "grpo.yaml"),
    ],
)
def test_open_r1_stands_on_trl_up_to_0_18(text: str, name: str) -> None:
    """Its setup.py never asked for 0.19.0, whose β is 0: its scripts have k3 at 0.04."""
    finding = read(text, name)
    assert (finding.library, finding.term_verdict) == ("trl", "token_forward_kl")
    assert finding.kl_in_loss.beta == 0.04
    assert finding.confidence == "assumed"
    assert "open-r1" in finding.version_because


def test_open_r1_with_options_of_a_later_trl_is_of_that_release() -> None:
    finding = read(f"{OPEN_R1} --use_bias_correction_kl True --beta 0.01")
    assert finding.kl_in_loss.beta == 0.01


PARSED = """
from trl import GRPOConfig, GRPOTrainer, ModelConfig, TrlParser

if __name__ == "__main__":
    parser = TrlParser((GRPOConfig, ModelConfig))
    training_args, model_args = parser.parse_args_and_config()
    training_args.beta = 0.02
    GRPOTrainer(model=model_args.model_name_or_path, args=training_args)
"""


def test_a_configuration_that_a_parser_makes_is_read() -> None:
    finding = read(PARSED, "train.py")
    assert (finding.library, finding.kl_in_loss.beta) == ("trl", 0.02)
    assert any("no option is given" in each for each in finding.assumes)


def test_a_command_between_fences_of_a_docstring_is_read() -> None:
    """The fences were read as command substitutions, and the file was refused."""
    text = """
        # Full training
        ```bash
        python examples/scripts/grpo_agent.py \\
            --model_name_or_path m --max_completion_length 1024 --beta 0.03
        ```
    """
    finding = read(f"'''{text}'''\nimport trl\n", "grpo_agent.py")
    assert (finding.library, finding.kl_in_loss.beta) == ("trl", 0.03)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (
            "{policy: {fsdp_offload_enabled: 1}, grpo: {checkpoint_dir: a}, loss_fn: {x: 1}}\n",
            "policy.fsdp_offload_enabled, grpo.checkpoint_dir",
        ),
    ],
)
def test_the_reason_for_a_release_names_the_first_keys_of_the_file(text: str, named: str) -> None:
    """The keys stood in a set: the words changed from run to run."""
    assert read(text, "grpo.yaml").version_because == f"the newest release that has {named}"
