"""Keys and values that a release does not take: refused, ignored, misread, or a fork's."""

import pytest

from audit.scripts import IN_REWARD, OPENRLHF, SKYRL, TYPE, USE_LOSS, VERL, only
from orchestrator.audit.key_check import closest, key_findings
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
        ("a.use_kll", "True", "hydra", "", [("would not start", True)]),
        ("a.use_kll", "True", "hydra", "+", [("is ignored", True)]),
        ("a.use_kll", "True", "structured", "+", [("would not start", True)]),
        ("b.use_kl", "True", "hydra", "", [("would not start", True)]),
        ("a.my_own", "3", "hydra", "", [("unknown", False)]),
        ("a.open.any", "3", "hydra", "+", []),
        ("hydra.run.dir", "x", "hydra", "", []),
        ("a", "{}", "hydra", "", []),
        ("a.use_kl", "Ture", "hydra", "", [("means something else", True)]),
        ("a.use_kl", "True", "hydra", "+", [("would not start", True)]),
        ("a.kl_type", "K1", "hydra", "", []),
        ("a.kl_type", "null", "hydra", "", []),
        ("a.kl_type", "kk3", "hydra", "", [("would not start", True)]),
        ("a.kl_type", "mine", "hydra", "", [("would not start", False)]),
        ("a.kl_type", "mine", "argparse", "", [("would not start", True)]),
        ("a.size", "many", "structured", "", [("would not start", True)]),
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
    assert finding.verdict == verdict
    assert not finding.problem or verdict == "token_forward_kl"
    if beta:
        assert finding.kl_in_loss.beta == beta
    assert any("abbreviation" in rule.text for rule in finding.rules)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        (f"{VERL} {USE_LOSS}s=True", f"did you mean {USE_LOSS}?"),
        (f"{VERL} algorithm.kl_ctl.kl_coef=0.1", "did you mean algorithm.kl_ctrl.kl_coef?"),
        (f"{VERL} actor_rollout_ref.use_kl_loss=True", f"did you mean {USE_LOSS}?"),
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
    assert (wrong.consequence, wrong.lines) == ("would not start", (2,))
    assert finding.problem
    assert finding.confidence != "certain"


def test_a_forks_keys_lower_the_confidence_and_are_no_mistake() -> None:
    finding = only(f"{OPENRLHF} --made_up_flag x --my_fork_kl 3")
    assert [each.consequence for each in finding.key_findings] == ["unknown"] * 2
    assert (finding.problem, finding.confidence) == (False, "assumed")
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
    finding = only(f"{VERL} {USE_LOSS}=False {IN_REWARD}=True {more}")
    assert (finding.key_findings, finding.confidence) == ((), "certain")
