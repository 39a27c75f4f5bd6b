"""Read the KL that a launch of EasyR1 asks for. EasyR1 is a fork of verl with keys of its own.

Source: EasyR1 from 2025-02 to 2026-07: verl/trainer/{main,config,ray_trainer}.py, verl/workers/
actor/{config,dp_actor}.py, examples/config.yaml. Reward and loss share one estimator and one
coefficient. `use_kl_loss` selects the place, `disable_kl` switches the KL off in both.
"""

import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from orchestrator.audit.reading import (
    LONGEST_ENTRY,
    Keys,
    ReleaseReader,
    clip_range,
    regime_of_sizes,
    shown,
    split_override,
)
from orchestrator.kl.estimators import Clamp
from orchestrator.library.launches import (
    AuditNote,
    Divisor,
    Given,
    HeldKeys,
    InLoss,
    InReward,
    Launch,
    LaunchChange,
    LaunchReading,
    Surroundings,
    TrainingRegime,
)
from orchestrator.library.manifest import ReleaseTable

DISABLE, USE_LOSS = "algorithm.disable_kl", "algorithm.use_kl_loss"
PENALTY, COEFFICIENT = "algorithm.kl_penalty", "algorithm.kl_coef"
ADVANTAGE, GROUP = "algorithm.adv_estimator", "worker.rollout.n"
OLD_USE, OLD_COEFFICIENT = "worker.actor.use_kl_loss", "worker.actor.kl_loss_coef"
OLD_TYPE = "worker.actor.kl_loss_type"
MAIN, VERLS_BATCH = "verl/trainer/main.py", "data.train_batch_size"
BATCH, MINIBATCH = "data.rollout_batch_size", "worker.actor.global_batch_size"
EPOCHS, AVERAGE = "worker.actor.ppo_epochs", "worker.actor.loss_avg_mode"
LOSS_TYPE = "worker.actor.loss_type"
CLIP_LOW, CLIP_HIGH = "worker.actor.clip_ratio_low", "worker.actor.clip_ratio_high"
DUAL = "worker.actor.clip_ratio_dual"
EPISODES, STEPS = ("trainer.total_episodes", "trainer.total_epochs"), "trainer.max_steps"
OWN = {
    BATCH: "512",
    EPOCHS: "1",
    AVERAGE: "token",
    LOSS_TYPE: "default",
    CLIP_LOW: "0.2",
    CLIP_HIGH: "0.3",
    DUAL: "3.0",
    MINIBATCH: "256",
    DISABLE: "false",
    USE_LOSS: "false",
    PENALTY: "kl",
    COEFFICIENT: "0.001",
    ADVANTAGE: "grpo",
    GROUP: "1",
}
"""Key -> the default in EasyR1's dataclasses."""
STOCK = OWN | {
    USE_LOSS: "true",
    PENALTY: "low_var_kl",
    COEFFICIENT: "0.01",
    GROUP: "5",
    MINIBATCH: "128",
}
"""Key -> the value in examples/config.yaml, the base of nearly every launch."""
OLD = OWN | {
    MINIBATCH: "128",
    OLD_USE: "true",
    OLD_TYPE: "low_var_kl",
    OLD_COEFFICIENT: "0.001",
    GROUP: "5",
}
"""Key -> the default of February and March 2025: examples/grpo_example.yaml, actor's dataclass."""
DIVIDED_BY: Mapping[str, Divisor] = {
    "grpo": "group_std",
    "gae": "batch_std",
    "reinforce_plus_plus": "batch_std",
    "rloo": "nothing",
    "remax": "nothing",
}
"""Advantage estimator -> the divisor of its advantage in core_algos.py, which divides a KL too."""
LOSSES = {"default": "ppo", "gspo": "gspo", "gspo_token": "gspo", "cispo": "cispo", "sapo": "sapo"}
"""loss_type -> the entry of orchestrator.losses (core_algos.py: compute_policy_loss)."""
_ALSO = {CLIP_LOW: ("clip_low", "clip_ratio"), CLIP_HIGH: ("clip_high", "clip_ratio")}
"""Key -> its names in the dataclasses of forks and of old releases."""
ESTIMATORS = {"kl": "k1", "abs": "abs", "mse": "k2", "low_var_kl": "k3"}
_OPEN = ("worker.rollout.val_override_config.", "worker.reward.reward_function_kwargs.")
"""Sections that take any key."""
_ENTRY = re.compile(r"^(?:\w+\.)*verl\.trainer\.main$|(^|/)verl/trainer/main\.py$")
_KEYS = re.compile(r"^(algorithm\.(disable_kl|use_kl_loss|kl_coef)|worker\.\w[\w.]*)(=|$)")


@cache
def _table() -> ReleaseTable:
    """Return the keys of its dataclasses from 2025-02 to 2026-07."""
    text = Path(__file__).with_name("easyr1.json").read_text(encoding="utf-8")
    return ReleaseTable("EasyR1", frozenset(json.loads(text)), added=_OPEN)


def is_easyr1(launch: Launch) -> bool:
    """Return True if a launch starts EasyR1, or a configuration file is for EasyR1."""
    if any(_ENTRY.search(word.text[-LONGEST_ENTRY:]) for word in launch.words):
        return True
    if launch.words:
        named = [w.text for w in launch.words if _KEYS.match(w.text)]
        return len(named) > 1 and any(n.startswith("worker.") for n in named)
    own = ("worker.actor.", "algorithm.")
    return all(any(key.startswith(each) for key in launch.in_files) for each in own)


def reading(launch: Launch) -> LaunchReading:
    """Return the audit's reading of a launch of EasyR1."""
    words = launch.words
    at = next((i for i, word in enumerate(words) if _ENTRY.search(word.text)), None)
    if at is None:
        at = next((i - 1 for i, w in enumerate(words) if _KEYS.match(w.text)), -1)
    rest = words[max(at + 1, 0) :]
    entry = words[at].text if words and at >= 0 else None
    config = next((w.text[7:] for w in rest if w.text.startswith("config=")), "")
    keys = Keys(_defaults(config, launch))
    keys.add_documents(launch.documents)
    because = "its entry point and its keys are those of this fork of verl"
    reader = _Reader(launch, keys, entry, "EasyR1", because)
    unread: dict[str, Given] = {}
    for key, given in filter(None, map(split_override, rest)):
        read = "" if given.mark else _field(key, launch)
        if read:
            keys.add(read, given)
        else:
            unread[f"{given.mark}{key}"] = given
    for key in list(keys.given):
        if _dataclasses(key.rpartition(".")[0], launch) and not _field(key, launch):
            unread[key] = keys.given.pop(key)[-1]
    if unread:
        reader.without_key(unread)
    _unseen(keys, config, launch)
    return reader.reading()


def _field(key: str, launch: Launch) -> str:
    """Return the key that a checkout's dataclass, else EasyR1's own, reads for one of a launch;
    empty: none."""
    section, _, name = key.rpartition(".")
    is_flat = re.fullmatch(r"data|algorithm|trainer|worker\.\w+", section)
    text = _dataclasses(section, launch) if is_flat else None
    if text is None:
        return "" if key == VERLS_BATCH else key
    if re.search(rf"(?m)^    {name} *:", text):
        return key
    alias = re.search(rf"(?m)^ +self\.(\w+) = self\.{name}$", text)
    return f"{section}.{alias[1]}" if alias else ""


def _dataclasses(section: str, launch: Launch) -> str | None:
    """Return the checkout's file with the dataclass of a section, if it has one."""
    path = f"verl/{section.replace('worker', 'workers').replace('.', '/')}/config.py"
    return launch.beside.get(path if section.startswith("worker") else "verl/trainer/config.py")


def _defaults(config: str, launch: Launch) -> dict[str, str]:
    if launch.documents or not config:
        return OWN | dict(_of_checkout(launch))
    return OLD if config.endswith("grpo_example.yaml") else STOCK


def _of_checkout(launch: Launch) -> Iterator[tuple[str, str]]:
    """Yield the keys whose defaults a checkout's own dataclasses give; 0 for a dual clip that they
    have not."""
    for key in OWN:
        section, _, name = key.rpartition(".")
        text = _dataclasses(section, launch)
        names = "|".join((name, *_ALSO.get(key, ())))
        if match := re.search(rf'(?m)^    (?:{names}) *: \w+ = "?([\w.+-]+)"?$', text or ""):
            yield key, match[1]
        elif key == DUAL and text:
            yield key, "0"


def _unseen(keys: Keys, config: str, launch: Launch) -> None:
    """Record a missing configuration file. Assume EasyR1's own; any other may set every key."""
    name = config.strip("'\"").rpartition("/")[2]
    if launch.documents or not config:
        return
    if name in ("config.yaml", "grpo_example.yaml"):
        keys.assumes.append(f"{shown(config)}, which is not here, is EasyR1's own")
    else:
        keys.opaque = f"it comes from the configuration '{shown(config)}', which is not here"


class _Reader(ReleaseReader):
    library = "verl"
    title = "EasyR1"

    def without_key(self, unread: Mapping[str, Given]) -> None:
        """Note words of a command that set no key (main.py: OmegaConf.from_cli and merge)."""
        is_open = "set_struct" in (self.launch.beside.get(MAIN) or "")
        why = " (OmegaConf.from_cli keeps a `+`)" if any(each[0] in "+~" for each in unread) else ""
        text = f"{', '.join(unread)}: no key of its dataclasses{why}{', so no effect' * is_open}"
        lines = tuple(sorted({n for each in unread.values() for n in each.lines}))
        self.notes.append(AuditNote(text, lines, stops=not is_open, apart=is_open))

    def reading(self) -> LaunchReading:
        keys = self.keys
        old = OLD_USE in keys.defaults or keys.has(OLD_USE) or keys.has(OLD_COEFFICIENT)
        old = old and bool(_field(OLD_COEFFICIENT, self.launch))  # the dataclass beside decides
        if old:
            keys.defaults = OLD | dict(keys.defaults)
        off, use = False if old else self.switch(DISABLE), OLD_USE if old else USE_LOSS
        in_loss = keys.switch(use)
        of_old = old and in_loss
        kind, weight = (OLD_TYPE, OLD_COEFFICIENT) if of_old else (PENALTY, COEFFICIENT)
        beta, estimator = None if off else keys.number(weight), None
        if off is False and beta != 0:
            self.switch(use)
            estimator = self.estimator(kind, ESTIMATORS)
            self.number(weight)
        reward, loss = InReward(False), InLoss(False)
        if self.unknown:
            reward, loss = InReward(None), InLoss(None)
        elif in_loss and not off:
            loss = InLoss(beta != 0, estimator, beta)
        elif not off:
            reward = InReward(beta != 0, estimator, beta)
        self.notes += keys.doubled((DISABLE, USE_LOSS, PENALTY, COEFFICIENT))
        self.sources = dict.fromkeys(("reward", "loss"), "verl/trainer/ray_trainer.py: fit")
        if MAIN in self.launch.beside:
            keys.assumes.append("the code beside it does as EasyR1's: orch has none to compare")
        inert = (USE_LOSS, PENALTY, COEFFICIENT) if off else ()
        advantage = keys.text(ADVANTAGE)
        own = advantage is not None and advantage not in DIVIDED_BY
        regime = regime_of_sizes(keys, BATCH, MINIBATCH, EPOCHS)
        batch, minibatch = keys.integer(BATCH), keys.integer(MINIBATCH)
        why = ""
        if batch and minibatch and batch % minibatch:
            why = f"{BATCH} {batch} is no multiple of {MINIBATCH} {minibatch}"
            self.stops(why, "verl/trainer/ray_trainer.py", BATCH, MINIBATCH)
        elif own and regime.on_policy:
            why = f"{ADVANTAGE} {advantage} is a fork's own, which may count a batch otherwise"
        regime = TrainingRegime(None, why) if why else regime
        is_all = keys.text(STEPS, "null") == "null"
        none = (e for e in EPISODES if is_all and keys.number(e, 1) == 0)
        if ends := next((f"{e} is 0: nothing trains" for e in none), ""):
            reward, loss, regime = InReward(False), InLoss(False), TrainingRegime(None, ends)
        return self.found(
            reward,
            loss,
            decided=("does_not_train", ends) if ends else None,
            advantage_estimator=advantage,
            chosen=(("advantage", str(advantage)),) if own else (),
            group_size=keys.integer(GROUP),
            inactive=keys.inert(f"{DISABLE} is true", *inert),
            changes=() if ends else _changes(keys, kind, old, bool(loss.active)),
            regime=regime,
            surroundings=self._surroundings(),
            held=HeldKeys(keys.given, "structured", _table(), "EasyR1", exact=False),
        )

    def _surroundings(self) -> Surroundings:
        keys = self.keys
        advantage, average, kind = (keys.text(key) or "" for key in (ADVANTAGE, AVERAGE, LOSS_TYPE))
        divided = DIVIDED_BY.get(advantage)
        if divided is None:
            self.unknown_advantage(advantage)
        name = LOSSES.get(kind, kind)
        bypass = next((k for k in keys.given if "bypass" in k and keys.switch(k)), "")
        if bypass:
            self.unread.append(f"{bypass} takes the engine's log-probabilities for the old ones")
        is_old = OLD_USE in keys.defaults
        dual = 0 if is_old or kind != "default" else keys.number(DUAL)
        drops = f"tokens of negative advantage whose ratio is above {dual or 0:g} ({DUAL})"
        return Surroundings(
            policy_loss=name,
            old_is_sampler=bool(bypass),
            ratio=self.ratio(name, kind),
            also_drops=drops if dual else "",
            clamp=Clamp(None if is_old else 20.0, 10.0),
            clamp_of=("k3",),
            clip=clip_range(keys.number(CLIP_LOW), keys.number(CLIP_HIGH)),
            advantage_divided_by=divided,
            divided_because=f"{ADVANTAGE} {advantage}",
            own_rollout_in_mean=advantage == "grpo",
            length_weighted=average == "seq",
            aggregation_because=f"{AVERAGE} {average}",
            unread=tuple(self.unread),
        )


def _changes(keys: Keys, kind: str, old: bool, in_loss: bool) -> Iterator[LaunchChange]:
    """Yield the changes to a term that is not criticised, the smallest first."""
    use = OLD_USE if old else USE_LOSS
    if in_loss:
        yield keys.change("k2 in the loss", (kind, "mse"))
    # A fork's own advantage may do anything to a KL in the reward.
    if keys.text(ADVANTAGE) in (None, *DIVIDED_BY):
        yield keys.change("k1 in the reward", (use, "false"), (PENALTY, "kl"))
    yield keys.change("k2 in the loss", (use, "true"), (OLD_TYPE if old else PENALTY, "mse"))
