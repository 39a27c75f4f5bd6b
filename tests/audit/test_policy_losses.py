"""The audit reports each policy loss that a library computes otherwise than its paper or others.

A row: where the library differs, a launch that meets it, the words of the answer, and what to write
instead ("" where no setting of the library changes it).
"""

from typing import NamedTuple

import pytest

from audit.scripts import only
from orchestrator.audit import AuditFinding, audit

ACTOR, TO_ENGINE = "actor_rollout_ref.actor", "algorithm.rollout_correction"
VERL = (
    "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo "
    f"algorithm.use_kl_in_reward=False data.train_batch_size=512 {ACTOR}.ppo_mini_batch_size=128 "
    "actor_rollout_ref.rollout.calculate_log_probs=True "
)
BYPASS = f"{TO_ENGINE}.bypass_mode=True"
REINFORCE = f"{BYPASS} {TO_ENGINE}.loss_type=reinforce"
ALGORITHM = "trainer.algorithm"
OFF = f"{ALGORITHM}.off_policy_correction"
SKYRL = (
    "uv run -m skyrl.train.entrypoints.main_base trainer.algorithm.advantage_estimator=rloo "
    f"{ALGORITHM}.use_kl_loss=false {ALGORITHM}.use_kl_in_reward=false trainer.train_batch_size=64 "
    "trainer.policy_mini_batch_size=16 "
)
MODE, TYPE = f"{ACTOR}.policy_loss.loss_mode", f"{ALGORITHM}.policy_loss_type"
TOKENS = f"{OFF}.token_mask_is_threshold_low=0.5 {OFF}.token_mask_is_threshold_high=2"
NEWEST = {"verl": "0.9.1 told", "trl": "1.16.0 told", "skyrl": "0.4.0 told"}


class Row(NamedTuple):
    library: str
    differs: str
    launch: str
    says: str
    write: str = ""


ROWS = (
    Row("verl", "PPO has a dual clip, always", "", "ratio is above 3", f"{ACTOR}.clip_ratio_c=1e9"),
    Row("verl", "GSPO is aggregated", f"{MODE}=gspo", "by its length", "seq-mean-token-mean"),
    Row("verl", "GSPO at PPO's bounds", f"{MODE}=gspo", "nothing is cut", "3e-4"),
    Row("verl", "CISPO from below", f"{MODE}=cispo", "lower bound", f"{ACTOR}.clip_ratio_low=1"),
    Row("verl", "CISPO's value", f"{MODE}=cispo", "tells no progress"),
    Row(
        "verl", "SAPO by response", f"{MODE}=sapo", "a KL in the loss is averaged by it", "seq-mean"
    ),
    Row("verl", "GMPO per micro-batch", f"{MODE}=geo_mean", "grows with", "one micro-batch"),
    Row("verl", "GMPO's bound", f"{MODE}=geo_mean", "the paper has 0.4", "clip_ratio_low=0.4"),
    Row(
        "verl",
        "GMPO's weights",
        f"{MODE}=geo_mean {TO_ENGINE}.rollout_is=token",
        "as 1e-10",
        f"{TO_ENGINE}.rollout_is=null",
    ),
    Row("verl", "DPPO's anchor", f"{MODE}=dppo_tv", "that sampled", "bypass_mode=True"),
    Row("verl", "DPPO's weight", f"{MODE}=dppo_kl", "by default 3", f"{ACTOR}.clip_ratio_c=20"),
    Row(
        "verl",
        "normalised weights",
        f"{TO_ENGINE}.rollout_is=token {TO_ENGINE}.rollout_is_batch_normalize=True",
        "divided by their mean",
        "rollout_is_batch_normalize=False",
    ),
    Row(
        "verl",
        "IcePop of responses",
        f"{TO_ENGINE}.rollout_is=sequence {TO_ENGINE}.rollout_is_threshold=0.5_5",
        "long responses are nearly all dropped",
        "weights of tokens",
    ),
    *(
        Row(
            "verl",
            f"the inverse ratio of {kind}",
            f"{TO_ENGINE}.rollout_rs={kind} {TO_ENGINE}.rollout_rs_threshold=0.5_3",
            "0.333 to 2",
            "rollout_rs_threshold=0.333_2",
        )
        for kind in ("token_k1", "seq_mean_k1")
    ),
    Row(
        "verl",
        "REINFORCE with weights",
        f"{REINFORCE} {TO_ENGINE}.rollout_is=token trainer.use_v1=False",
        "taken anew in each minibatch",
    ),
    Row("verl", "REINFORCE in v1", REINFORCE, "not read by trainer v1", "trainer.use_v1=False"),
    Row("verl", "DRO's half", f"{MODE}=dro", "half the log-ratio squared"),
    Row(
        "verl",
        "a fork's loss without its clip",
        f"{ACTOR}.loss_remove_clip=True",
        "nothing at all bounds a step",
        f"{ACTOR}.loss_remove_clip=False",
    ),
    Row("SkyRL", "regular", f"{ALGORITHM}.clip_ratio_c=3", "no second clip", f"{TYPE}=dual_clip"),
    Row("SkyRL", "dual clip", f"{TYPE}=dual_clip", "ratio is above 3", f"{ALGORITHM}.clip_ratio_c"),
    Row("SkyRL", "no bound", f"{TYPE}=importance_sampling", "has no bound", f"{TYPE}=rollout_is"),
    Row("SkyRL", "GSPO", f"{TYPE}=gspo", "SkyRL only warns", "loss_reduction=sequence_mean"),
    Row("SkyRL", "SAPO", f"{TYPE}=sapo", "SkyRL only warns", "loss_reduction=sequence_mean"),
    Row(
        "SkyRL",
        "CISPO's own bounds",
        f"{TYPE}=cispo {ALGORITHM}.eps_clip_high=0.28",
        "does not read",
        f"{ALGORITHM}.cispo.cispo_eps_clip_high",
    ),
    Row(
        "SkyRL",
        "CISPO's anchor",
        f"{TYPE}=cispo {ALGORITHM}.cispo.cispo_anchor=rollout",
        "the policy that sampled",
    ),
    Row("SkyRL", "DPPO's anchor", f"{TYPE}=dppo", "the policy that sampled"),
    Row(
        "SkyRL",
        "DPPO with weights",
        f"{TYPE}=dppo {OFF}.tis_ratio_type=token",
        "counts twice",
        f"{OFF}.tis_ratio_type=null",
    ),
    Row("SkyRL", "rollout_is", f"{TYPE}=rollout_is", "moved against their advantage too"),
    Row(
        "SkyRL",
        "a response's weight of kept tokens",
        f"{OFF}.tis_ratio_type=sequence {TOKENS}",
        "kept tokens' ratios only",
        f"{OFF}.tis_ratio_type=token",
    ),
    Row("SkyRL", "IcePop's mask", TOKENS, "at weight 1", f"{OFF}.tis_ratio_type=token"),
    Row(
        "SkyRL",
        "a mask of products",
        f"{OFF}.sequence_mask_metric=product",
        "nearly all dropped",
        "weights of tokens",
    ),
    Row(
        "SkyRL",
        "outliers",
        f"{OFF}.outlier_token_is_threshold_high=5",
        "drops its whole response",
        "drop the token alone",
    ),
    Row("TRL", "delta", "delta=1.1, num_iterations=2", "within the clip", "delta above 1.2"),
    *(
        Row(
            "TRL",
            f"GSPO with {kind}",
            f'importance_sampling_level="sequence", loss_type="{kind}", num_iterations=2',
            "is the mean over responses",
            "loss_type grpo",
        )
        for kind in ("bnpo", "dr_grpo", "dapo")
    ),
    Row(
        "TRL",
        "GSPO's KL",
        'importance_sampling_level="sequence", loss_type="grpo", beta=0.01',
        "1 - 1/T",
    ),
    Row("TRL", "CISPO's bound", 'loss_type="cispo", beta=0.01', "× 5", "epsilon_high 5.0"),
    Row(
        "TRL",
        "SAPO of a response",
        'loss_type="sapo", importance_sampling_level="sequence"',
        "geometric mean",
        "importance_sampling_level token",
    ),
    Row("TRL", "MIS by default", "use_vllm=True", "nearly all dropped", "weights of tokens"),
    Row(
        "TRL",
        "OPSM",
        "off_policy_mask_threshold=0.1, num_iterations=2",
        "negative advantage only",
        "token_truncate",
    ),
    Row(
        "TRL",
        "VESPO with a mask",
        'loss_type="vespo", use_vllm=True',
        "counts as 1e-8",
        "token_truncate",
    ),
    Row("TRL", "VESPO's weight", 'loss_type="vespo", num_iterations=2', "the ratio is 1.5"),
    Row("TRL", "LUSPO", 'loss_type="luspo", num_iterations=2', "the clip [0.8, 1.2] stops"),
    Row("GMPO", "no weights", "use_vllm=True, beta=0.01", "does not multiply", "correction False"),
    Row("Prime-RL", "a pull without its half", "", "without its half"),
    Row("Prime-RL", "no cap", "", "has no cap"),
    Row("Prime-RL", "IPO drops both ways", 'type = "ipo"', "against their advantage too"),
)


def finding_of(row: Row) -> AuditFinding:
    if row.library == "verl":
        return only(VERL + row.launch, versions=NEWEST)
    if row.library == "SkyRL":
        return only(SKYRL + row.launch, versions=NEWEST)
    if row.library == "Prime-RL":
        text = (
            f'[model]\nname = "m"\n[trainer.loss]\n{row.launch}\n[orchestrator]\nbatch_size = 64\n'
        )
        return only(text, "rl.toml", versions={"prime_rl": "0.8.0 told"})
    name = "GMPO" if row.library == "GMPO" else "GRPO"
    module = "trl.experimental.gmpo" if name == "GMPO" else "trl"
    text = (
        f"from {module} import {name}Config, {name}Trainer\n"
        f"{name}Trainer(args={name}Config({row.launch}))\n"
    )
    (finding,) = audit(text, "x.py", versions=NEWEST)
    return finding


def told(finding: AuditFinding) -> str:
    bound = finding.bound
    parts = [finding.why, *(f"{each.text}: {each.instead}" for each in finding.bound_notes)]
    parts += [each.text for each in finding.contradictions]
    if bound is not None:
        parts += [bound.to, bound.step, bound.dropped, bound.failure]
    return "\n".join(parts)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.library}: {row.differs}")
def test_where_a_library_differs_a_launch_that_meets_it_is_told(row: Row) -> None:
    answer = told(finding_of(row))
    assert row.says in answer
    assert row.write in answer


def test_a_launch_that_meets_none_has_no_note() -> None:
    """The plain launch of each library: a sentence that is always there tells nothing."""
    plain = [row for row in ROWS if row.launch == ""]
    assert {row.library for row in plain} == {"verl", "Prime-RL"}
    for library, launch in (("verl", ""), ("SkyRL", ""), ("TRL", "num_iterations=2")):
        assert not finding_of(Row(library, "", launch, "")).bound_notes, library
    later = f"{MODE}=dppo_tv {ACTOR}.clip_ratio_c=20 {BYPASS}"
    assert not finding_of(Row("verl", "", later, "")).bound_notes


@pytest.mark.parametrize(
    ("library", "launch"),
    [
        ("verl", f"{ACTOR}.ppo_mini_batch_size=512"),
        ("SkyRL", "trainer.policy_mini_batch_size=64"),
        ("TRL", ""),
    ],
)
def test_a_clip_that_cannot_act_is_told(library: str, launch: str) -> None:
    """One update a batch: each ratio is 1."""
    finding = finding_of(Row(library, "", launch, ""))
    assert finding.bound is not None
    assert finding.bound.to == "nothing"
    assert "the clip [0.8, 1.2] never acts" in finding.bound.step
