"""Gives TRL's GRPOTrainer a KL over the vocabulary, or one charged to later tokens only.

orch_trl.py makes `taught(...)` methods of a subclass where a launch has `--kl-estimator`; the
mathematics is orch_quiet_kl.py. Policy loss, clip and aggregation stay the library's: the KL in the
loss goes through the library's own reduction, and the KL in the reward becomes advantages of
tokens, [rollouts, T], which its loss takes. `beta` is its option, and 0 while its own loss runs,
so that its own estimator adds nothing. For TRL 1.9.2 and 1.16.0, without images, tools or adapters.
"""

import functools
import types
from typing import Any

import torch
from orch_quiet_kl import FORMS, Head, advantages, charged, of_hidden

Tensor = Any
EPSILON = 1e-4
"""What TRL adds to a group's standard deviation."""


def taught(library: Any, estimator: str, placement: str) -> "dict[str, Any]":
    """Return methods for a subclass of GRPOTrainer: name -> function."""
    form, in_loss, in_reward = _places(estimator, placement)

    def begin(self: Any, *args: Any, **kwargs: Any) -> None:
        library.__init__(self, *args, **kwargs)
        self.orch_asked = None  # the divergence that the next pass of the policy is asked for
        self.orch_states = None  # and its answer
        if form.divergence:
            _check(self.model)
            _check(self.ref_model)
            self.model.forward = types.MethodType(_forward(self.model), self.model)

    def rewards(self: Any, *args: Any, **kwargs: Any) -> Any:
        self.orch_rewards = library._calculate_rewards(self, *args, **kwargs)  # noqa: SLF001  TRL's own step
        return self.orch_rewards

    def score(self: Any, inputs: Any) -> Any:
        output = library._generate_and_score_completions(self, inputs)  # noqa: SLF001  TRL's own step
        if in_reward and self.model.training:
            kl, output["advantages"] = _advantages(self, output, form)
            _log(self, kl, output["completion_mask"], is_term=not in_loss, kind=form.reward)
        return output

    def log_probabilities(
        self: Any, model: Any, ids: Any, attention: Any, keep: Any, *args: Any, **named: Any
    ) -> Any:
        if self.orch_asked is None:
            return library._get_per_token_logps_and_entropies(  # noqa: SLF001  TRL's own step
                self, model, ids, attention, keep, *args, **named
            )
        states = _states(self, model, ids, attention, keep, self.orch_asked)
        self.orch_states = states
        return states[0], states[1], None

    def loss(self: Any, model: Any, inputs: Any) -> Any:
        beta, self.beta = self.beta, 0.0
        self.orch_asked = form.divergence if in_loss else None
        try:
            value = library._compute_loss(self, model, inputs)  # noqa: SLF001  TRL's own step
            if in_loss:
                logp, _, kl = self.orch_states
                value = value + beta * _reduced(library, self, model, inputs, logp, kl)
                kind = "" if in_reward else form.divergence
                _log(self, kl, inputs["completion_mask"], is_term=True, kind=kind)
        finally:
            self.beta, self.orch_asked, self.orch_states = beta, None, None
        return value

    return {
        "__init__": begin,
        "_calculate_rewards": rewards,
        "_generate_and_score_completions": score,
        "_get_per_token_logps_and_entropies": log_probabilities,
        "_compute_loss": loss,
    }


def _places(estimator: str, placement: str) -> "tuple[Any, bool, bool]":
    """Return the form of an estimator, and whether it is in the loss and in the reward."""
    form = FORMS[estimator]
    in_loss, in_reward = (placement in (name, "reward_and_loss") for name in ("loss", "reward"))
    if in_loss and not form.divergence:
        raise ValueError(f"{estimator} is for the reward; got placement {placement}")
    return form, in_loss, in_reward


def _reduced(
    library: Any, trainer: Any, model: Any, inputs: Any, logp: Tensor, per_token: Tensor
) -> Tensor:
    """Return what the library's loss makes of a value of each token [R, T].

    Where the importance ratio is 1, its policy loss of a token is minus the advantage, whatever
    the clip: so the values go in as advantages, and are reduced as the policy loss is.
    """
    given = {**inputs, "advantages": -per_token, "old_per_token_logps": logp.detach()}
    return library._compute_loss(_Reducer(trainer, logp.detach()), model, given)  # noqa: SLF001  TRL's own step


class _Reducer:
    """A trainer whose pass of the policy is done, and whose metrics nobody reads."""

    def __init__(self, trainer: Any, logp: Tensor) -> None:
        self._trainer, self._logp, self._metrics = trainer, logp, _Unread()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._trainer, name)

    def _get_per_token_logps_and_entropies(self, *_: object, **__: object) -> Any:
        return self._logp, torch.zeros_like(self._logp), None


class _Unread(dict):  # type: ignore[type-arg]  # metrics by mode and by name
    """Takes metrics of any mode and name, and forgets them."""

    def __missing__(self, key: str) -> Any:
        return _Unread() if key in ("train", "eval") else []


def _advantages(trainer: Any, output: Any, form: Any) -> "tuple[Tensor, Tensor]":
    """Return each token's KL and the advantages of this process, [R, T] both.

    The advantages are rewards less the charged KL, centred over the group.
    """
    mask = output["completion_mask"]
    ids, attention = (
        torch.cat([output[f"prompt_{end}"], output[f"completion_{end}"]], dim=1)
        for end in ("ids", "mask")
    )
    keep, size = mask.shape[1], trainer.args.per_device_train_batch_size
    with torch.no_grad():
        if form.reward == "k1":
            logps = output.get("old_per_token_logps")
            if logps is None:
                logps = trainer._get_per_token_logps_and_entropies(  # noqa: SLF001  TRL's own step
                    trainer.model, ids, attention, keep, size
                )[0]
            kl = logps - output["ref_per_token_logps"]
        else:
            parts = zip(torch.split(ids, size), torch.split(attention, size))  # noqa: B905  # 3.10
            passes = [
                _states(trainer, trainer.model, *part, keep, form.reward)[2] for part in parts
            ]
            kl = torch.cat(passes)
    charges = charged(kl * mask, form.charge)
    gather = trainer.accelerator
    # Processes may have responses of different lengths, and `gather` needs equal shapes.
    every = gather.gather(gather.pad_across_processes(charges, dim=1))
    weight, group = trainer.reward_weights.to(every.device), trainer.num_generations
    # TRL writes NaN where a reward function gives no reward.
    rewards = (trainer.orch_rewards.to(every.device) * weight).nansum(1)
    gains = advantages(rewards, every, trainer.beta * float(weight[0]), group)
    if trainer.scale_rewards == "group":
        gains = gains / (_deviation(gains, group) + EPSILON)
    first = gather.process_index * len(mask)
    return kl, gains[first : first + len(mask), : mask.shape[1]]


def _deviation(centred: Tensor, group: int) -> Tensor:
    """Return the unbiased standard deviation of each position in its group, [R, T]."""
    parts = centred.unflatten(0, (-1, group))
    return parts.std(1, keepdim=True).expand_as(parts).flatten(0, 1)


def _log(trainer: Any, per_token: Tensor, mask: Tensor, *, is_term: bool, kind: str) -> None:
    """Log the mean over response tokens as `kl`, where it is the term that is trained, as the
    library logs its own; and as `kl_reference` where its mean is the KL to the reference policy."""
    sums = torch.stack([(per_token.detach() * mask).sum(), mask.sum().to(per_token.dtype)])
    total, count = trainer.accelerator.reduce(sums, reduction="sum")
    metrics = trainer._metrics["train" if trainer.model.training else "eval"]  # noqa: SLF001  TRL's own step
    mean = (total / count.clamp(min=1.0)).item()
    for name in ["kl"] * is_term + ["kl_reference"] * (kind in ("k1", "reverse")):
        metrics[name].append(mean)


def _states(trainer: Any, model: Any, ids: Tensor, attention: Tensor, keep: int, kind: str) -> Any:
    """Return log-probability, entropy and KL of each response token, [R, T] each.

    The policy's pass goes through the module that the trainer calls, which a wrapper may share
    among processes.
    """

    def pass_of(policy: Any) -> Any:
        with trainer.accelerator.autocast():
            with torch.no_grad():
                fixed = _hidden(trainer.ref_model, ids, attention, keep)
            heads = (_head(policy), _head(trainer.ref_model))
            hidden = _hidden(policy, ids, attention, keep)
            tokens = ids[:, -keep:].reshape(-1)
            flat = (each.reshape(-1, each.shape[-1]) for each in (hidden, fixed))
            states = of_hidden(kind, heads, *flat, tokens, trainer.temperature)
        return tuple(each.view(-1, keep) for each in states)

    return model(orch_pass=pass_of)


def _hidden(model: Any, ids: Tensor, attention: Tensor, keep: int) -> Tensor:
    """Return the hidden states [R, T, H] from which the response's tokens are predicted."""
    output = model.base_model(input_ids=ids, attention_mask=attention, use_cache=False)
    return output.last_hidden_state[:, -keep - 1 : -1]


def _head(model: Any) -> Head:
    embeddings = model.get_output_embeddings()
    return Head(embeddings.weight, getattr(embeddings, "bias", None))


def _forward(model: Any) -> Any:
    """Return a model's forward pass that runs `orch_pass` on the model instead, where given."""
    before = model.forward

    @functools.wraps(type(model).forward)  # whose signature `generate` looks at
    def forward(self: Any, *args: Any, orch_pass: Any = None, **kwargs: Any) -> Any:
        return before(*args, **kwargs) if orch_pass is None else orch_pass(self)

    return forward


def _check(model: Any) -> None:
    """Raise RuntimeError if a model's logits are not its output embeddings of its hidden states."""
    ids = torch.arange(1, 5, device=model.device)[None]
    was_training = model.training
    model.eval()
    with torch.no_grad():
        hidden = model.base_model(input_ids=ids, use_cache=False).last_hidden_state
        logits, ours = model(input_ids=ids).logits, _head(model).to(hidden.dtype).logits(hidden)
    model.train(was_training)
    if not torch.allclose(logits.float(), ours.float(), rtol=1e-2, atol=1e-2):
        raise RuntimeError(
            "orch's KL over the vocabulary takes logits from the output embeddings of the last "
            f"hidden state; {type(model).__name__} makes them otherwise (it scales or caps them). "
            "Use kl.estimator=rho_k3 in the loss or k1 in the reward."
        )
