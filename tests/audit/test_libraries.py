"""What each library makes of its flags, release by release."""

from pathlib import Path

import pytest

from audit.scripts import (
    COEFFICIENT,
    IN_REWARD,
    ON_POLICY,
    OPENRLHF,
    SKYRL,
    TYPE,
    USE_LOSS,
    VERL,
    only,
    verdict,
)
from backends.prime_rl.releases import TAU_DEFAULT
from orchestrator.audit import UnreadableScript, audit
from orchestrator.audit.libraries import pins, versions

KL_COEFFICIENT = "algorithm.kl_ctrl.kl_coef"


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("", "no_kl"),
        (f"{IN_REWARD}=True", "unbiased_reverse_kl"),
        (f"{IN_REWARD}=True algorithm.kl_penalty=low_var_kl", "biased_reward"),
        (f"{IN_REWARD}=True {KL_COEFFICIENT}=0", "no_kl"),
        (f"{USE_LOSS}=True", "token_forward_kl"),
        (f"{USE_LOSS}=True {TYPE}=mse", "token_reverse_kl"),
        (f"{USE_LOSS}=True {TYPE}=k3+", "token_reverse_kl"),
        (f"{USE_LOSS}=True {TYPE}=k1", "zero_mean_noise"),
        (f"{USE_LOSS}=True {COEFFICIENT}=0.0", "no_kl"),
        (f"{USE_LOSS}=True {IN_REWARD}=True", "both"),
        (f"{USE_LOSS}=True {TYPE}=full", "undetermined"),
    ],
)
def test_verl(flags: str, expected: str) -> None:
    assert verdict(f"{VERL} {flags}", versions={"verl": "0.9.0 told"}) == expected


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("0.2.0", "unbiased_reverse_kl"),
        ("0.3.0.post1", "unbiased_reverse_kl"),
        ("0.4.0", "no_kl"),
        ("0.9.0", "no_kl"),
    ],
)
def test_one_file_means_two_things_in_verl(version: str, expected: str) -> None:
    text = f"{VERL} {KL_COEFFICIENT}=0.001"
    assert verdict(text, versions={"verl": f"{version} told"}) == expected


def test_verl_without_a_hint_of_its_release_is_not_guessed() -> None:
    found = only(f"{VERL} {KL_COEFFICIENT}=0.001")
    assert found.term_verdict == "undetermined"
    assert "before and after 0.4.0" in found.why


@pytest.mark.parametrize(
    ("more", "version"),
    [
        ("actor_rollout_ref.actor.fsdp_config.grad_offload=False", "0.2.0"),
        ("trainer.use_v1=True", "0.9.1"),
        ("trainer.checkpoint_callback_class=x", "0.9.1"),
        ("data.continuous_token.enable=True", "0.9.0"),
        ("+trainer.val_before_train=False", "0.3.0"),
    ],
)
def test_keys_tell_the_release_of_verl(more: str, version: str) -> None:
    assert only(f"{VERL} {USE_LOSS}=True {more}").version == version


MEGATRON_OF_2025 = """
data.train_files data.val_files data.train_batch_size
data.max_prompt_length data.max_response_length
actor_rollout_ref.model.path actor_rollout_ref.actor.optim.lr
actor_rollout_ref.actor.ppo_mini_batch_size actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu
actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu
actor_rollout_ref.rollout.tensor_model_parallel_size actor_rollout_ref.rollout.name
actor_rollout_ref.rollout.gpu_memory_utilization
actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu
critic.optim.lr critic.model.path critic.model.enable_gradient_checkpointing
critic.ppo_micro_batch_size_per_gpu algorithm.kl_ctrl.kl_coef trainer.critic_warmup trainer.logger
trainer.project_name trainer.experiment_name trainer.n_gpus_per_node trainer.nnodes
trainer.save_freq trainer.test_freq trainer.total_epochs
"""


def test_a_copy_of_verls_own_script_has_the_release_of_that_script() -> None:
    """Its keys fit both sides of 0.4.0; the script with these very keys is from before."""
    values = {"algorithm.kl_ctrl.kl_coef": "0.001", "data.train_batch_size": "256"}
    words = [f"{key}={values.get(key, '1')}" for key in MEGATRON_OF_2025.split()]
    head = "python3 -m verl.trainer.main_ppo --config-name=ppo_megatron_trainer "
    copied = only(head + " ".join(words))
    assert (copied.term_verdict, copied.confidence) == ("unbiased_reverse_kl", "assumed")
    assert copied.version.startswith("0.3")
    assert any("run_deepseek_math_gsm8k_megatron.sh" in each for each in copied.assumes)
    assert verdict(head + " ".join(words[1:])) == "undetermined"
    switched = f"{head} {' '.join(words)} actor_rollout_ref.actor.use_kl_loss=False"
    assert only(switched).version_because != copied.version_because


GUARDED = """from trl import GRPOConfig
try:
    from trl import is_rich_available
except ImportError:
    is_rich_available = bool
"""


@pytest.mark.parametrize(
    ("imports", "expected"),
    [
        ("from trl import GRPOConfig, GRPOTrainer", "undetermined"),
        ("from trl import GRPOConfig\nfrom trl.rewards import accuracy_reward", "no_kl"),
        ("from trl import GRPOConfig, is_rich_available", "token_forward_kl"),
        (GUARDED, "undetermined"),
        ("from trl import GRPOConfig, GRPOTrainer\nGRPOTrainer(tools=[f], args=1)", "no_kl"),
    ],
)
def test_imports_tell_the_release_of_trl(imports: str, expected: str) -> None:
    """beta is 0.04 by default up to 0.18.2, and 0 since 0.19.0."""
    call = f"{imports}\nconfig = GRPOConfig(num_generations=8, max_completion_length=64)\n"
    assert verdict(call, "train.py") == expected


def test_imports_tell_the_release_of_a_command_in_the_files_own_docstring() -> None:
    command = "python scripts/grpo_mine.py --num_generations 8 --max_completion_length 64"
    text = f'"""\n{command}\n"""\nfrom trl.rewards import accuracy_reward\n'
    assert verdict(text, "grpo_mine.py") == "no_kl"
    with pytest.raises(UnreadableScript, match="line 2 has one"):
        audit(text, "other.py")


def test_pins_tell_the_release() -> None:
    assert only(f"pip install verl==0.3.0\n{VERL} {KL_COEFFICIENT}=0.1").version == "0.3.0"


def test_verl_flags_without_effect() -> None:
    found = only(
        f"{VERL} {USE_LOSS}=False {TYPE}=k3 {COEFFICIENT}=0.1 {IN_REWARD}=False "
        f"{KL_COEFFICIENT}=0.1"
    )
    assert {each.flag for each in found.inactive_flags} == {TYPE, COEFFICIENT, KL_COEFFICIENT}


def test_a_recipe_that_ignores_the_reward_flags() -> None:
    found = only(f"python -m recipe.prime.main_prime {IN_REWARD}=True {KL_COEFFICIENT}=0.1")
    assert found.term_verdict == "no_kl"
    assert IN_REWARD in {each.flag for each in found.inactive_flags}


@pytest.mark.parametrize(
    ("flags", "expected", "version"),
    [
        ("", "unbiased_reverse_kl", None),
        ("--init_kl_coef 0.05", "unbiased_reverse_kl", None),
        ("--init_kl_coef 0", "no_kl", None),
        ("--init_kl_coef=0.0 --use_kl_loss --kl_estimator k3", "no_kl", None),
        ("--use_kl_loss", "zero_mean_noise", None),
        ("--use_kl_loss --kl_estimator k2", "token_reverse_kl", None),
        ("--use_kl_loss --kl_estimator k3", "token_forward_kl", None),
        ("--kl_estimator k3", "biased_reward", None),
        ("--use_kl_estimator_k3", "biased_reward", "0.6.0"),
        ("--algo.kl.use_loss --algo.kl.estimator k3", "token_forward_kl", "0.11.2"),
        ("--algo.kl.use_loss --algo.advantage.is_correction_enable", "zero_mean_noise", "0.11.0"),
        (
            "--algo.kl.use_loss --algo.kl.estimator k3 --algo.kl.unbiased_gradient",
            "token_reverse_kl",
            "0.11.2",
        ),
        ("--algo.kl.unbiased_gradient", "unbiased_reverse_kl", "0.11.2"),
    ],
)
def test_openrlhf(flags: str, expected: str, version: str | None) -> None:
    found = only(f"{OPENRLHF} {flags}")
    assert found.term_verdict == expected
    assert version in (None, found.version)


A = "trainer.algorithm"


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("", "token_forward_kl"),
        (f"{A}.use_kl_loss=false", "no_kl"),
        (f"{A}.kl_loss_coef=0", "no_kl"),
        (f"{A}.use_kl_loss=false {A}.use_kl_in_reward=true", "biased_reward"),
        (
            f"{A}.use_kl_loss=false {A}.use_kl_in_reward=true {A}.kl_estimator_type=k1",
            "unbiased_reverse_kl",
        ),
        (f"{A}.kl_estimator_type=k1", "zero_mean_noise"),
        (f"{A}.kl_estimator_type=k2", "token_reverse_kl"),
    ],
)
def test_skyrl(flags: str, expected: str) -> None:
    assert verdict(f"{SKYRL} {flags}") == expected


def test_skyrl_refuses_both_at_once() -> None:
    found = only(f"{SKYRL} {A}.use_kl_in_reward=true")
    assert found.term_verdict == "both"
    assert "refuses" in found.contradictions[0].text


@pytest.mark.parametrize(
    ("text", "more"),
    [
        (f"python -m skyrl_train.entrypoints.main_base {A}.use_kl_loss=true", {}),
        (f"{SKYRL} {A}.use_kl_loss=true", {"versions": {"skyrl": "0.1.0 told"}}),
    ],
)
def test_skyrl_without_gradient(text: str, more: dict[str, dict[str, str]]) -> None:
    found = only(text, **more)
    assert found.term_verdict == "no_kl"
    assert "without gradient" in found.why
    assert found.problem


@pytest.mark.parametrize(
    ("text", "expected", "tau"),
    [
        ("kl_coef = 0.1\nname_model = 'x'\n", "no_kl", None),
        ("inference_gpu_ids = [0]\n[orchestrator]\nbatch_size = 8\n", "no_kl", 0.0),
        ("[slurm]\njob_name = 'x'\n", "undetermined", None),
        ("[slurm]\n[trainer.loss]\nkl_tau = 0.0\n", "no_kl", 0.0),
        ("[orchestrator]\nbatch_size = 8\n[trainer.loss]\ntype = 'custom'\n", "undetermined", None),
        (
            (
                "inference_gpu_ids = [0]\nmax_async_level = 1\n[orchestrator]\nbatch_size = 8\n"
                "[trainer.loss]\nteacher_tau = 0.1\nkl_tau = 0\n"
            ),
            "token_reverse_kl",
            0.0,
        ),
    ],
)
def test_prime_rl(text: str, expected: str, tau: float | None) -> None:
    found = only(text, "rl.toml")
    assert (found.term_verdict, found.rollout_kl) == (expected, tau)


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ({"prime_rl": "0.5.0 told"}, "rollout_policy_kl_only"),
        ({"prime_rl": "0.4.0 told"}, "no_kl"),
        ({TAU_DEFAULT: "0.0 its source"}, "no_kl"),
        ({TAU_DEFAULT: "1e-3 its source"}, "rollout_policy_kl_only"),
    ],
)
def test_the_default_of_kl_tau_is_that_of_the_release_or_of_the_source_beside(
    told: dict[str, str], expected: str
) -> None:
    """Its keys do not tell: commits between 0.4.0 and 0.5.0 had those of 0.5.0."""
    found = only("[slurm]\njob_name = 'x'\n", "rl.toml", versions=told)
    assert found.term_verdict == expected


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
    found = versions(tmp_path / "configs/x/rl.toml")
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
    said = versions(tmp_path / "examples/scripts/grpo.py")["trl"]
    assert said.partition(" ")[0] in text


def test_a_teacher_that_is_another_model_is_said_to_be_one() -> None:
    text = (
        "[model]\nname = 'small'\n[teacher_inference.model]\nname = '{}'\n"
        "[trainer.loss]\nteacher_tau = 0.3\n[orchestrator]\nbatch_size = 8\n"
    )
    rules = [[r.text for r in only(text.format(x), "rl.toml").rules] for x in ("large", "small")]
    assert ["distillation" in " ".join(each) for each in rules] == [True, False]


def test_prime_rl_overlays_by_command() -> None:
    files = {"a.toml": "[orchestrator]\nbatch_size = 8\n", "b.toml": "[trainer.loss]\nkl_tau = 0\n"}
    text = "uv run rl @ a.toml @ b.toml --trainer.loss.kl-tau 0.25"
    assert only(text, files=files).rollout_kl == 0.25


def test_hydra_configurations_build_on_others() -> None:
    base = "actor_rollout_ref:\n  actor:\n    use_kl_loss: true\n    kl_loss_type: kl\n"
    own = "defaults:\n  - base\nalgorithm:\n  use_kl_in_reward: false\n  adv_estimator: grpo\n"
    own += "actor_rollout_ref:\n  actor:\n    kl_loss_coef: 0.5\n"
    assert verdict(own, "x.yaml", files={"base.yaml": base}) == "zero_mean_noise"
    assert verdict(own, "x.yaml") == "undetermined"


def test_a_script_in_yaml() -> None:
    text = f"envs:\n  T: kl\nrun: |\n  set -e\n  {VERL} \\\n    {USE_LOSS}=True {TYPE}=$T\n"
    found = only(text, "sky.yaml")
    assert (found.term_verdict, found.line) == ("zero_mean_noise", 5)


def test_a_command_in_python() -> None:
    argv = ["python", "-m", "verl.trainer.main_ppo", f"{USE_LOSS}=True", f"{TYPE}=kl"]
    text = f"import subprocess\nsubprocess.run({argv!r})\n"
    assert verdict(text, "launch.py") == "zero_mean_noise"


EASYR1 = "python3 -m verl.trainer.main config=examples/config.yaml"


@pytest.mark.parametrize(
    ("flags", "expected", "beta"),
    [
        ("", "token_forward_kl", 0.01),
        ("algorithm.disable_kl=True", "no_kl", None),
        ("algorithm.use_kl_loss=false", "biased_reward", 0.01),
        (
            "algorithm.use_kl_loss=false algorithm.kl_penalty=kl algorithm.kl_coef=1e-3",
            "unbiased_reverse_kl",
            0.001,
        ),
        ("algorithm.kl_penalty=mse", "token_reverse_kl", 0.01),
        ("algorithm.kl_coef=0.0", "no_kl", 0.0),
        ("algorithm.use_kl_loss=$(cat x)", "undetermined", None),
    ],
)
def test_easyr1_is_a_fork_with_keys_of_its_own(
    flags: str, expected: str, beta: float | None
) -> None:
    found = only(f"{EASYR1} worker.rollout.n=8 {flags}")
    assert (found.version, found.term_verdict) == ("EasyR1", expected)
    if beta is not None:
        assert beta in (found.kl_in_loss.beta, found.kl_in_reward.beta)


def test_easyr1_reads_the_configuration_it_names() -> None:
    config = "algorithm:\n  use_kl_loss: false\n  kl_penalty: kl\nworker:\n  actor: {x: 1}\n"
    text = "python3 -m verl.trainer.main config=my/own.yaml worker.actor.x=1"
    assert verdict(text) == "undetermined"
    assert verdict(text, files={"my/own.yaml": config}) == "unbiased_reverse_kl"
    assert verdict(config, "own.yaml") == "unbiased_reverse_kl"
    old = "python3 -m verl.trainer.main config=examples/grpo_example.yaml worker.rollout.n=5"
    assert only(f"{old} worker.actor.kl_loss_coef=1.0e-2").kl_in_loss.beta == 0.01


def test_a_coefficient_of_zero_needs_no_switch_to_be_known() -> None:
    text = f"python3 -m mine.main_ppo --config-name mine {USE_LOSS}=False {KL_COEFFICIENT}=0.0"
    assert verdict(text) == "no_kl"
    assert verdict(f"{VERL} {USE_LOSS}=$(cat x) {COEFFICIENT}=0 {IN_REWARD}=False") == "no_kl"


def test_a_negative_coefficient_is_told() -> None:
    found = only(f"{VERL} {IN_REWARD}=True {KL_COEFFICIENT}=-0.05")
    assert any("negative" in note.text for note in found.contradictions)


def test_skyrl_distillation_is_the_kl_to_the_teacher() -> None:
    flags = f"{A}.advantage_estimator=no_op {A}.use_kl_in_reward=true {A}.use_kl_loss=false"
    main = "examples.train.on_policy_distillation.main_on_policy_distill"
    found = only(f"uv run -m {main} {flags}")
    assert (found.term_verdict, found.kl_in_reward.estimator) == ("token_reverse_kl", "k1")
    assert "teacher" in found.why
    assert verdict(f"uv run -m mine.main_teacher {flags}") == "undetermined"


def test_skyrl_keys_of_old_do_not_tell_the_package() -> None:
    found = only(f"python -m mine.main {A}.use_kl_loss=true generator.num_inference_engines=8")
    assert (found.version, found.term_verdict) == ("0.2.0", "token_forward_kl")
    assert found.confidence == "assumed"


@pytest.mark.parametrize(
    ("environment", "expected"), [("[environment]", "no_kl"), ("[[env]]", "undetermined")]
)
def test_the_orchestrators_half_of_prime_rl(environment: str, expected: str) -> None:
    text = f"batch_size = 8\nrollouts_per_example = 4\n{environment}\nid = 'x'\n"
    found = only(text, "orch.toml")
    assert (found.term_verdict, found.entry_point) == (expected, "orchestrator")


@pytest.mark.parametrize(
    ("text", "confidence"),
    [
        (f"{VERL} {IN_REWARD}=True", "certain"),
        (f"{VERL} {USE_LOSS}=$(cat x)", "conditional"),
        (f"python -m mine.main {USE_LOSS}=True {IN_REWARD}=False", "assumed"),
    ],
)
def test_how_sure_an_answer_is(text: str, confidence: str) -> None:
    assert only(text, versions={"verl": "0.9.1 told"}).confidence == confidence


def test_a_guessed_release_is_never_certain() -> None:
    finding = only(f"{VERL} {IN_REWARD}=True")
    assert (finding.release_guessed, finding.confidence) == (True, "assumed")


def test_measured_words_are_the_laboratorys() -> None:
    assert "token-level forward KL" in only(f"{VERL} {ON_POLICY} {USE_LOSS}=True").measured
    old = only(f"{VERL} {USE_LOSS}=True").measured
    assert "mean of k3 under the frozen rollout policy; in the laboratory 1.5% off near" in old
    assert "rollout policy is one tenth nearer the reference policy" in old


RL = "inference_gpu_ids = [0]\n[orchestrator]\nbatch_size = 8\n"
SOURCE = "[[orchestrator.train.source]]\nalgo.type = '{}'\n"


@pytest.mark.parametrize(
    ("release", "more", "expected"),
    [
        ("0.5.0", "[trainer.loss]\ntype = 'sft'\n", "no_kl"),
        ("0.6.0", "training_mode = 'opd'\n", "token_reverse_kl"),
        ("0.6.0", "training_mode = 'sft'\n", "no_kl"),
        ("0.6.0", "training_mode = 'rl'\n", "rollout_policy_kl_only"),
        ("0.8.0", "algo.type = 'sft'\n", "no_kl"),
        ("0.8.0", "algo.type = 'opd'\n", "token_reverse_kl"),
        ("0.8.0", "algo.type = 'grpo'\n", "rollout_policy_kl_only"),
        ("0.8.0", SOURCE.format("opd"), "token_reverse_kl"),
        ("0.8.0", SOURCE.format("opd") + SOURCE.format("grpo"), "undetermined"),
        ("0.8.0", "algo.type = 'opd'\n" + SOURCE.format("grpo"), "rollout_policy_kl_only"),
    ],
)
def test_paths_of_prime_rl_that_do_not_read_kl_tau(release: str, more: str, expected: str) -> None:
    finding = only(RL + more, "rl.toml", versions={"prime_rl": f"{release} told"})
    assert finding.term_verdict == expected
    assert (finding.rollout_kl is None) == (expected in ("no_kl", "token_reverse_kl"))


def test_a_kl_tau_that_a_path_does_not_read_is_said_to_have_no_effect() -> None:
    text = f"{RL}algo.type = 'sft'\n[trainer.loss]\nkl_tau = 0.1\n"
    finding = only(text, "rl.toml", versions={"prime_rl": "0.8.0 told"})
    assert [each.flag for each in finding.inactive_flags] == ["trainer.loss.kl_tau"]


@pytest.mark.parametrize(
    ("release", "expected", "confidence"),
    [("0.4.0", "no_kl", "assumed"), ("0.8.0", "rollout_policy_kl_only", "assumed")],
)
def test_the_trainers_file_of_three(release: str, expected: str, confidence: str) -> None:
    text = "max_steps = 20\n[model]\nname = 'x'\n[optim]\nlr = 3e-6\n"
    finding = only(text, "train.toml", versions={"prime_rl": f"{release} told"})
    assert (finding.term_verdict, finding.confidence) == (expected, confidence)


@pytest.mark.parametrize("wrapper", ["conda run -n env", "conda run --no-capture-output -p /e"])
def test_conda_run_starts_a_launch(wrapper: str) -> None:
    assert verdict(f"{wrapper} {VERL} {USE_LOSS}=True") == "token_forward_kl"
    assert verdict(f"conda activate x && {VERL} {USE_LOSS}=True") == "token_forward_kl"


@pytest.mark.parametrize("prefix", ["trainer.", ""])
def test_prime_rls_sft_loss_names_its_release(prefix: str) -> None:
    """It was undetermined, for kl_tau, which this loss does not read."""
    rest = "[orchestrator]\nbatch_size = 8\n" if prefix else "[model]\n[optim]\nlr = 1e-6\n"
    finding = only(f'[{prefix}loss]\ntype = "sft"\n{rest}', "rl.toml")
    assert (finding.verdict, finding.version) == ("no_kl", "0.5.0")


@pytest.mark.parametrize(
    ("loss", "release", "expected"),
    [
        ("kl_tau = 0.002", "0.8.0", "rollout_policy_kl_only"),
        ("teacher_tau = 0.1\nkl_tau = 0.0", "0.5.0", "token_reverse_kl"),
        ('ratio_type = "token"', "0.4.0", "no_kl"),
        ("ipo_mask_low = 0.1", "0.5.0", "rollout_policy_kl_only"),
        ("dppo_mask_low = 0.1", "0.8.0", "rollout_policy_kl_only"),
        ("adv_tau = 0.5", "0.8.0", "undetermined"),
    ],
)
def test_a_trainers_loss_alone_says_which_parts_are_not_here(
    loss: str, release: str, expected: str
) -> None:
    finding = only(f"[loss]\n{loss}\n", "loss.toml")
    assert (finding.version, finding.term_verdict) == (release, expected)
    assert any("[model] and [optim]" in each for each in finding.assumes)


@pytest.mark.parametrize("text", ["[loss]\ntype = 'mse'\n", "[loss]\nkl_tau = 1\nmargin = 2\n"])
def test_another_tools_loss_is_no_launch(text: str) -> None:
    with pytest.raises(UnreadableScript, match="no launch"):
        audit(text, "loss.toml")


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("ratio_type", "no_kl"),
        ("sequence_mask_low", "no_kl"),
        ("ipo_mask_high", "rollout_policy_kl_only"),
        ("dppo_mask_high", "rollout_policy_kl_only"),
    ],
)
def test_keys_of_prime_rls_loss_date_the_default_of_kl_tau(key: str, expected: str) -> None:
    """They came and went in the commits that made and replaced the default loss."""
    assert only(f"{RL}[trainer.loss]\n{key} = 1\n", "rl.toml").term_verdict == expected


BASED = {
    "config/base.yaml": (
        "algorithm:\n  kl_ctrl:\n    kl_coef: 0.0\nactor_rollout_ref:\n  actor:\n"
        "    use_kl_loss: false\n    kl_loss_coef: 0.002\n    kl_loss_type: kl\n"
    ),
    "config/bandit.yaml": "defaults:\n  - base\ntrainer:\n  experiment_name: bandit\n",
    "train.py": '@hydra.main(version_base=None, config_path="config", config_name="bandit")\n',
}


@pytest.mark.parametrize("named", ["--config-name bandit ", ""])
def test_a_configuration_builds_on_those_of_its_own_folder(named: str) -> None:
    """`--config-name`, or the one of @hydra.main in the file that the command runs."""
    text = f"python train.py {named}algorithm.adv_estimator=grpo {USE_LOSS}=True"
    finding = only(text, files=BASED)
    assert finding.term_verdict == "zero_mean_noise"
    assert (finding.kl_in_loss.estimator, finding.kl_in_loss.beta) == ("k1", 0.002)


def test_a_base_that_is_missing_may_set_every_key() -> None:
    files = {"config/bandit.yaml": BASED["config/bandit.yaml"]}
    finding = only(f"python train.py --config-name bandit {USE_LOSS}=True", files=files)
    assert finding.verdict == "undetermined"
    assert "it may come from 'base', which is not here" in finding.why


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
        ("requirements.txt", "trl<1.12,>=1.0", "1.11.0"),
        ("requirements.txt", "trl~=1.9.0  # trl==1.4.0", "1.9.2"),
        ("pyproject.toml", 'dependencies = [\n "x", #"trl==1.4.0",\n "trl<=1.8.0"]', "1.8.0"),
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
    version, _, why = versions(scripts / "run.sh")["trl"].partition(" ")
    assert version == release
    assert path.partition("/")[0] in why, "the answer says where it was found"


def test_the_active_environment_counts_where_the_project_names_no_release(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "active/lib/python3.11/site-packages/trl-1.12.0.dist-info").mkdir(parents=True)
    monkeypatch.setenv("VIRTUAL_ENV", str(tmp_path / "active"))
    project = tmp_path / "project"
    (project / ".git").mkdir(parents=True)
    assert versions(project / "x.py")["trl"].startswith("1.12.0 the active environment")
    (project / "requirements.txt").write_text("trl==1.8.0\n")
    assert versions(project / "x.py")["trl"].startswith("1.8.0 ")


def test_requirements_may_include_others(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "requirements.txt").write_text("torch\n-r base.txt\n")
    (tmp_path / "base.txt").write_text("trl==1.8.0\n")
    assert versions(tmp_path / "run.sh")["trl"].startswith("1.8.0 ")


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
    around = versions(tmp_path / "run.sh")
    finding = only(f"{script}\n{VERL} {USE_LOSS}=True", versions=around)
    assert (finding.version, finding.release_guessed) == (version, guessed)
    assert finding.confidence == "assumed" or not guessed
    assert ("requirements.txt asks for verl<0.8" in finding.version_because) is guessed
