"""What SkyRL takes without a word and does otherwise than the launch says: faults of a launch."""

from collections.abc import Iterator, Mapping

from backends.skyrl.releases import ALGORITHM, ASYNC, FIXED, PLACEMENT, SAMPLING
from orchestrator.errors import Fault

Values = Mapping[str, object]
_HARMLESS = frozenset(
    {
        f"{ALGORITHM}.kl_ctrl.type",
        "generator.batched",
        "generator.eval_n_samples_per_prompt",
        f"{SAMPLING}.logprobs",
    }
)
_TRAINING: Values = {
    key: value
    for key, value in FIXED.items()
    if key.startswith((ALGORITHM, "trainer.update_epochs_per_batch", "generator."))
    and key not in _HARMLESS
}
"""Keys that would change what is trained on, and what orch always says of them."""


def faults(values: Values, given: Values, argv: str, num_prompts: object) -> Iterator[Fault]:
    """values: what the launch says, over SkyRL's defaults. argv: its words, for its entry point.
    num_prompts: of its data, where that is known."""
    yield from _no_cell(given)
    yield from _asynchronous(values, given, argv)
    yield from _ranks(values, given)
    yield from _ends_early(values, given, num_prompts)


def is_asynchronous(given: Values) -> bool:
    return bool(given.get(f"{ASYNC}.enabled", given.get("orch.asynchronous", False)))


def _no_cell(given: Values) -> Iterator[Fault]:
    """Corrections, filters and bonuses that no cell has."""
    for key, value in _TRAINING.items():
        if key in given and not _equal(given[key], value):
            yield Fault(
                f"no cell has {given[key]!r}: it trains on something else; set it to "
                f"{'null' if value is None else str(value).lower()}",
                key,
            )


def _equal(one: object, other: object) -> bool:
    return one == other and isinstance(one, bool) == isinstance(other, bool)


def _asynchronous(values: Values, given: Values, argv: str) -> Iterator[Fault]:
    bound = f"{ASYNC}.max_staleness_steps"
    if not is_asynchronous(given):
        if bound in given:
            yield Fault(
                f"is ignored without {ASYNC}.enabled=true (before 0.3.0: without an entry point of "
                "the asynchronous trainer): the launch is synchronous",
                bound,
            )
        return
    if "entrypoints.main_base" in argv or "entrypoints/main_base" in argv:
        yield Fault(
            "is ignored by skyrl.train.entrypoints.main_base, which always builds the synchronous "
            "trainer: run an entry point that builds FullyAsyncRayPPOTrainer (orch_skyrl.py does)",
            f"{ASYNC}.enabled",
        )
    batch, minibatch = (
        values[f"trainer.{name}"] for name in ("train_batch_size", "policy_mini_batch_size")
    )
    if batch != minibatch:
        yield Fault(
            f"must be trainer.train_batch_size={batch} here: the asynchronous trainer makes one "
            "update a rollout batch, and says so only once it is built",
            "trainer.policy_mini_batch_size",
        )
    if given.get(f"{PLACEMENT}.colocate_all", True) is not False:
        yield Fault(
            "must be false here, and is true unless told otherwise: the asynchronous trainer "
            "samples on GPUs of its own",
            f"{PLACEMENT}.colocate_all",
        )


def _ranks(values: Values, given: Values) -> Iterator[Fault]:
    nodes, gpus = (given.get(f"{PLACEMENT}.policy_num_{n}") for n in ("nodes", "gpus_per_node"))
    minibatch = values["trainer.policy_mini_batch_size"]
    group = values["generator.n_samples_per_prompt"]
    whole = [x for x in (nodes, gpus, minibatch, group) if isinstance(x, int) and x > 0]
    if len(whole) == 4 and whole[2] * whole[3] % (whole[0] * whole[1]):
        yield Fault(
            f"{minibatch} prompts x {group} rollouts do not divide among {whole[0] * whole[1]} "
            "GPUs: SkyRL drops prompts until they do",
            "trainer.policy_mini_batch_size",
        )


def _ends_early(values: Values, given: Values, num_prompts: object) -> Iterator[Fault]:
    wanted, epochs = given.get("trainer.max_training_steps"), values["trainer.epochs"]
    batch = values["trainer.train_batch_size"]
    if not (
        isinstance(wanted, int)
        and isinstance(epochs, int)
        and isinstance(num_prompts, int)
        and isinstance(batch, int)
        and batch > 0
    ):
        return
    if (reached := num_prompts // batch * epochs) < wanted:
        yield Fault(
            f"training ends after {reached} of {wanted} rollout batches: an epoch has "
            f"{num_prompts // batch} whole ones; raise it",
            "trainer.epochs",
        )
