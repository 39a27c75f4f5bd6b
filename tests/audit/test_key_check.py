"""Keys and values that a release does not take: refused, ignored, misread, or a fork's."""

import random
import re
from pathlib import Path

import pytest

from audit.scripts import IN_REWARD, OPENRLHF, SKYRL, TYPE, USE_LOSS, VERL, only
from orchestrator.audit import audit, key_check
from orchestrator.audit.key_check import closest, key_findings
from orchestrator.audit.libraries import NeighbourFiles
from orchestrator.library.launches import Given, HeldKeys
from orchestrator.library.manifest import ReleaseTable

TABLE = ReleaseTable(
    "1.0",
    frozenset({"a.use_kl", "a.kl_type", "a.size", "run.name"}),
    {"a.kl_type": frozenset({"k1", "k3", None})},
    ("a.open.",),
    {"a.size": "int"},
)


def found(key: str, value: str, grammar: str = "hydra", mark: str = "") -> list[tuple[str, bool]]:
    """Return consequence and mistake of each finding on one key."""
    held = HeldKeys(
        {key: [Given(value, (1,), (), mark)]},
        grammar,  # type: ignore[arg-type]  (one of the literals, from a test's parameter)
        TABLE,
        "lib 1.0",
        exact=True,
        defaults={"a.use_kl": "False"},
    )
    return [(each.consequence, each.mistake) for each in key_findings(held)]


@pytest.mark.parametrize(
    ("key", "value", "grammar", "mark", "expected"),
    [
        ("a.use_kl", "True", "hydra", "", []),
        ("a.use_kll", "True", "hydra", "", [("may not start", True)]),
        ("a.use_kll", "True", "hydra", "+", [("is ignored", True)]),
        ("a.use_kll", "True", "structured", "+", [("may not start", True)]),
        ("b.use_kl", "True", "hydra", "", [("may not start", True)]),
        ("a.my_own", "3", "hydra", "", [("unknown", False)]),
        ("a.open.any", "3", "hydra", "+", []),
        ("hydra.run.dir", "x", "hydra", "", []),
        ("a", "{}", "hydra", "", []),
        ("a.use_kl", "Ture", "hydra", "", [("means something else", True)]),
        ("a.use_kl", "True", "hydra", "+", [("may not start", True)]),
        ("a.kl_type", "K1", "hydra", "", []),
        ("a.kl_type", "null", "hydra", "", []),
        ("a.kl_type", "kk3", "hydra", "", [("may not start", True)]),
        ("a.kl_type", "mine", "hydra", "", [("may not start", False)]),
        ("a.kl_type", "mine", "argparse", "", [("may not start", True)]),
        ("a.size", "many", "structured", "", [("may not start", True)]),
        ("a.size", "1e3", "structured", "", []),
    ],
)
def test_each_librarys_rules(
    key: str, value: str, grammar: str, mark: str, expected: list[tuple[str, bool]]
) -> None:
    assert found(key, value, grammar, mark) == expected


def test_a_slip_of_the_pen_is_told_from_another_name() -> None:
    keys = ("use_kl_loss", "kl_loss_coef", "gpu1_size")
    assert closest("use_kl_los", keys) == "use_kl_loss"
    assert closest("kl_loss_ceof", keys) == "kl_loss_coef"
    assert closest("gpu2_size", keys) == ""
    assert closest("use_my_loss", keys) == ""


def test_a_bare_key_is_told_with_its_section() -> None:
    text = f"{VERL} adv_estimatr=rloo"
    (wrong,) = only(text, versions={"verl": "0.9.1 told"}).key_findings
    assert "did you mean algorithm.adv_estimator?" in wrong.text
    assert (wrong.consequence, wrong.mistake) == ("would not start", True)
    (guessed,) = only(f"{text} {IN_REWARD}=False").key_findings
    assert "Or it is a fork's key" in guessed.text
    assert (guessed.consequence, guessed.mistake) == ("unknown", False)


@pytest.mark.parametrize(
    ("flags", "verdict", "beta"),
    [
        ("--init_kl 0", "no_kl", 0.0),
        ("--algo.kl.init 0", "no_kl", 0.0),
        ("--algo.kl.use_los --algo.kl.init 0.5 --algo.kl.est k3", "token_forward_kl", 0.5),
    ],
)
def test_argparse_completes_flags(flags: str, verdict: str, beta: float) -> None:
    finding = only(f"python -m openrlhf.cli.train_ppo_ray {flags}")
    assert finding.term_verdict == verdict
    assert not finding.problem or verdict == "token_forward_kl"
    if beta:
        assert finding.in_loss.beta == beta
    assert any("abbreviation" in rule.text for rule in finding.rules)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        (f"{VERL} {USE_LOSS}s=True", f"did you mean {USE_LOSS}?"),
        (f"{VERL} algorithm.kl_ctl.kl_coef=0.1", "did you mean algorithm.kl_ctrl.kl_coef?"),
        (f"{VERL} actor_rollout_ref.use_kl_loss=True", f"did you mean {USE_LOSS}?"),
        (f"{VERL} use_kl_losss=True", f"did you mean {USE_LOSS}?"),
        (f"{VERL} actor.use_kl_losss=True", f"did you mean {USE_LOSS}?"),
        (f"{VERL} {USE_LOSS}=True {TYPE}=low_vra_kl", "did you mean low_var_kl?"),
        (f"{VERL} +{IN_REWARD}=True", "Hydra refuses `+` there"),
        (f"{OPENRLHF} --init_kl_coeff 0 --prompt_max_len 10", "did you mean --init_kl_coef?"),
        (f"{OPENRLHF} --use_kl_loss False", "takes no value; 'False' is refused"),
        ("python -m openrlhf.cli.train_ppo_ray --algo.kl.estimator k4", "takes k1, k2, k3; not k4"),
        (f"{SKYRL} trainer.algorithm.use_kl_los=false", "did you mean trainer.algorithm.use_kl_l"),
        (f"{SKYRL} trainer.algorithm.use_kl_loss=flase", "is true or false; flase is refused"),
    ],
)
def test_a_mistake_is_a_problem_with_its_line(text: str, hint: str) -> None:
    finding = only(f"\n{text}", versions={"verl": "0.9.1 told"})
    (wrong,) = [each for each in finding.key_findings if each.mistake]
    assert hint in wrong.text
    refused = "would" if "verl" in text else "may"
    assert (wrong.consequence, wrong.lines) == (f"{refused} not start", (2,))
    assert finding.problem
    assert finding.confidence != "certain"


def test_a_forks_keys_lower_the_confidence_and_are_no_mistake() -> None:
    finding = only(f"{OPENRLHF} --made_up_flag x --my_fork_kl 3")
    assert [each.consequence for each in finding.key_findings] == ["unknown"] * 2
    assert (finding.problem, finding.confidence) == (False, "conditional")
    assert "my_fork_kl" in finding.why
    assert "my_fork_kl" in finding.assumes[0]


def test_a_key_that_hydra_appends_and_nothing_reads() -> None:
    finding = only(f"{VERL} +{USE_LOSS}s=True {IN_REWARD}=False")
    assert [each.consequence for each in finding.key_findings] == ["is ignored"]
    assert finding.problem


@pytest.mark.parametrize(
    "more",
    [
        "actor_rollout_ref.rollout.n_agent=5",
        "+actor_rollout_ref.rollout.my_own=5",
        "trainer.logger=[console,mine]",
    ],
)
def test_keys_of_forks_of_verl_are_no_mistake(more: str) -> None:
    finding = only(f"{VERL} {USE_LOSS}=False {IN_REWARD}=True {more}")
    assert not finding.problem


@pytest.mark.parametrize(
    "more",
    [
        'trainer.logger=["console","wandb"]',
        "actor_rollout_ref.actor.megatron.seed=3",
        "+actor_rollout_ref.model.override_config.x=1",
        "+ray_kwargs.ray_init.num_cpus=8",
    ],
)
def test_sections_that_take_any_key_leave_the_answer_certain(more: str) -> None:
    finding = only(
        f"{VERL} {USE_LOSS}=False {IN_REWARD}=True {more}", versions={"verl": "0.9.1 told"}
    )
    assert (finding.key_findings, finding.confidence) == ((), "certain")


TOML = """max_steps = 10
[orchestrator]
batch_size = 8
[trainer.loss]
kl_tau = 0.001
{}
[inference]
"""


@pytest.mark.parametrize(
    ("release", "line", "consequence", "words", "mistake"),
    [
        ("0.5.0", "kl_tua = 0.1", "is ignored", "did you mean trainer.loss.kl_tau?", True),
        ("0.8.0", "kl_tua = 0.1", "would not start", "did you mean trainer.loss.kl_tau?", True),
        ("0.5.0", "ipo_mask_low = 'low'", "would not start", "is a number; low is refused", True),
        ("0.8.0", "teacher_tau = 0.1", "would not start", "0.5.0 has it", True),
        ("0.8.0", "[trainer.my_section]\nx = 1", "would not start", "has no trainer.my", True),
    ],
)
def test_prime_rls_keys_are_held_against_its_classes(
    release: str, line: str, consequence: str, words: str, mistake: bool
) -> None:
    finding = only(TOML.format(line), "rl.toml", versions={"prime_rl": f"{release} said so"})
    (wrong,) = finding.key_findings
    assert (wrong.consequence, wrong.mistake, finding.problem) == (consequence, mistake, mistake)
    assert words in wrong.text
    assert wrong.lines[0] > 5
    assert not finding.changes


def test_prime_rls_own_keys_are_no_findings() -> None:
    """Arrays of tables, unions of classes and flags with hyphens are in the tables."""
    text = TOML.format("type = 'default'") + "[[orchestrator.env]]\nid = 'x'\nargs.y = 1\n"
    finding = only(text, "rl.toml", versions={"prime_rl": "0.5.0 said so"})
    assert not finding.key_findings
    command = "uv run rl @ rl.toml --trainer.optim.weight-decay 0.1 --max-async-level 0"
    (found,) = audit(command, "x.sh", files={"rl.toml": text}, versions={"prime_rl": "0.5.0 x"})
    assert not found.key_findings
    assert found.regime.on_policy is True


RLOO = f"{VERL} algorithm.adv_estimator=rloo data.train_batch_size=256"
ON, OFF = "unbiased_reverse_kl", "no_kl"
SWEPT = "undetermined"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (f"{IN_REWARD}=True 'algorithm.kl_ctrl={{type: fixed, kl_coef: 0.0}}'", OFF),
        (f"{IN_REWARD}=True 'algorithm.kl_ctrl={{kl_coef: 0.1}}'", ON),
        (f"{IN_REWARD}=\"'False'\"", ON),
        (f"{IN_REWARD}=off", ON),
        (f"{IN_REWARD}=FALSE", OFF),
        (f"{IN_REWARD}=True ~{IN_REWARD}", SWEPT),
        (f"{IN_REWARD}=True ~algorithm.kl_ctrl.kl_coef", SWEPT),
        (f"-m {IN_REWARD}=True algorithm.kl_ctrl.kl_coef=0,0.1", SWEPT),
    ],
)
def test_an_override_means_what_hydra_makes_of_it(words: str, expected: str) -> None:
    """`off` and a quoted 'False' are texts, true in Python; held to Hydra's own parser."""
    from hydra.core.override_parser.overrides_parser import OverridesParser

    found = only(f"{RLOO} {words}", versions={"verl": "0.9.1 pinned"})
    assert found.term_verdict == expected
    for word, value in (("a='False'", "False"), ("a=off", "off"), ("a=FALSE", False)):
        read = OverridesParser.create().parse_override(word).value()
        assert (str(read), type(read) is bool) == (str(value), type(value) is bool)


@pytest.mark.parametrize(
    "text",
    [
        f"{OPENRLHF} --init-kl-coef 0.5",
        f"{SKYRL} --trainer.algorithm.use_kl_loss=false",
        f"{SKYRL} +trainer.algorithm.use_kl_loss=false",
        f"{VERL} Algorithm.use_kl_in_reward=True {USE_LOSS}=False {IN_REWARD}=False",
    ],
)
def test_a_key_that_only_looks_right_stops_the_launch(text: str) -> None:
    findings = only(text).key_findings
    assert [(each.consequence, each.mistake) for each in findings] == [("may not start", True)]


def test_the_trainers_file_beside_the_orchestrators_is_read() -> None:
    half = "batch_size = 8\nrollouts_per_example = 2\n[[env]]\nid = 'x'\n"
    assert audit(half, "orchestrator.toml")[0].verdict == "undetermined"
    files = {"trainer.toml": "[loss]\nkl_tau = 0.5\n"}
    finding = audit(half, "orchestrator.toml", files=files)[0]
    assert (finding.verdict, finding.rollout_kl) == ("rollout_policy_kl_only", 0.5)
    assert any("trainer.toml" in each for each in finding.assumes)
    assert not finding.key_findings


def test_a_trainers_file_in_a_folder_above_is_of_another_run(tmp_path: Path) -> None:
    (tmp_path / "train.toml").write_text("[loss]\nkl_tau = 0.5\n")
    script = tmp_path / "runs" / "orchestrator.toml"
    script.parent.mkdir()
    half = "batch_size = 8\nrollouts_per_example = 2\n[[env]]\nid = 'x'\n"
    assert audit(half, script.name, files=NeighbourFiles(script))[0].verdict == "undetermined"
    (script.parent / "train.toml").write_text("[loss]\nkl_tau = 0.25\n")
    finding = audit(half, script.name, files=NeighbourFiles(script))[0]
    assert (finding.verdict, finding.rollout_kl) == ("rollout_policy_kl_only", 0.25)


QUOTED = """
algorithm: {{adv_estimator: rloo, use_kl_in_reward: {0}}}
actor_rollout_ref: {{actor: {{use_kl_loss: {1}, kl_loss_coef: "0.001"}}}}
"""


@pytest.mark.parametrize(
    ("in_reward", "in_loss", "terms", "misread"),
    [
        ('"False"', "false", "unbiased_reverse_kl", 1),
        ('"False"', "'no'", "both", 2),
        ("False", "no", "no_kl", 0),
        ('"True"', "off", "unbiased_reverse_kl", 1),
    ],
)
def test_a_quoted_boolean_of_a_file_is_a_text_for_verl(
    in_reward: str, in_loss: str, terms: str, misread: int
) -> None:
    finding = only(QUOTED.format(in_reward, in_loss), "grpo.yaml")
    assert finding.term_verdict == terms
    mistakes = [each.text for each in finding.key_findings if each.mistake]
    assert len(mistakes) == misread
    assert all("in quotes is a text: true" in each for each in mistakes)


def test_a_quoted_boolean_of_a_file_is_the_boolean_for_a_library_with_types() -> None:
    """NeMo-RL 0.7 reads it with pydantic; 0.6.0 takes what YAML gives."""
    text = """
grpo: {use_leave_one_out_baseline: true}
loss_fn: {reference_policy_kl_penalty: 0.01, use_importance_sampling_correction: "false"}
policy: {model_name: m}
"""
    typed = audit(text, "grpo.yaml", versions={"nemo_rl": "0.7.0 pinned"})[0]
    plain = audit(text, "grpo.yaml", versions={"nemo_rl": "0.6.0 pinned"})[0]
    assert [bool(each.key_findings) for each in (typed, plain)] == [False, True]


def test_a_slip_is_looked_for_among_few_names_and_found_all_the_same() -> None:
    """The index of names by their ends leaves out none that is a slip away."""
    table = (Path(__file__).parents[2] / "backends" / "slime" / "audit" / "keys.json").read_text()
    names = frozenset(re.findall(r'"([a-z][a-z-]{1,40})"', table))
    assert len(names) > 100
    draw = random.Random(0)  # noqa: S311 - the same words in every run
    for _ in range(400):
        word = list(draw.choice(sorted(names)))
        at = draw.randrange(len(word))
        word[at : at + draw.choice((0, 1, 2))] = draw.choices("ab_.", k=draw.choice((0, 1, 2)))
        written = "".join(word)
        slips = [(s, n) for n in names if (s := key_check._slip(written, n)) is not None]
        expected = min(slips)[1] if slips else ""
        assert key_check.closest(written, names) == expected, written
