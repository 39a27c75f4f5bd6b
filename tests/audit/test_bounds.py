"""What holds a launch's policy to what, and what the code beside a script decides."""

import itertools
from pathlib import Path

import numpy as np
import pytest

from audit.scripts import IN_REWARD, ON_POLICY, OPENRLHF, USE_LOSS, VERL, only
from orchestrator.audit import AuditFinding, audit
from orchestrator.audit.bounds import ENGINE_WEIGHT, MAY_ACT, NEVER_ACTS
from orchestrator.audit.libraries import NeighbourFiles, Projects
from orchestrator.audit.summary import instead, mark, summary

ACTOR = "actor_rollout_ref.actor"
NEWEST = {"verl": "0.9.1 told", "trl": "1.16.0 told"}
NONE = f"{VERL} {IN_REWARD}=False"
SMALL = f"{NONE} data.train_batch_size=512 {ACTOR}.ppo_mini_batch_size=128"


def of(text: str) -> AuditFinding:
    return only(text, versions=NEWEST)


def trl(options: str) -> AuditFinding:
    text = f"from trl import GRPOConfig, GRPOTrainer\nGRPOTrainer(args=GRPOConfig({options}))\n"
    (finding,) = audit(text, "x.py", versions=NEWEST)
    return finding


@pytest.mark.parametrize(
    ("text", "to", "says"),
    [
        (SMALL, "the policy before the step", "the clip [0.8, 1.2] stops"),
        (f"{NONE} {ON_POLICY}", "nothing", "the clip [0.8, 1.2] never acts"),
        (f"{SMALL} {ACTOR}.policy_loss.loss_mode=gspo", "the policy before the step", "geometric"),
        (f"{SMALL} {ACTOR}.policy_loss.loss_mode=gpg", "nothing", "no ratio"),
        (f"{SMALL} +actor_rollout_ref.rollout.quantization=fp8", "the policy before", "in fp8"),
    ],
)
def test_a_launch_without_a_kl_is_told_what_bounds_it(text: str, to: str, says: str) -> None:
    finding = of(text)
    assert finding.verdict == "no_kl"
    assert finding.bound is not None
    assert finding.bound.to.startswith(to)
    lines = dict(summary(finding))
    if to != "nothing" or "never" in says:
        assert says in finding.bound.step
        assert says in lines["It does"]
    assert "no bound on the drift" in lines["It does"]
    assert len(lines) <= 6


def test_the_smallest_change_to_a_kl_is_named_and_is_no_fix() -> None:
    finding = of(SMALL)
    assert finding.for_a_kl is not None
    assert f"{USE_LOSS}=True" in instead(finding) or f"{IN_REWARD}=True" in instead(finding)
    assert not finding.changes
    assert not finding.problem


@pytest.mark.parametrize(
    ("text", "says", "write"),
    [
        ("gspo", "by its length", "loss_agg_mode=seq-mean-token-mean"),
        ("gspo", "nothing is cut", "3e-4"),
        ("geo_mean", "grows with", "one micro-batch"),
        ("cispo", "lower bound", "clip_ratio_low=1"),
        ("dppo_tv", "the paper's is to the policy that sampled", "bypass_mode=True"),
    ],
)
def test_a_policy_loss_that_differs_from_its_name_is_told(text: str, says: str, write: str) -> None:
    notes = of(f"{SMALL} {ACTOR}.policy_loss.loss_mode={text}").bound_notes
    assert any(says in each.text and write in each.instead for each in notes)


def test_a_bound_of_the_inverse_ratio_is_turned_round() -> None:
    section = "algorithm.rollout_correction.rollout_rs"
    (note,) = of(f"{SMALL} {section}=token_k1 {section}_threshold=0.5_3").bound_notes
    assert "0.333 to 2" in note.text
    assert note.instead.startswith(f"{section}_threshold=0.333_2")
    assert not of(f"{SMALL} {section}=token_k1 {section}_threshold=0.5_2").bound_notes


def test_trls_cispo_without_its_bound_is_a_mistake() -> None:
    finding = trl('loss_type="cispo", beta=0.01')
    assert finding.problem
    assert any("× 5" in each.text for each in finding.contradictions)
    assert not trl('loss_type="cispo", beta=0.01, epsilon_high=5.0').contradictions


def test_a_bound_that_drops_nearly_all_is_what_to_change() -> None:
    finding = trl('use_vllm=True, beta=0.04, loss_type="dapo"')
    assert not finding.problem
    assert mark(finding) == "fine but for its bound"
    assert instead(finding).startswith("weights of tokens instead of whole responses, for ")
    also = dict(summary(finding)).get("Also", "")
    assert "long responses" not in also, "it is told once"


def test_a_mistake_is_told_where_the_release_is_not_known() -> None:
    options = 'loss_type="cispo", beta=0.04, num_generations=8, num_iterations=2'
    text = f"from trl import GRPOConfig, GRPOTrainer\nGRPOTrainer(args=GRPOConfig({options}))\n"
    (finding,) = audit(text, "x.py")
    assert finding.verdict == "undetermined"
    assert instead(finding).startswith("name the release: --library trl@VERSION; in trl 1.16.0 ")
    assert "epsilon_high 5.0" in instead(finding)


def test_trls_gspo_with_a_kl_has_its_gradient() -> None:
    finding = trl('importance_sampling_level="sequence", loss_type="grpo", beta=0.01')
    assert finding.verdict == "other_objective"
    assert "1 - 1/T" in finding.why


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


def test_a_forks_key_that_names_the_kl_leaves_the_answer_open_but_for_it() -> None:
    finding = of(f"{SMALL} +{ACTOR}.use_dynamic_kl_loss=True")
    assert finding.verdict == "undetermined"
    assert "use_dynamic_kl_loss" in finding.why
    (case,) = finding.conditional
    assert case.verdict == "no_kl"
    assert of(f"{SMALL} +{ACTOR}.use_dynamic_kl_loss=False").verdict == "no_kl"
    assert of(f"{SMALL} +{ACTOR}.my_colour=3").verdict == "no_kl"


def test_no_key_is_a_slip_while_the_launch_has_a_forks() -> None:
    slip = f"{SMALL} {ACTOR}.kl_loss_coeff=1"
    guessed = f"{slip} algorithm.use_kl_in_reward=False"
    assert any(each.mistake for each in only(guessed).key_findings)
    assert not any(each.mistake for each in only(f"{guessed} {ACTOR}.my_colour=3").key_findings)


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
    assert bool(finding.kl_in_loss.active) is reads
    assert finding.problem


def test_nemos_batch_may_be_a_product_of_two_keys() -> None:
    text = """loss_fn:
  reference_policy_kl_penalty: 0
grpo:
  num_prompts_per_step: 64
  num_generations_per_prompt: 16
  async_grpo: {enabled: false}
policy:
  train_global_batch_size: ${mul:${grpo.num_prompts_per_step}, ${grpo.num_generations_per_prompt}}
"""
    finding = only(text, "x.yaml")
    assert finding.regime.on_policy is True
    assert finding.bound is not None
    assert finding.bound.by == NEVER_ACTS
    (half,) = audit(text.replace("${mul:${grpo.num_prompts_per_step}, ", "${mul:2, "), "x.yaml")
    assert half.regime.on_policy is None
    assert half.bound is not None
    assert half.bound.by == MAY_ACT


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
        assert finding.bound.by == ENGINE_WEIGHT


@pytest.mark.parametrize(
    ("text", "is_read"),
    [
        (f"{SMALL} distillation.enabled=True", False),
        (f"{SMALL} distillation.enabled=False", True),
        ("python3 -m recipe.gkd.main_gkd data.train_batch_size=8", False),
    ],
)
def test_the_clip_of_a_launch_that_distils_is_not_told(text: str, is_read: bool) -> None:
    assert (of(text).bound is not None) is is_read
