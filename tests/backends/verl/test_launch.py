"""What verl's launch claims of Ray, and the sizes that verl refuses."""

import pytest

from backends.verl import BACKEND
from orchestrator.audit import audit
from tests.backends.verl.cells import PLACE, cell


def test_ray_is_given_the_cpus_that_verls_actors_claim() -> None:
    """Three a GPU, TransferQueue's controller and eight storage units, and one to place others.

    A second cell on one Ray waited for ever in the first one's TransferQueue.
    """
    one, eight = (
        BACKEND.translate(cell(nodes=nodes, gpus=gpus), PLACE) for nodes, gpus in ((1, 1), (2, 4))
    )
    assert (one.ray_cpus, eight.ray_cpus, one.alone_on_ray) == (13, 34, True)
    older = BACKEND.translate(cell({"backend.version": "0.8.0"}), PLACE)
    assert (older.ray_cpus, older.alone_on_ray) == (None, False)


@pytest.mark.parametrize(
    ("gpus", "minibatch", "per_gpu", "is_refused"),
    [
        (8, 64, 8, False),
        (8, 1024, 8, True),
        (7, 64, 8, True),
        (24, 64, 8, True),
        (8, 64, 12, True),
    ],
)
def test_the_audit_says_of_sizes_what_verl_does(
    gpus: int, minibatch: int, per_gpu: int, is_refused: bool
) -> None:
    """As validate_config and prepare_micro_batches of 0.9.1 answered, of one GPU's rollouts."""
    actor, rollout = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
    micro = "log_prob_micro_batch_size_per_gpu"
    script = (
        "python3 -m verl.trainer.main_ppo data.train_batch_size=256 "
        f"{actor}.ppo_mini_batch_size={minibatch} "
        f"{actor}.ppo_micro_batch_size_per_gpu={per_gpu} {rollout}.n=4 {rollout}.{micro}=8 "
        f"actor_rollout_ref.ref.{micro}=8 trainer.n_gpus_per_node={gpus}"
    )
    (finding,) = audit(script, "train.sh", versions={"verl": "0.9.1 told"})
    assert any(each.stops for each in finding.contradictions) == is_refused
