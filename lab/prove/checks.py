"""Check the invariants of a run, which no dialect changes. Each check reports its observation."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from lab.cpu.orch_cpu_sampler import Sampler
from lab.cpu.orch_rollout_dump import FOLDER, RolloutBatch, Values
from lab.prove.proof import Proof, Run, passes_of
from orchestrator import plugins, scoring
from orchestrator.errors import OrchError
from orchestrator.kl.library_semantics import in_loss, in_reward, relevant
from orchestrator.launch.endings import Ending
from orchestrator.launch.export import export
from orchestrator.records import Cell, Checkpoint
from orchestrator.rundir import CellDir
from orchestrator.spec.site_options import NodeOptions

AT_START = {"fp32": 1e-5, "bf16": 1e-2, "fp16": 1e-3}
"""Number format of the passes -> the largest |log pi - log pi_ref| of one policy scored twice."""
AGREE = {"fp32": 1e-4, "bf16": 2e-2, "fp16": 5e-3}
"""Number format of the passes -> the largest mean difference between the probabilities that trainer
and sampler give to a token, on equal weights. The sampler here computes in fp32."""
SAMPLES = 64
"""Number of prompts that a saved policy answers."""


class Check(NamedTuple):
    """The result for one invariant. `holds` is None if unchecked; `found` is then the reason."""

    name: str
    holds: bool | None
    found: str


def checks(run: Run, cell_dir: CellDir, options: NodeOptions) -> Iterator[Check]:
    """Yield every check of a run that ended. `options` name the library's environment."""
    yield _kl_at_start(run)
    yield _trainer_is_sampler(run)
    yield _reward_is_scorer(run)
    yield _learns(run)
    yield _metrics(run, cell_dir)
    yield from _checkpoints(run, cell_dir, options)


def failures(
    ending: Ending, checks: Iterable[Check], proof: Proof | None, fault: str = ""
) -> Iterator[str]:
    """Yield a sentence for each failure. `fault`: why there is no proof, if something failed."""
    if ending.state != "succeeded":
        first, *output = ending.message.splitlines() or ["it failed"]
        machine = "; the machine is at fault: try again when it has less to do"
        yield ": ".join([first, *output[-1:]]) + (machine if ending.failure == "node" else "")
    if fault:
        yield fault
    yield from (f"not so: {x.name}: {x.found}" for x in checks if x.holds is False)
    if proof is not None and not proof.holds:
        yield "the library does something else than its dialect predicts"


def leavings(cell: Cell, cell_dir: CellDir) -> Iterator[Check]:
    """Yield the checks of a run with an adapter, which is not replayed: log and checkpoints."""
    backend = plugins.load(cell.settings.backend.name)
    name, steps = "orch reads the library's log", set()
    try:
        for attempt in cell_dir.attempts():
            steps |= {point.step for point in backend.read_metrics(attempt.path)}
        yield Check(name, bool(steps), f"{len(steps)} train steps")
    except OrchError as error:
        yield Check(name, False, str(error))
    checkpoint_steps = [each.step for each in backend.find_checkpoints(cell_dir.checkpoints)]
    shown = ", ".join(map(str, checkpoint_steps)) or "none"
    last = cell.settings.num_train_steps
    yield Check(
        "the last checkpoint is complete", last in checkpoint_steps, f"of train steps: {shown}"
    )
    why = "lora trains an adapter, and the replay the whole model"
    yield Check("what the dialect predicts", None, why)


def _format(run: Run) -> str:
    return passes_of(run.cell.settings, run.dialect, run.batches)


def _kl_at_start(run: Run) -> Check:
    name = "KL is 0 at the first step"
    first = run.batches[0]
    if not (in_reward(run.cell.settings.kl) or in_loss(run.cell.settings.kl)):
        return Check(name, None, "the cell has no KL term")
    if relevant(run.dialect, run.cell.settings).reference_temperature == "one":
        return Check(name, None, "the library has the reference policy at another temperature")
    # The first rollouts of a run end after the train steps that were made of them. A later end
    # means that earlier rollouts are lost.
    if first.step != len(first.updates or [[]]):
        return Check(name, None, f"the first rollouts are those of train step {first.step}")
    if first.logp_policy is None or first.logp_reference is None:
        return Check(name, None, "the library did not report both policies' log-probabilities")
    far = max(_each(first, first.logp_policy, first.logp_reference, lambda a, b: abs(a - b)))
    limit = AT_START.get(_format(run), AT_START["bf16"])
    return Check(name, far <= limit, f"largest |log pi - log pi_ref| {far:.2g} (limit {limit:g})")


def _trainer_is_sampler(run: Run) -> Check:
    name = "the trainer scores tokens as the sampler did"
    from math import exp

    batches = [b for b in run.batches if b.logp_policy is not None and b.logp_rollout is not None]
    if not batches:
        return Check(name, None, "the library did not report both")
    apart = [
        each
        for b in batches
        for each in _each(
            b, b.logp_policy or [], b.logp_rollout or [], lambda x, y: abs(exp(x) - exp(y))
        )
    ]
    mean, limit = sum(apart) / len(apart), AGREE.get(_format(run), AGREE["bf16"])
    text = f"probabilities differ by {mean:.2g} on average, {max(apart):.2g} at most"
    return Check(name, mean <= limit, f"{text} (limit of the average {limit:g})")


def _each(
    batch: RolloutBatch, one: Values, other: Values, apart: Callable[[float, float], float]
) -> list[float]:
    masks = batch.mask or [[1] * len(row) for row in batch.responses]
    return [
        apart(a, b)
        for row, twin, counted in zip(one, other, masks, strict=True)
        for a, b, counts in zip(row, twin, counted, strict=True)
        if counts
    ]


def _reward_is_scorer(run: Run) -> Check:
    name = "the reward is the scorer's, of the decoded text"
    if run.batches[0].answers is None:
        return Check(name, None, "the library did not report what answers it was scored with")
    score = scoring.reward_function(run.cell.settings.data.reward)
    tokenizer = _tokenizer(run.policy)
    wrong, count = [], 0
    for batch in run.batches:
        texts: Sequence[str | None] = batch.texts or [
            _text(tokenizer, tokens) for tokens in batch.responses
        ]
        for text, answer, reward in zip(texts, batch.answers or [], batch.rewards, strict=True):
            if text is None:
                continue
            count += 1
            if abs(score(text, answer) - reward) > 1e-6:
                wrong.append(f"{text!r} for {answer!r} got {reward:g}, not {score(text, answer):g}")
    if wrong:
        return Check(name, False, f"{len(wrong)} of {count} responses: {wrong[0]}")
    return Check(name, True, f"all {count} responses")


def _text(tokenizer: Any, tokens: list[int]) -> str | None:
    """Return a response's text; None for one with a special token that is not its end.

    OpenRLHF's reward function sees that token, verl's does not.
    """
    if {*tokens} & {*tokenizer.all_special_ids} - {tokenizer.eos_token_id}:
        return None
    text: str = tokenizer.decode(tokens, skip_special_tokens=True)
    return text


def _learns(run: Run) -> Check:
    name = "the gradient is not 0"
    norms = [b.observed["grad_norm"] for b in run.batches if "grad_norm" in b.observed]
    if not norms:
        return Check(name, None, "the library did not report its norm")
    rewards = sorted({reward for b in run.batches for reward in b.rewards})
    if max(norms) > 0:
        return Check(name, True, f"norms from {min(norms):.3g} to {max(norms):.3g}")
    why = f"every reward is {rewards[0]:g}" if len(rewards) == 1 else f"{len(rewards)} rewards"
    return Check(name, False, f"its norm is 0 in all {len(norms)} batches; {why}")


def _metrics(run: Run, cell_dir: CellDir) -> Check:
    """Compare orch's reading of the library's log with the values that the hook recorded."""
    name = "orch reads the library's log"
    backend = plugins.load(run.cell.settings.backend.name)
    logged: dict[int, float] = {}
    try:
        for attempt in cell_dir.attempts():
            for point in backend.read_metrics(attempt.path):
                if "train/grad_norm" in point.values:
                    logged[point.step] = point.values["train/grad_norm"]
    except OrchError as error:
        return Check(name, False, str(error))
    norms = {b.step: list(_grad_norms(b)) for b in run.batches if "grad_norm" in b.observed}
    # A process that is killed may have written the rollouts of its last step, and not the log.
    cut = {max(steps) for attempt in cell_dir.attempts()[:-1] if (steps := _dumped(attempt.path))}
    if missing := sorted(norms.keys() - logged.keys() - cut):
        return Check(name, False, f"train step {missing[0]} has no train/grad_norm")
    both = norms.keys() & logged.keys()
    for step in sorted(both):
        if not any(abs(norm - logged[step]) <= 1e-3 * abs(norm) for norm in norms[step]):
            text = f"{logged[step]:g} in the log, {norms[step][0]:g} in the process"
            return Check(name, False, f"train step {step}: {text}")
    lost = len(norms.keys() - both)
    shown = f"{len(both)} train steps, gradient norms as in the process"
    return Check(name, True, f"{shown}; {lost} killed before it was logged" if lost else shown)


def _grad_norms(batch: RolloutBatch) -> Iterator[float]:
    """Yield the norms that a log may have: the mean over the train steps, then reported ones.

    OpenRLHF reports the norm of the last train step.
    """
    yield batch.observed["grad_norm"]
    yield from (value for name, value in batch.reported.items() if name.endswith("grad_norm"))


def _dumped(attempt: Path) -> list[int]:
    """Return the train steps after which an attempt wrote rollouts."""
    return [int(path.stem) for path in (attempt / FOLDER).glob("[0-9]*.json")]


def _checkpoints(run: Run, cell_dir: CellDir, options: NodeOptions) -> Iterator[Check]:
    name = "a checkpoint loads and scores"
    backend = plugins.load(run.cell.settings.backend.name)
    checkpoints = backend.find_checkpoints(cell_dir.checkpoints)
    last = run.batches[-1].step
    if not checkpoints or checkpoints[-1].step != last:
        steps = ", ".join(str(each.step) for each in checkpoints) or "none"
        yield Check(name, False, f"checkpoints of train steps: {steps}; there were {last}")
        return
    try:
        exported = export(run.cell, checkpoints[-1], cell_dir, options)
    except OrchError as error:
        yield Check(name, False, str(error))
        return
    yield _scores(run, exported, name)
    if last in run.weights:
        yield _weights(run.weights[last], exported)


def _scores(run: Run, checkpoint: Checkpoint, name: str) -> Check:
    batch = run.batches[-1]
    if batch.answers is None:
        return Check(name, None, "the library did not report any answers")
    score = scoring.reward_function(run.cell.settings.data.reward)
    answer_by_prompt: dict[tuple[int, ...], str] = {}
    # The earliest batch comes last, so its prompts are the ones that are kept first.
    for other in reversed(run.batches):
        answer_by_prompt |= {
            tuple(p): a for p, a in zip(other.prompts, other.answers or [], strict=True)
        }
    chosen = list(answer_by_prompt.items())[:SAMPLES]
    policy, longest = Sampler(checkpoint.path), max(map(len, batch.responses))
    responses = policy.sample([prompt for prompt, _ in chosen], longest, temperature=0)
    rewards = [
        score(policy.tokenizer.decode(response.ids, skip_special_tokens=True), answer)
        for response, (_, answer) in zip(responses, chosen, strict=True)
    ]
    mean = sum(rewards) / len(rewards)
    return Check(name, True, f"step {checkpoint.step}: greedy reward {mean:.3f} of {len(rewards)}")


def _weights(saved: Path, checkpoint: Checkpoint) -> Check:
    """Compare an exported checkpoint with the weights in the trainer's memory."""
    import torch
    from safetensors.torch import load_file

    trained = torch.load(saved, map_location="cpu", weights_only=True)
    files = sorted(checkpoint.path.glob("*.safetensors"))
    exported = {name: tensor for file in files for name, tensor in load_file(file).items()}
    far = max(
        float((exported[name].float() - trained[name].float()).abs().max())
        for name in exported.keys() & trained.keys()
    )
    formats = sorted({str(tensor.dtype).removeprefix("torch.") for tensor in exported.values()})
    name = "the exported checkpoint is the trained policy"
    limit = 1e-6 if formats == ["float32"] else 0.02
    return Check(name, far <= limit, f"in {', '.join(formats)}, off by {far:.2g} at most")


def _tokenizer(folder: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)
