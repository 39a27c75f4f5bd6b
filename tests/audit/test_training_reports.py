"""Kinds of faults that users of the libraries reported in public, in launches of our own."""

import subprocess
from pathlib import Path

import pytest

from orchestrator import plugins
from orchestrator.audit import audit
from orchestrator.audit.judge import AuditFinding
from orchestrator.audit.summary import mark, one_line, summary
from orchestrator.library.launches import Launch, LaunchReading, Surroundings
from orchestrator.library.protocol import LaunchReader

VERL = (
    "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=rloo actor_rollout_ref.rollout.n=8 "
    "algorithm.use_kl_in_reward=True algorithm.kl_ctrl.kl_coef=0.05 "
)
SIZES = "data.train_batch_size=128 actor_rollout_ref.actor.ppo_mini_batch_size=128 "
SKYRL = (
    "python -m skyrl.train.entrypoints.main_base trainer.algorithm.use_kl_loss=true "
    "trainer.algorithm.kl_estimator_type=k2 trainer.algorithm.kl_loss_coef=0.01 "
)
SKYRL_SIZES = "trainer.train_batch_size=128 trainer.policy_mini_batch_size=128 "
OPENRLHF = (
    "python3 -m openrlhf.cli.train_ppo_ray --algo.advantage.estimator rloo "
    "--rollout.n_samples_per_prompt 8 --rollout.batch_size 32 --train.batch_size 256 "
)
OPENRLHF_FLAT = (
    "python3 -m openrlhf.cli.train_ppo_ray --advantage_estimator rloo --n_samples_per_prompt 8 "
    "--rollout_batch_size 32 --train_batch_size 256 "
)
PRIME = "[trainer.loss]\nkl_tau = 0.001\n[orchestrator.%s.extra_body]\n"
TRL = "from trl import GRPOConfig\nargs = GRPOConfig(output_dir='o', beta=0.04, %s)\n"


class Recorder:
    """A library's reader that keeps what it reads."""

    def __init__(self, reader: LaunchReader) -> None:
        self.reader = reader
        self.readings: list[LaunchReading] = []

    def __getattr__(self, name: str) -> object:
        return getattr(self.reader, name)

    def audit(self, launch: Launch) -> LaunchReading | None:
        reading = self.reader.audit(launch)
        self.readings += [] if reading is None else [reading]
        return reading


def read(text: str, library: str) -> tuple[LaunchReading, AuditFinding]:
    """What the reader of a release makes of a launch, and the audit of that."""
    name, _, version = library.partition("@")
    recorder = Recorder(plugins.load_reader(name))
    with pytest.MonkeyPatch.context() as patch:
        load = plugins.load_reader
        patch.setattr(plugins, "load_reader", lambda n: recorder if n == name else load(n))
        ending = {"trl": "py", "prime_rl": "toml"}.get(name, "sh")
        versions = {name: f"{version} --library"} if version else {}
        (found,) = audit(text, f"launch.{ending}", versions=versions)
    return recorder.readings[0], found


def reading_of(text: str, library: str) -> LaunchReading:
    return read(text, library)[0]


def around(text: str, library: str) -> Surroundings:
    surroundings = reading_of(text, library).surroundings
    assert surroundings is not None
    return surroundings


def remarks(text: str, library: str) -> str:
    reading = reading_of(text, library)
    near = reading.surroundings
    notes = () if near is None else (*near.notes, *near.unread)
    return "\n".join([*(note.text for note in reading.contradictions), *notes])


def test_a_batch_that_is_no_multiple_of_its_minibatch() -> None:
    odd = "data.train_batch_size=100 actor_rollout_ref.actor.ppo_mini_batch_size=64 "
    newest = reading_of(VERL + odd, "verl@0.9.1").regime
    assert newest.on_policy is False
    assert "2 train steps" in newest.why
    assert "no multiple of" in remarks(VERL + odd, "verl@0.8.0")
    assert reading_of(VERL + odd, "verl@0.8.0").regime.on_policy is None
    assert not read(VERL + SIZES, "verl@0.9.1")[1].stops
    skyrl = "trainer.train_batch_size=128 trainer.policy_mini_batch_size=100 "
    assert "validate_batch_sizes" in remarks(SKYRL + skyrl, "skyrl@0.4.0")
    assert not read(SKYRL + SKYRL_SIZES, "skyrl@0.4.0")[1].stops


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("", ""),
        ("actor_rollout_ref.actor.ppo_mini_batch_size=1024", "is less than"),
        ("trainer.n_gpus_per_node=7", "does not divide over 7 GPUs (verl/utils/config.py"),
        (
            "trainer.n_gpus_per_node=7 actor_rollout_ref.actor.use_dynamic_bsz=True",
            "train_mini_batch",
        ),
        ("trainer.n_gpus_per_node=$GPUS", ""),
        ("trainer.n_gpus_per_node=8 trainer.nnodes=3", "24 GPUs"),
        (
            "trainer.n_gpus_per_node=8 actor_rollout_ref.actor.ppo_mini_batch_size=1",
            "engine_workers",
        ),
        ("actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=12", "rollouts of a minibatch"),
        ("actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=64", ""),
        (
            "trainer.n_gpus_per_node=8 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=64",
            "the 32 rollouts of a GPU",
        ),
        ("actor_rollout_ref.actor.strategy=megatron trainer.nnodes=3", ""),
        ("trainer.v1.trainer_mode=separate_async trainer.nnodes=3", ""),
    ],
)
def test_sizes_that_verl_refuses(more: str, said: str) -> None:
    sizes = "data.train_batch_size=256 actor_rollout_ref.actor.ppo_mini_batch_size=64 "
    text = f"{VERL} {sizes} actor_rollout_ref.rollout.n=4 {more}"
    told = [each.text for each in read(text, "verl@0.9.1")[1].contradictions if each.stops]
    assert bool(told) == bool(said), told
    assert said in "".join(told)
    assert not read(text, "verl")[1].stops, "a guessed release refuses nothing"


@pytest.mark.parametrize(
    ("version", "more", "said"),
    [
        ("0.11.2", "", ""),
        ("0.11.2", "--actor.num_gpus_per_node 7", "256 != 1 * 36 * 7"),
        ("0.11.2", "--actor.num_gpus_per_node 7 --train.dynamic_batch_enable", ""),
        ("0.11.2", "--actor.num_gpus_per_node $GPUS", ""),
        ("0.11.2", "--actor.num_nodes 2 --train.batch_size 8", "steps: 0 has to be greater"),
        ("0.11.2", "--ds.ring_attn_size 2 --train.batch_size 4", ""),
        ("0.11.2", "--rollout.micro_batch_size 64", "number of sample batches"),
        ("0.11.2", "--rollout.n_samples_per_prompt 1", "rloo requires n_samples_per_prompt > 1"),
        ("0.9.0", "--train_batch_size 48", "48 != 4 * 1 * 8"),
        ("0.10.1.post2", "--train_batch_size 48", ""),
    ],
)
def test_sizes_that_openrlhf_refuses(version: str, more: str, said: str) -> None:
    text = OPENRLHF if version == "0.11.2" else "python3 -m openrlhf.cli.train_ppo_ray "
    found = read(text + more, f"openrlhf@{version}")[1]
    told = [each.text for each in found.contradictions if each.stops]
    assert bool(told) is bool(said)
    assert said in "".join(told)
    assert (mark(found) == "would not start") is bool(said)
    assert not said or found.confidence == "assumed"


@pytest.mark.parametrize(
    ("version", "group", "more", "refused"),
    [
        ("0.8.0", "group_size = 16", "batch_size = 100", True),
        ("0.8.0", "group_size = 16", "batch_size = 96", False),
        ("0.8.0", "group_size = 12", "", True),
        ("0.8.0", "group_size = 12", "token_batch_size = 1000", False),
        ("0.4.0", "rollouts_per_example = 12", "batch_size = 128", True),
        ("0.4.0", "rollouts_per_example = 16", "batch_size = 128", False),
    ],
)
def test_a_batch_of_prime_rl_holds_whole_groups(
    version: str, group: str, more: str, refused: bool
) -> None:
    text = f"[orchestrator]\n{group}\n{more}\n[trainer.loss]\nkl_tau = 0.001\n"
    found = read(text, f"prime_rl@{version}")[1]
    told = "".join(each.text for each in found.contradictions)
    line = "Batch size must be divisible by the number of samples per problem"
    assert (line in told) is refused
    assert (mark(found) == "would not start") is refused


@pytest.mark.parametrize(
    ("version", "more", "acts"),
    [
        ("0.7.0", "", False),
        ("0.7.0", "actor_rollout_ref.rollout.calculate_log_probs=True", True),
        ("0.8.0", "", False),
        ("0.9.0", "", True),
        ("0.9.1", "", True),
        ("0.9.1", "actor_rollout_ref.rollout.calculate_log_probs=False", False),
    ],
)
def test_a_correction_without_the_engines_log_probabilities(
    version: str, more: str, acts: bool
) -> None:
    text = f"{VERL}{SIZES}algorithm.rollout_correction.rollout_is=token {more}"
    assert bool(around(text, f"verl@{version}").correction) is acts
    assert ("does nothing" in remarks(text, f"verl@{version}")) is not acts
    rejecting = text.replace("rollout_is=token", "rollout_rs=seq_sum_k1")
    assert around(rejecting, f"verl@{version}").rejected == ("responses" if acts else "")
    assert ("does nothing" in remarks(rejecting, f"verl@{version}")) is not acts


@pytest.mark.parametrize(
    ("kinds", "what"), [("token_k1", "tokens"), ("token_k1,seq_sum_k3", "responses"), ("null", "")]
)
def test_a_rejection_says_what_it_leaves_in_the_mean(kinds: str, what: str) -> None:
    """verl 0.9.1 trainer/ppo/ray_trainer.py: fit masks the loss, then takes the groups' means."""
    text = f"{VERL}{SIZES}algorithm.rollout_correction.rollout_rs={kinds!r}"
    said = " ".join(text for _, text in summary(read(text, "verl@0.9.1")[1]))
    sentence = f"rejected {what} leave the loss, and their reward stays in the mean of their group"
    assert (sentence in said) is bool(what)
    assert ("rejected" in said) is bool(what)


@pytest.mark.parametrize(
    ("value", "group"),
    [("1 + 7", None), ("n + 7", None), ("'1' + '7'", 17), ("str(1) + '7'", 17), ("t + t", 22)],
)
def test_a_sum_of_numbers_is_no_text(value: str, group: int | None) -> None:
    text = "n = 4\nt = '2'\n" + TRL % f"num_generations={value}"
    assert reading_of(text, "trl@1.16.0").group_size == group


@pytest.mark.parametrize(
    ("sizes", "processes"),
    [
        ("per_device_train_batch_size=1, gradient_accumulation_steps=4, num_generations=16", 4),
        ("per_device_train_batch_size=2, steps_per_generation=3, num_generations=8", 4),
        ("per_device_train_batch_size=8, gradient_accumulation_steps=4, num_generations=16", 0),
        ("per_device_train_batch_size=1, num_generations=8", 8),
        ("generation_batch_size=32, per_device_train_batch_size=1, num_generations=16", 0),
        ("gradient_accumulation_steps=4, num_generations=64", 0),
    ],
)
def test_groups_that_one_process_of_trl_cannot_fill(sizes: str, processes: int) -> None:
    reading = reading_of(TRL % sizes, "trl@1.16.0")
    told = [text for text in reading.assumes if "processes" in text]
    assert len(told) == bool(processes)
    assert all(f"a multiple of {processes} processes" in text for text in told)


@pytest.mark.parametrize(
    ("text", "library"),
    [
        (VERL + SIZES + "actor_rollout_ref.rollout.top_p=0.8", "verl@0.9.1"),
        (VERL + SIZES + "actor_rollout_ref.rollout.top_k=20", "verl@0.9.1"),
        (SKYRL + SKYRL_SIZES + "generator.sampling_params.top_p=0.8", "skyrl@0.4.0"),
        (OPENRLHF + "--rollout.top_p 0.8", "openrlhf@0.11.2"),
        (OPENRLHF_FLAT + "--top_p 0.8", "openrlhf@0.8.5"),
        (PRIME % "train.sampling" + "min_p = 0.05\n", "prime_rl@0.8.0"),
        (PRIME % "sampling" + "top_p = 0.8\n", "prime_rl@0.4.0"),
        (TRL % "num_generations=8, top_p=0.8", "trl@1.16.0"),
        (TRL % "num_generations=8, min_p=0.05", "trl@1.16.0"),
    ],
)
def test_a_truncated_sampler_is_not_certain(text: str, library: str) -> None:
    assert "truncated policy" in remarks(text, library)
    assert read(text, library)[1].confidence != "certain"
    whole = text.replace("0.8", "1.0").replace("top_k=20", "top_k=-1").replace("0.05)", "0)")
    whole = whole.replace("min_p=0.05", "min_p=0.0").replace("min_p = 0.05", "min_p = 0.0")
    assert "truncated policy" not in remarks(whole, library)


def test_what_prime_rl_overrides_or_evaluates_with_truncates_nothing() -> None:
    for text in (PRIME % "sampling" + "min_p = 0.05\n", PRIME % "eval.sampling" + "top_p = 0.8\n"):
        assert "truncated policy" not in remarks(text, "prime_rl@0.4.0")


IS = f"{VERL}{SIZES}algorithm.rollout_correction.rollout_is=token "
HOT = (
    "actor_rollout_ref.rollout.calculate_log_probs=True actor_rollout_ref.rollout.temperature=0.6 "
)
RAW = "actor_rollout_ref.rollout.logprobs_mode=raw_logprobs"
SKYRL_IS = f"{SKYRL}{SKYRL_SIZES}trainer.algorithm.off_policy_correction.tis_ratio_type=token "
SKYRL_HOT = "generator.sampling_params.temperature=0.6 "
SKYRL_MODE = "generator.inference_engine.engine_init_kwargs.logprobs_mode="


@pytest.mark.parametrize(
    ("text", "library", "raw"),
    [
        (IS + HOT + RAW, "verl@0.9.1", True),
        (IS + HOT + RAW + " actor_rollout_ref.rollout.name=sglang", "verl@0.9.1", False),
        (IS + HOT, "verl@0.9.1", False),
        (IS + RAW, "verl@0.9.1", False),
        (VERL + SIZES + HOT + RAW, "verl@0.9.1", False),
        (SKYRL_IS + SKYRL_HOT, "skyrl@0.4.0", True),
        (SKYRL_IS, "skyrl@0.4.0", False),
        (SKYRL_IS + SKYRL_HOT + SKYRL_MODE + "raw_logprobs", "skyrl@0.4.0", True),
        (SKYRL_IS + SKYRL_HOT + SKYRL_MODE + "processed_logprobs", "skyrl@0.4.0", False),
        (SKYRL + SKYRL_SIZES + SKYRL_HOT, "skyrl@0.4.0", False),
        (
            SKYRL.replace("main_base", "main_fully_async")
            + SKYRL_SIZES
            + SKYRL_HOT
            + "trainer.algorithm.policy_loss_type=rollout_is trainer.placement.colocate_all=false",
            "skyrl@0.4.0",
            True,
        ),
        (TRL % "num_generations=8, use_vllm=True, temperature=0.6", "trl@0.23.0", True),
        (TRL % "num_generations=8, use_vllm=True, temperature=1.0", "trl@0.23.0", False),
        (TRL % "num_generations=8, use_vllm=True, temperature=0.6", "trl@0.24.0", False),
        (TRL % "num_generations=8, temperature=0.6", "trl@0.23.0", False),
    ],
)
def test_a_ratio_to_raw_probabilities_at_a_temperature(text: str, library: str, raw: bool) -> None:
    found = read(text, library)[1]
    told = [each.text for each in found.contradictions if "engine is of two temp" in each.text]
    assert bool(told) is raw
    assert not raw or ("not unbiased" in told[0] and found.problem)


@pytest.mark.parametrize(
    ("more", "apart"),
    [
        (SKYRL_HOT, True),
        ("generator.sampling_params.temperature=1.0 ", False),
        (SKYRL_HOT + "trainer.strategy=megatron ", False),
        (SKYRL_HOT + "trainer.algorithm.use_kl_loss=false ", False),
    ],
)
def test_a_kl_to_a_reference_policy_at_another_temperature(more: str, apart: bool) -> None:
    finding = read(f"{SKYRL}{SKYRL_SIZES}{more}", "skyrl@0.4.0")[1]
    told = [each.text for each in finding.contradictions if "KL is of two" in each.text]
    assert bool(told) is apart
    assert not apart or "Write generator.sampling_params.temperature=1.0" in told[0]


@pytest.mark.parametrize(
    ("at", "tau", "apart"), [(0.7, 0.1, True), (1.0, 0.1, False), (0.7, 0, False)]
)
def test_a_kl_to_a_teacher_at_another_temperature(at: float, tau: float, apart: bool) -> None:
    text = (
        f"[trainer.loss]\nteacher_tau = {tau}\nkl_tau = 0.0\n[orchestrator]\nbatch_size = 8\n"
        f"[orchestrator.sampling]\ntemperature = {at}\n"
        '[orchestrator.teacher_model.model]\nname = "x"\n'
    )
    assert ("KL is of two" in remarks(text, "prime_rl@0.5.0")) is apart


def test_old_verl_leaves_the_kind_of_probabilities_to_vllm() -> None:
    text = VERL + SIZES + "actor_rollout_ref.actor.tis_imp_ratio_cap=2 " + HOT
    found = read(text, "verl@0.6.0")[1]
    assert any("leaves that to vLLM" in each for each in found.assumes)
    cold = read(text.replace("0.6 ", "1.0 "), "verl@0.6.0")[1]
    assert not any("leaves that to vLLM" in each for each in cold.assumes)


@pytest.mark.parametrize("version", ["0.22.0", "0.22.1", "0.22.2", "0.24.0"])
@pytest.mark.parametrize("value", ["", ", scale_rewards=False", ", scale_rewards='batch'"])
def test_two_releases_of_trl_read_scale_rewards_the_other_way(version: str, value: str) -> None:
    divided = around(TRL % f"num_generations=8{value}", f"trl@{version}").advantage_divided_by
    swapped = version in ("0.22.0", "0.22.1")
    usual = {"": "group_std", ", scale_rewards=False": "nothing"}.get(value, "batch_std")
    other = "nothing" if value == "" else "group_std"
    assert divided == (other if swapped else usual)


def test_old_verl_has_no_bound_on_the_exponential() -> None:
    loss = (
        "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo "
        "actor_rollout_ref.rollout.n=8 actor_rollout_ref.actor.use_kl_loss=True "
        "actor_rollout_ref.actor.kl_loss_type=low_var_kl "
        f"actor_rollout_ref.actor.kl_loss_coef=0.001 {SIZES}"
    )
    for version, bound in (("0.2.0", None), ("0.4.0", None), ("0.4.1", 20.0), ("0.9.1", 20.0)):
        near = around(loss, f"verl@{version}")
        assert near.clamp.log_ratio == bound
        assert any("not a number" in note for note in near.notes) is (bound is None)


def test_what_trl_and_skyrl_refuse() -> None:
    assert "below 2" in remarks(TRL % "num_generations=1", "trl@1.16.0")
    no_reference = TRL.replace("beta=0.04, ", "") % "num_generations=8, sync_ref_model=True"
    assert "no reference policy" in remarks(no_reference, "trl@1.16.0")
    moving = TRL % "num_generations=8, sync_ref_model=True"
    assert "would not start" not in remarks(moving, "trl@1.16.0")
    fully = SKYRL.replace("main_base", "main_fully_async") + SKYRL_SIZES
    refused = remarks(fully, "skyrl@0.4.0")
    assert "policy_loss_type regular" in refused
    assert "colocate_all" in refused
    good = "trainer.algorithm.policy_loss_type=rollout_is trainer.placement.colocate_all=false"
    assert "would not start" not in remarks(fully + good, "skyrl@0.4.0")


OPEN_INSTRUCT = "python open_instruct/grpo_fast.py --beta 0.05 --num_samples_per_prompt_rollout 8 "
SLIME = (
    "python3 train.py --use-kl-loss --kl-loss-coef 0.01 --kl-loss-type low_var_kl "
    "--n-samples-per-prompt 8 "
)


@pytest.mark.parametrize(
    ("text", "library", "moves"),
    [
        (SKYRL + SKYRL_SIZES, "skyrl@0.4.0", "trainer.update_ref_every_epoch=true"),
        (TRL % "num_generations=8", "trl@1.16.0", "sync_ref_model=True"),
        (OPEN_INSTRUCT, "open_instruct", "--ref_policy_update_freq 100"),
        (SLIME, "slime", "--ref-update-interval 50"),
    ],
)
def test_a_reference_that_moves_is_in_the_first_line(text: str, library: str, moves: str) -> None:
    moving = text.replace(")", f", {moves})") if library.startswith("trl") else text + moves
    found = read(moving, library)[1]
    assert found.moving_reference
    (_, head), *lines = summary(found)
    assert "the reference moves" in head
    assert "the reference moves" in one_line(found)
    assert "no bound on the drift" in dict(lines)["It does"]
    still = read(text, library)[1]
    assert "reference moves" not in "\n".join(each for _, each in summary(still))


def test_a_reference_without_a_kl_is_not_said_to_move() -> None:
    text = SKYRL.replace("0.01", "0") + SKYRL_SIZES + "trainer.update_ref_every_epoch=true"
    assert not read(text, "skyrl@0.4.0")[1].moving_reference


LINES = VERL.replace(" algorithm", " \\\n  algorithm") + SIZES + "\n"


@pytest.mark.parametrize(("text", "breaks"), [(LINES, True), (VERL + SIZES + "\n", False)])
def test_a_script_with_windows_line_ends_is_read_and_told_of(text: str, breaks: bool) -> None:
    plain = read(text, "verl@0.9.1")[1]
    ended = read(("#!/bin/bash\n" + text).replace("\n", "\r\n"), "verl@0.9.1")[1]
    assert (ended.verdict, ended.kl_in_reward) == (plain.verdict, plain.kl_in_reward)
    assert not plain.contradictions
    (note,) = ended.contradictions
    assert "CR LF from line 2" in note.text
    assert note.stops is breaks
    assert (mark(ended) == "would not start") is breaks


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


def test_windows_line_ends_of_comments_and_other_files_are_no_fault() -> None:
    assert not read("# a comment\r\n\r\n" + VERL + SIZES, "verl@0.9.1")[1].contradictions
    python = (TRL % "num_generations=8").replace("\n", "\r\n")
    assert not read(python, "trl@1.16.0")[1].contradictions
