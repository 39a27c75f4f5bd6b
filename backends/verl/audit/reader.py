"""Read the KL that any launch of verl asks for, release by release.

Source: verl 0.1 to 0.9.1: trainer/config/*.yaml, trainer/ppo/ray_trainer.py, trainer/ppo/
core_algos.py, workers/actor/dp_actor.py, workers/utils/losses.py, recipe/*. keys.json in this
folder lists the configuration keys of each release.
"""

import ast
import json
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import zip_longest
from math import prod
from pathlib import Path

from backends.verl.audit import easyr1
from backends.verl.audit.composed import ComposedKeys
from backends.verl.extension import TO_GO
from backends.verl.manifest import (
    ACTOR,
    ADDED,
    ADVANTAGE,
    AGGREGATION,
    BATCH,
    BY_DEVIATION,
    CLIP_HIGH,
    CLIP_LOW,
    CONTROLLER,
    CORRECTION,
    FACTS,
    IS_THRESHOLD,
    IS_WEIGHTS,
    LOSS_BETA,
    LOSS_MODE,
    LOSS_TYPE,
    MANIFEST,
    MINIBATCH,
    MODE,
    NEWEST,
    PENALTY,
    REJECTION,
    REWARD_BETA,
    ROLLOUT,
    SEPARATE,
    TABLES,
    USE_LOSS,
    USE_REWARD,
    V1,
)
from backends.verl.releases import HOOKS, example, reads_switch
from orchestrator.audit.checkout import names_of, operands
from orchestrator.audit.commands import hydra_file
from orchestrator.audit.key_check import is_among
from orchestrator.audit.libraries import found_beside
from orchestrator.audit.reading import (
    LONGEST_ENTRY,
    NOT_RESCALED,
    Keys,
    ReleaseReader,
    as_number,
    clip_range,
    group_of_one,
    has_hole,
    hydra_overrides,
    program_with_keys,
    regime_of_sizes,
    shown,
    truncated,
    two_temperatures,
)
from orchestrator.kl.estimators import Clamp, Correction, EngineWeight, Ratio
from orchestrator.library.key_tables import (
    KeyTables,
    Option,
    load_tables,
    merged_table,
    nearest,
    parsed,
    version_tuple,
)
from orchestrator.library.launches import (
    AuditNote,
    BoundNote,
    CommandWord,
    Decided,
    Divisor,
    Given,
    HeldKeys,
    Inactive,
    InLoss,
    InReward,
    Launch,
    LaunchChange,
    LaunchReading,
    OldOf,
    Possibility,
    Surroundings,
    TrainingRegime,
)
from orchestrator.library.manifest import ReleaseTable
from orchestrator.library.release_marks import Replaced

GROUP = f"{ROLLOUT}.n"
_OWN_GROUP = re.compile(
    r"^(?!actor_rollout_ref\.|.*\bval).*\.rollout\.n$"
    r"|\.(?:n_agents?|(?:n|num)_(?:samples?|generations|traj\w*|repeats?|rollouts?)|group_size|max_samples_per_\w+)$"
    r"|\.(?:\w*beam_(?:size|width)|num_(?:beams|return_sequences))$"
)
"""Keys by which forks give the size of a group, or how often they repeat a prompt; agents of one
rollout share its prompt."""
_NOT_SCALED = ".n_agent"
"""That of Search-R1, whose workers scale a minibatch by `rollout.n` alone."""
ENGINE = f"{ROLLOUT}.name"
_ENGINES = re.compile(r"vllm|sglang|trtllm|hf|naive|vllm_omni|sglang_async")
"""Engines of some release. A fork's own may return several responses of a prompt."""
KL_KEYS = (USE_REWARD, PENALTY, REWARD_BETA, USE_LOSS, LOSS_TYPE, LOSS_BETA)

REFERENCE, TRAIN_FILES = "actor_rollout_ref.ref", "data.train_files"
LAMBDA, GAMMA = "algorithm.lam", "algorithm.gamma"
PPO_EPOCHS, DYNAMIC = f"{ACTOR}.ppo_epochs", f"{ACTOR}.use_dynamic_bsz"
MICRO = f"{ACTOR}.ppo_micro_batch_size_per_gpu"
STRATEGY, SEQUENCE_PARALLEL = f"{ACTOR}.strategy", f"{ACTOR}.ulysses_sequence_parallel_size"
NODES, GPUS = "trainer.nnodes", "trainer.n_gpus_per_node"
_STALE = re.compile(r"async|off_policy")
"""Entry points that sample while the policy is updated, if they are verl's own."""
_ASYNC_KEYS, _ASYNC_CONFIG = "async_training.", re.compile(r"fully_async|one_step_off")
"""The section of the fully asynchronous trainer's keys, and the configurations of such trainers."""
_OWN_LOOP = re.compile(r"(^|/)recipe[./]|experimental[./]")
"""Entry points whose trainer is not v1."""
_IMPORTS = re.compile(r"(?m)^\s*(?:from|import) +verl\.(?:trainer|experimental)\b")
MAIN, STOCK_FOLDER = "verl.trainer.main_ppo", "verl/trainer/config"
MAIN_FILE = "verl/trainer/main_ppo.py"
ENTROPY = f"{ACTOR}.entropy_coeff"
_OF_SHELL, _RUN_FOLDER = re.compile(r"(?<!\\)\$\{(\w+):-([^{}]*)\}"), "hydra.run.dir"
"""A default as a shell writes it, and the key that Hydra resolves in every launch."""
BYPASS = f"{CORRECTION}.bypass_mode"
_READ = (
    *KL_KEYS,
    *(ADVANTAGE, GROUP, BATCH, MINIBATCH, PPO_EPOCHS, BY_DEVIATION, LOSS_MODE, AGGREGATION),
    *(CLIP_LOW, CLIP_HIGH, ENTROPY, IS_WEIGHTS, IS_THRESHOLD, REJECTION, BYPASS, MODE),
)
DEFAULTS = {key: str(TABLES[NEWEST].defaults[key]) for key in _READ}
"""Key -> its default, composed by Hydra. Only that of the entropy changed (OLD_ENTROPY)."""
MICROS = tuple(
    f"{each}_micro_batch_size"
    for each in (f"{ACTOR}.ppo", f"{ROLLOUT}.log_prob", f"{REFERENCE}.log_prob")
)
"""Keys of micro-batch sizes, the last with a KL. Each release since 0.2.0 asks for one, or for the
key that ends in `_per_gpu`."""
_CHECKS = ("verl/trainer/ppo/ray_trainer.py", "verl/utils/config.py")
"""The file that does, before 0.6.0 and since."""
LOG_PROBS = f"{ROLLOUT}.calculate_log_probs"
"""The key that puts the engine's log-probabilities into a batch; true by default from 0.9.0, false
in 0.7.0 and 0.8.0 (trainer/config/rollout/rollout.yaml)."""
OF_CHECKOUT = (
    *(f"{ACTOR}.grad_clip", f"{ROLLOUT}.top_k", LOG_PROBS, DYNAMIC, *MICROS),
    *(f"{each}_per_gpu" for each in MICROS),
    *(row.key for row in MANIFEST.rows),
)
"""Further keys whose value in a checkout's own configuration counts where a launch gives none."""
OLD_ENTROPY = "0.001"
"""entropy_coeff in the releases before 0.4.0."""
DIVIDED_BY: Mapping[str, Divisor] = {
    "grpo": "group_std",
    "grpo_vectorized": "group_std",
    "grpo_passk": "group_std",
    "gae": "batch_std",
    "reinforce_plus_plus": "batch_std",
    "reinforce_plus_plus_baseline": "batch_std",
    "rloo": "nothing",
    "rloo_vectorized": "nothing",
    "remax": "nothing",
    "opo": "nothing",
    "gpg": "nothing",
    **{name: "group_std" if kind == "grpo" else "nothing" for kind, name in TO_GO.items()},
}
"""Advantage estimator -> the divisor of its advantage in core_algos.py, which divides a KL too."""
PARTS = "gdpo"
PARTS_WHY = f"{PARTS} makes the advantage of the reward's parts and never reads the shaped reward"
BASELINES = ("optimal_token_baseline", "tir_optimal_token_baseline")
KNOWN = (*DIVIDED_BY, PARTS, *BASELINES)
TRAINERS = ("verl/trainer/ppo/ray_trainer.py", "verl/trainer/ppo/core_algos.py")
REFERENCE_MODEL, POLICY_MODEL = f"{REFERENCE}.model.path", "actor_rollout_ref.model.path"
OWN_IN_MEAN = ("grpo", "grpo_vectorized", "gpg", "reinforce_plus_plus_baseline")
LOSSES: Mapping[object, object] = {
    **{name: name for name in ("clip_cov", "kl_cov", "dro")},
    **MANIFEST.meanings(LOSS_MODE, NEWEST),
}
"""policy_loss.loss_mode -> the entry of orchestrator.losses."""
REMOVES_CLIP = ".loss_remove_clip"
"""The end of the key by which LUFFY's fork of verl, and its own forks, take the clip away."""
DUAL, DUAL_DEFAULT, LARGE = f"{ACTOR}.clip_ratio_c", 3.0, 1e6
DRO_BETA = f"{ACTOR}.policy_loss.dro_beta"
LOSS_FLOORS = {"dro": (DRO_BETA, 0, 0), "vanilla": (DUAL, 1, DUAL_DEFAULT)}
"""Of a policy loss: its key, what the loss asserts that the value is above, and the default, 0 for
none (trainer/ppo/core_algos.py of 0.8.0 and 0.9.1)."""
ONLY_VALIDATES, VALIDATES_FIRST = "trainer.val_only", "trainer.val_before_train"
"""Where both are true, RayPPOTrainer.fit of 0.2.0 and later ends after the first validation, and
trainer v1 too."""
USES_V1 = "trainer.use_v1"
BYPASS_LOSS = "algorithm.rollout_correction.loss_type"
_CAP = f"{ACTOR}.tis_imp_ratio_cap"
"""The key of the cap of importance weights from 0.5.0 to 0.6.0."""
_OLD_WEIGHTS = "algorithm.rollout_is"
"""The key of the importance weights of 0.6.0. Without a threshold they are off."""
_ROLLOUT_LOGPROBS = "async_training.use_rollout_log_probs"
_ANEW = "async_training.compute_prox_log_prob"
FULLY_KEYS = {"async_training.trigger_parameter_sync_step": 4, "async_training.require_batches": 1}
SEPARATE_KEYS = {f"{SEPARATE}.parameter_sync_step": 4}
"""Key -> default of what an asynchronous trainer updates between two syncs of the engine."""
_BY_LENGTH = ("gspo", "geo_mean", "sapo")
"""Loss modes that average each response's tokens first, whatever loss_agg_mode is."""
_WEIGHTS: Mapping[tuple[str, str], Correction] = {
    ("tis", "token"): "tis_token",
    ("tis", "sequence"): "tis_sequence",
    ("mis", "token"): "mis_token",
    ("mis", "sequence"): "mis_sequence",
}
OFF = ("", "null", "none", "false")
LOGGER, TRACKING = "trainer.logger", "verl/utils/tracking.py"
"""Every release refuses a logger that is not in its list, in this file. The list has grown:
releases before the first table are held to that table's."""
TOP_REWARD = "custom_reward_function.path"
"""Where main_ppo read the reward's file before 0.9.0; now `reward.` stands before it."""
KEYS = Path(__file__).with_name("keys.json")


@cache
def _composed() -> KeyTables:
    """Return the keys of each release's ppo_trainer, as Hydra composes it."""
    return load_tables(KEYS, driven=FACTS)


@cache
def _index(version: str) -> int:
    """Return the index of a release among those whose keys are known."""
    return sum(version_tuple(each) < version_tuple(version) for each in _composed().versions)


ESTIMATORS = {
    str(name): str(estimator)
    for name, estimator in MANIFEST.meanings(PENALTY, NEWEST).items()
    if not str(name).endswith("+")
}
"""verl's name of an estimator -> orch's, the same since 0.1; with `+` it is straight-through."""
_NAMES = {name: name for name in ("kl", "abs", "mse", "low_var_kl", "k3+")}
"""verl's estimators, one name for each, and one of the straight-through ones."""
FIRST_WITH_SWITCH = _index("0.4.0")
"""Index of 0.4.0: before it, use_kl_loss alone says whether the reward has the KL."""
UNBOUNDED = (
    "k3 has no bound on its exponential before 0.4.1: where the policy is far from the reference "
    "on one token, its gradient is not a number"
)
ENGINE_MODE = f"{ROLLOUT}.logprobs_mode"
"""The kind of the engine's log-probabilities; processed_logprobs by default since 0.7.0, which
brought the key."""
TENSOR = f"{ROLLOUT}.tensor_model_parallel_size"
MEGATRON = "ppo_megatron_trainer"
OPEN = (
    *(f"{section}.megatron." for section in (ACTOR, REFERENCE, "critic")),
    "critic.model.override_config.",
    "actor_rollout_ref.rollout.engine_kwargs.",
    f"{ACTOR}.optim.override_optimizer_config.",
    "reward_model.reward_kwargs.",
    "reward_model.overlong_buffer.",
    "reward.reward_kwargs.",
    "ray_init.",
    "ray_kwargs.",
    "algorithm.gdpo_reward_keys",
    f"{ACTOR}.use_rollout_log_probs",
    "rollout.",
    "async_training.",
)
"""Sections that take keys of other programs, or that recipes bring. None of them has a KL."""
_OURS = re.compile(r"^(\+\+|\+|~)?(actor_rollout_ref\.|algorithm\.|critic\.)[\w.]+=")


# Entry points and configurations of verl and its recipes.

_ENTRY_MODULE = re.compile(
    r"^(verl\.(trainer|experimental)\.[\w.]*main\w*|verl\.experimental\.[\w.]*_main"
    r"|recipe\.[\w.]*(?:main_\w+|\w_main))$"
)
_ENTRY_FILE = re.compile(r"(^|/)(verl/trainer|recipe/[\w/]+)/main_\w+\.py$")

NOT_RL = re.compile(
    r"(main_generation|main_eval|sft_trainer|model_merger|main_generation_server)(\.py)?$"
)
"""Entry points that train without a reward, or do not train."""

DISTILLATION = "distillation.enabled"
DEAD_ADVICE = "this entry point puts no KL into the reward: use verl.trainer.main_ppo"
DEAD_REWARD = re.compile(r"main_prime|main_flowrl|main_gkd")
"""recipe/prime/prime_ray_trainer.py, recipe/flowrl/flowrl_ray_trainer.py and recipe/gkd/
ray_trainer.py do not call apply_kl_penalty."""

STOCK = re.compile(
    r"_self_|(?:(?:dapo|entropy|flowrl|fully_async_ppo|legacy_ppo|one_step_off_ppo|ppo|prime"
    r"|rob_ppo|rob_sac|spin|sppo|transfer_queue_ppo)(?:_megatron|_torchtitan|_veomni)?_trainer"
    r"|(?:geo3k|gsm8k|deepeyes|retool|search)_multiturn(?:_megatron)?(?:_sf)?_grpo"
    r"(?:_server|_w_interaction|_np|_one_step_off)?|ppo_trainer_split)"
)
"""Configurations of verl's repository that leave the KL as ppo_trainer has it."""


@cache
def releases() -> KeyTables:
    """Return the keys of each release, those of its configuration for Megatron among them."""
    facts = zip(_composed().facts, _megatron(), strict=True)
    every = tuple({**dict.fromkeys(of_megatron, Option()), **plain} for plain, of_megatron in facts)
    return replace(_composed(), facts=every)


@cache
def _megatron() -> tuple[frozenset[str], ...]:
    """Return the keys of ppo_megatron_trainer in each release, as Hydra composes it.

    keys.json has them where they differ from ppo_trainer's; no span: it has no such key. Releases
    after its last one are taken to keep Megatron's own.
    """
    plain = json.loads(KEYS.read_text(encoding="utf-8"))
    differing, last = plain["megatron"], len(plain["versions"]) - 1
    keys = []
    for at, facts in enumerate(_composed().facts):
        own = {k for k, spans in differing.items() for a, b in spans if a <= min(at, last) <= b}
        keys.append(frozenset(own | (facts.keys() - differing.keys())))
    return tuple(keys)


@cache
def table(version: str, *, megatron: bool = False) -> ReleaseTable | None:
    """Return the keys of a release's own configuration, or None where orch does not have them."""
    versions = _composed().versions
    if megatron and version in versions[: _index("0.9.0") + 1]:
        own = ReleaseTable(version, _megatron()[versions.index(version)])
    elif megatron or version not in versions:
        return None
    else:
        own = TABLES.get(version) or _composed().table(version)
    loggers = TABLES[min(TABLES, key=version_tuple)].values[LOGGER] | {"tracking"}
    values = {LOGGER: loggers, **own.values} if _index(version) < _index("0.8.0") else own.values
    return replace(own, added=(*own.added, *ADDED, *OPEN), values=values)


def audit(launch: Launch) -> LaunchReading | None:
    """Return the audit's reading of a launch, or None if it does not start verl."""
    if easyr1.is_easyr1(launch):
        return easyr1.reading(launch)
    entry, rest = program_with_keys(
        launch.words, lambda text: is_entry_point(text) or _starts_verl(text, launch), _OURS
    )
    entry = found_beside(entry or "", launch.beside) or entry
    if NOT_RL.search(entry or "") or not (entry or (_configures(launch) and not launch.words)):
        return None
    keys = Keys(DEFAULTS)
    keys.add_documents(launch.documents, untyped=True)
    for key, given in hydra_overrides(rest):
        keys.add(key, given)
    release = _release(launch, keys)
    config = config_name(rest)
    folder, name, hidden = _root(entry or MAIN, config or "", launch)
    composed = ComposedKeys([folder, STOCK_FOLDER], name, launch.beside, keys.given)
    keys.opaque = "" if launch.documents else hidden or ("" if keys.given else has_hole(rest))
    oldest = TABLES[min(TABLES, key=version_tuple)].defaults
    for key in dict.fromkeys((*DEFAULTS, *OF_CHECKOUT)) if launch.words else ():
        value, file = composed.values.get(key, (oldest.get(key), ""))
        text = "null" if value is None else str(value)
        # What the release has, and a reference to another key, add nothing.
        is_read = "$" not in text or key.partition("_micro_")[1]
        if is_read and not (keys.has(key) or is_among(text, [oldest.get(key)])):
            keys.add(key, Given(text, file=file))
    if entry is not None and entry.endswith(".sh"):
        keys.opaque = f"it may come from {shown(entry)}, which this file calls"
    if launch.open_end:
        keys.opaque = launch.open_end
    is_here = launch.documents or f"{folder}/{config}.yaml" in launch.beside
    if config and not STOCK.fullmatch(config) and not is_here:
        name = shown(config) or "that a variable names"
        keys.opaque = f"it comes from the configuration '{name}', which is not here"
    else:
        foreign = [m for m in _not_here(launch) if not STOCK.fullmatch(m.rpartition("/")[2])]
        if foreign:
            keys.opaque = f"it may come from '{foreign[0]}', which is not here"
    reading = _Reader(launch, keys, entry, release).reading()
    return replace(reading, held=_held(keys, launch, reading, config, composed))


def _root(entry: str, config: str, launch: Launch) -> tuple[str, str, str]:
    """Return folder and name of the configuration that a program composes, and why that is not
    known. `config`: the name that the command gives."""
    path = _as_path(entry)
    code = launch.beside.get(path) or ""
    file = hydra_file(code, path)
    folder, _, name = file.removesuffix(".yaml").rpartition("/")
    if "@hydra.main" in code and not file:
        return "", "", f"it comes from the configuration that {path} computes"
    for each in (folder, *([STOCK_FOLDER] if is_entry_point(entry) else ())):
        if f"{each}/{config or name}.yaml" in launch.beside:
            return each, config or name, ""
    is_known = not file or config or is_entry_point(entry)
    missing = "" if is_known else f"it comes from the configuration '{file}', which is not here"
    bases = set(launch.missing) - set(_not_here(launch))
    return STOCK_FOLDER, min(bases, default="ppo_trainer"), missing


def _not_here(launch: Launch) -> list[str]:
    """Return the bases of a project's own configuration that are not in verl's folder either."""
    return [e for e in launch.missing if f"{STOCK_FOLDER}/{e}.yaml" not in launch.beside]


def _as_path(entry: str) -> str:
    """Return the file of a program that a command starts, by its path or as a module."""
    return entry if entry.endswith(".py") else f"{entry.replace('.', '/')}.py"


def _starts_verl(path: str, launch: Launch) -> bool:
    """Return True for a project's own program that starts verl's trainer with Hydra."""
    text = launch.beside.get(found_beside(_as_path(path), launch.beside)) or ""
    return "@hydra.main" in text and _IMPORTS.search(text) is not None


def _held(
    keys: Keys, launch: Launch, reading: LaunchReading, config: str | None, parser: ComposedKeys
) -> HeldKeys:
    """Return the keys with their release's table, or with the table of all releases.

    The latter is for launches to which the release's table does not apply.
    """
    # Recipes have configurations of their own, with further keys.
    is_read = bool(launch.documents) and all(map(STOCK.fullmatch, launch.missing))
    is_main, is_verls = reading.entry_point == MAIN, config in (None, "ppo_trainer", MEGATRON)
    stock = is_main and (is_verls or is_read)
    own = table(reading.version, megatron=config == MEGATRON) if stock else None
    written = {k: given.text for each in launch.documents for k, given in each.values.items()}
    in_files = frozenset(written)
    is_stock = parser.folders[0] == STOCK_FOLDER
    name = "_generated_ppo_trainer" if is_stock else ""
    generated = ComposedKeys([STOCK_FOLDER], name, launch.beside, keys.given)
    is_composed = not is_stock or is_entry_point(reading.entry_point or MAIN)
    # A generated file counts where the composed ones are not all at hand: it may be older.
    decides = parser if parser.values or not generated.values else generated
    checkout = parser.values if parser.is_whole() else parser.values | generated.values
    is_stocks = is_main and is_verls and config != MEGATRON
    composes = is_stocks or (decides is parser and _composes(reading, config or "", launch))
    return HeldKeys(
        keys.given,
        "hydra",
        own or _all_keys(),
        f"verl {reading.version}" if own else "verl",
        exact=own is not None,
        others=(*TABLES.values(), _all_keys()),
        defaults={k: v for k, v in DEFAULTS.items() if own is not None and k in own.keys},
        in_files=in_files,
        # What verl's own program reads of its own file is checked, and not what that builds on.
        own=frozenset(k for k in in_files if keys.given[k][-1].file)
        - (launch.documents[-1].values.keys() if is_main and is_read else set())
        if launch.words
        else frozenset(),
        checkout=frozenset(checkout),
        with_values=frozenset(decides.with_values() if is_composed else ()).union(
            k for k, text in written.items() if text != "null"
        ),
        is_whole=composes and decides.is_whole(),
        opaque=keys.opaque,
        lost=tuple(parser.lost) if is_stock and is_main and _is_alone(launch, parser) else (),
    )


def _composes(reading: LaunchReading, config: str, launch: Launch) -> bool:
    """Return True if an entry point in the checkout composes a configuration of the folder that
    its `@hydra.main` names."""
    path = _as_path(reading.entry_point or MAIN)
    file = hydra_file(launch.beside.get(path) or "", path)
    folder = posixpath.dirname(file)
    named = (word.text for word in launch.words if word.text.startswith(("--config-path", "-cp")))
    paths = {posixpath.join(path, "..", each.partition("=")[2]) for each in named}
    root = f"{folder}/{config}.yaml" if config else file
    is_there = {folder}.issuperset(map(posixpath.normpath, paths))
    return is_there and is_entry_point(path) and root in launch.beside


def _is_alone(launch: Launch, parser: ComposedKeys) -> bool:
    """Return True if a checkout's package is what runs, and its folder all that Hydra searches."""
    adds = any(word.text.startswith(("--config-dir", "-cd")) for word in launch.words)
    is_run = "verl/__init__.py" in launch.beside
    return is_run and not adds and "hydra.searchpath" not in parser.values


ACTORS = ("verl/workers/actor/dp_actor.py", "verl/workers/utils/losses.py")
"""Files whose code puts the KL into the loss; the second exists from 0.7.1 on."""


def _never_in_loss(launch: Launch) -> str:
    """Return the checkout's file that has the loss, if it reads no kl_loss_coef, or an empty text.

    A comment counts as nothing. Empty also where another file has the loss.
    """
    trees = [parsed(launch.beside.get(path) or "") for path in ACTORS]
    read = {name for tree in trees for name in names_of(tree)}
    defined = {getattr(each, "name", "") for tree in trees for each in ast.walk(tree)}
    return ACTORS[0] if "update_policy" in defined and "kl_loss_coef" not in read else ""


def _subtracted(launch: Launch) -> str:
    """Return `path:line` of the checkout's statement that takes the KL off a loss, or an empty
    text (verl's own main had it from 23 January to 1 February 2025: #179)."""
    for path in ACTORS:
        for node in ast.walk(parsed(launch.beside.get(path) or "")):
            if isinstance(node, ast.Assign | ast.AugAssign):
                taken = [e for e in operands(node, ast.Sub) if "kl_loss_coef" in names_of(e)]
                is_loss = names_of(node) & {"loss", "policy_loss", "pg_loss", "actor_loss"}
                if taken and is_loss and ast.USub not in map(type, ast.walk(node)):
                    return f"{path}:{node.lineno}"
    return ""


def _always_in_reward(launch: Launch) -> bool:
    """Return True if the checkout's trainer puts the KL into the reward whatever a switch says."""
    names = names_of(parsed(launch.beside.get(TRAINERS[0]) or ""))
    return "apply_kl_penalty" in names and names.isdisjoint(("use_kl_loss", "use_kl_in_reward"))


def _without_reference(launch: Launch) -> str:
    """Return `path:line` where the checkout's main takes the reference policy out, or an empty
    text. No release deletes it: they add it where a switch asks for it."""
    for node in ast.walk(parsed(launch.beside.get(MAIN_FILE) or "")):
        if isinstance(node, ast.Delete) and "RefPolicy" in names_of(node):
            return f"{MAIN_FILE}:{node.lineno}"
    return ""


@cache
def _all_keys() -> ReleaseTable:
    """Return the table of every key that some release has."""
    merged = merged_table(TABLES.values(), releases().merged().keys)
    return replace(merged, added=(*merged.added, *OPEN))


def is_entry_point(text: str) -> bool:
    """Return True if a word is an entry point of verl or of its recipes."""
    return len(text) < LONGEST_ENTRY and bool(_ENTRY_MODULE.match(text) or _ENTRY_FILE.search(text))


def config_name(words: Sequence[CommandWord]) -> str | None:
    """Return the configuration that a command names, without folder and ending, or None."""
    for word, following in zip_longest(words, words[1:], fillvalue=CommandWord("")):
        name, _, value = word.text.partition("=")
        if name in ("--config-name", "-cn", "--config_name"):
            value = (value or following.text).strip("'\"")
            return value.removesuffix(".yaml").rpartition("/")[2]
    return None


def _configures(launch: Launch) -> bool:
    """Return True if one of the configuration files is for verl's trainer."""
    keys = launch.in_files
    of_kl = any(k.startswith(("algorithm.", f"{ACTOR}.")) for k in keys)
    return of_kl and any(k.startswith("actor_rollout_ref.") for k in keys)


_Release = tuple[int, str, str, list[int]]
"""The index of the assumed release, its name, the reason, and the indices of all that fit."""


def _release(launch: Launch, keys: Keys) -> _Release:
    tables = releases()
    version, why = launch.release("verl")
    if version:
        at, given = nearest(tables.versions, version), keys.last(USE_REWARD)
        # A release before 0.4.0 refuses this key without a mark: such a pin is of something else,
        # unless the user gave it, or a fork's trainer does not read the key.
        is_users = given is None or given.mark or ": --library" in why
        if at >= FIRST_WITH_SWITCH or is_users or not reads_switch(launch.beside.get):
            return at, version, why, [at]
    fitting = tables.accepting(keys.given, launch.bounds("verl")[0])
    before = [i for i in fitting if i < FIRST_WITH_SWITCH]
    is_whole = not launch.words and not any(d.builds_on for d in launch.documents)
    why = ""
    if keys.has(USE_REWARD):
        fitting = [i for i in fitting if i not in before] or fitting
    elif before and is_whole and keys.has(REWARD_BETA):
        fitting, why = before, f"a whole configuration without {USE_REWARD}, which 0.4.0 brought"
    elif before and before != fitting and (copied := example(keys.given)):
        path, day, side = copied
        fitting = [i for i in fitting if (i in before) == (side == "before")]
        why = f"its keys are those of verl's own {path} of {day}"
        keys.assumes.append(f"it runs on the release it was written for: {why}")
    at = fitting[-1]
    return at, tables.versions[at], why or tables.why(keys.given, at), fitting


class _Reader(ReleaseReader):
    """The reading of one launch under one release's rules."""

    library = title = "verl"

    def __init__(self, launch: Launch, keys: Keys, entry: str | None, release: _Release) -> None:
        self.at, version, because, self.spread = release
        super().__init__(launch, keys, entry, version, because)
        named = filter(_OWN_GROUP.search, keys.given.keys() - _all_keys().keys)
        mine = ((key, keys.text(key)) for key in sorted(named))
        self.own_group = next((key for key, text in mine if text != "1"), "")
        """The key of a fork that may be the size of a group."""
        engine = keys.text(ENGINE)
        if engine and not _ENGINES.fullmatch(engine) and self._has_group_of_one():
            self.own_group = ENGINE
        key = next((each for each in keys.given if each.startswith(_ASYNC_KEYS)), "")
        config = config_name(launch.words) or ""
        by_name = self.entry if _STALE.search(self.entry) else ""
        is_verls = re.search(HOOKS.stock, _as_path(self.entry))
        self.of_a_fork, by_name = ("", by_name) if is_verls else (by_name, "")
        """A program that may sample ahead, by its name, and that no release has."""
        self.ahead = by_name or key or (config if _ASYNC_CONFIG.search(config) else "")
        """The program, key or configuration of a trainer that samples ahead; empty: none."""
        self.is_fully = "fully_async" in self.ahead or bool(key and "one_step" not in self.ahead)
        self.bypass: bool | None = None
        """True if the old log-probabilities are the engine's, of the policy that sampled."""
        self.sides: list[Possibility] = []
        """The two sides of 0.4.0, if the reading depends on the side."""
        self.decided: Decided | None = None

    def reading(self) -> LaunchReading:
        keys, launch = self.keys, self.launch
        self.notes += keys.doubled(KL_KEYS)
        advantage, group = keys.text(ADVANTAGE), keys.integer(GROUP)
        if self.own_group:
            group = None
        ends = self._only_validates()
        in_loss = InLoss(False) if ends else self._loss()
        in_reward = InReward(False) if ends else self._reward(in_loss)
        self.bypass = self._bypass()
        regime, around = self._regime(), self._surroundings(group, in_reward)
        if ends:
            regime, self.decided = TrainingRegime(None, ends), ("does_not_train", ends)
        self._refused_sizes()
        self._refused_micro_batches(has_kl=bool(in_reward.active or in_loss.active))
        self._refused_layout()
        self._refused_bound()
        self._refused_defaults()
        if self._refused_advantage():
            source = "verl/trainer/ppo/ray_trainer.py: RayPPOTrainer.__init__"
            self.stops(f"it has no {ADVANTAGE} {advantage}", source, ADVANTAGE)
        if keys.has(BYPASS) and self.bypass:
            self._has_no_log_probs(BYPASS)
        of_verl = not self.entry or is_entry_point(self.entry)
        tracking, logger = launch.beside.get(TRACKING) or "", keys.last(LOGGER)
        for name in re.findall(r"\w+", logger.text) if tracking and logger else ():
            if name not in tracking and self.entry == MAIN:
                self.stops(f"the code beside it has no logger {name}", TRACKING, LOGGER)
        is_old = not self.since(V1) or self.entry != MAIN or keys.has(f"reward.{TOP_REWARD}")
        if keys.text(TOP_REWARD, "null") != "null" and not is_old and "verl" in launch.versions:
            why = f"{MAIN} does not read {TOP_REWARD} since {V1}: write reward.{TOP_REWARD}"
            self.note(why, TOP_REWARD, apart=True)
        if not (ends or self.own_group) and (of_verl or keys.has(GROUP)):
            self.notes += self._has_group_of_one()
        return self.found(
            in_reward,
            in_loss,
            advantage_estimator=advantage,
            group_size=group,
            own_group=self.own_group,
            inactive=keys.inert(ends, *KL_KEYS) if ends else self._inactive(in_reward, in_loss),
            decided=self.decided,
            changes=() if self.decided else self._changes(in_reward, in_loss),
            change_note=DEAD_ADVICE if DEAD_REWARD.search(self.entry) else "",
            chosen=self._chosen(advantage),
            assumes=(*keys.assumes, *self._assumed()),
            possibilities=keys.possibilities(self.put) or tuple(self.sides),
            regime=regime,
            surroundings=None if ends or self._distils() else around,
        )

    def _only_validates(self) -> str:
        """Return why the trainer ends after the first validation; empty if it trains."""
        keys, code = self.keys, self.launch.beside.get(TRAINERS[0])
        asked = keys.switch(ONLY_VALIDATES, default=False)
        first = keys.switch(VALIDATES_FIRST, default=True)
        is_read = self.since("0.2.0") if code is None else "val_only" in code
        if not (asked and first and is_read) or self._samples_ahead():
            return ""
        if self.entry != MAIN:
            keys.assumes.append(f"its trainer reads {ONLY_VALIDATES} as RayPPOTrainer.fit does")
        for key in filter(keys.has, KL_KEYS):
            keys.text(key)  # its line is named
        return f"{ONLY_VALIDATES} is true: nothing trains, and fit ends after the first validation"

    def _has_group_of_one(self) -> list[AuditNote]:
        """Return the remark on groups of one rollout."""
        return group_of_one(self.keys, ADVANTAGE, GROUP, (*OWN_IN_MEAN, "rloo", "rloo_vectorized"))

    def _chosen(self, advantage: str | None) -> Iterator[tuple[Replaced, str]]:
        """Yield the advantage and the policy loss that the launch asks for and no release has."""
        if advantage is not None and advantage not in KNOWN and not self._refused_advantage():
            yield "advantage", advantage
        mode = self.keys.last(LOSS_MODE)
        if mode is not None and not mode.why and mode.text not in (*LOSSES, "bypass_mode"):
            yield "loss", mode.text

    def _distils(self) -> bool:
        """Return True if the loss is a distance to a teacher, which orch does not read."""
        on = self.keys.given.get(DISTILLATION) and self.keys.switch(DISTILLATION)
        return bool(on) or "main_gkd" in self.entry

    def _samples_ahead(self) -> str:
        """Return the key or entry point that makes rollouts lag behind the policy, or ""."""
        if self.ahead:
            return f"{self.ahead} samples with an older policy"
        mode = self.keys.text(MODE) if self.since(V1) else "sync"
        if mode is not None and "async" in mode:
            return f"{MODE} {mode} samples with an older policy"
        return ""

    def _regime(self) -> TrainingRegime:
        """Return the training regime: on-policy if each batch of rollouts serves one train step."""
        ahead = self._samples_ahead()
        if ahead and not self.of_a_fork:
            return TrainingRegime(False, ahead, ahead=True)
        if self.since(V1) and self.keys.text(MODE) is None:
            return TrainingRegime.unread([MODE])
        batch, minibatch = self.keys.number(BATCH), self.keys.number(MINIBATCH)
        if batch and minibatch and batch > minibatch and batch % minibatch:
            return self._uneven(batch, minibatch)
        checked = self.since("0.3.0") and not self._is_dynamic()
        if batch and minibatch and batch < minibatch and checked:
            return TrainingRegime(
                None,
                f"{MINIBATCH} {minibatch:g} is more than {BATCH} {batch:g}, which verl refuses: a "
                "fork that takes it counts otherwise",
            )
        regime = regime_of_sizes(self.keys, BATCH, MINIBATCH, PPO_EPOCHS)
        if self.of_a_fork and regime.on_policy:
            why = f"{self.of_a_fork}, which no release has, may sample with an older policy"
            return TrainingRegime(None, why, regime.sizes)
        samples = (batch or 0) * (self.keys.number(self.own_group) or 0)
        is_more = batch != minibatch or self.own_group.endswith(_NOT_SCALED)
        if is_more and minibatch and batch and batch <= minibatch < samples:
            why = f"at least 2 train steps where {MINIBATCH} counts the samples of {self.own_group}"
            return TrainingRegime(False, why, regime.sizes)
        if self.own_group and regime.steps:
            whose = "a fork's own" if self.own_group == ENGINE else "a fork's key"
            why = f"{self.own_group} is {whose} and may give a batch more train steps"
            return TrainingRegime(None if regime.steps == 1 else False, why, regime.sizes)
        return regime

    def _uneven(self, batch: float, minibatch: float) -> TrainingRegime:
        """Return the regime of a batch that is no multiple of its minibatch."""
        sizes = f"{BATCH} {batch:g} is no multiple of {MINIBATCH} {minibatch:g}"
        if self.since(V1):
            steps = -(-batch // minibatch)
            return TrainingRegime.of_steps(steps, f"{sizes}, and verl fills it up")
        if self.since("0.8.0"):
            source = "verl/protocol.py: make_iterator"
            self.stops(sizes, source, BATCH, MINIBATCH)
        return TrainingRegime(
            None, f"{sizes}: releases before 0.8.0 differ in what they make of it"
        )

    def _refused_sizes(self) -> None:
        """Note if verl refuses the sizes of batches, as 0.9.0 and 0.9.1 do.

        Only where the release is named: a guessed one refuses nothing. FSDP with all GPUs for
        data, and no asynchronous mode, whose GPUs are parted otherwise. A launch that does not say
        its GPUs has at least one.
        """
        keys = self.keys
        plain = {STRATEGY: ("fsdp", "fsdp2"), SEQUENCE_PARALLEL: ("1",), MODE: ("sync",)}
        is_plain = all(keys.text(key, taken[0]) in taken for key, taken in plain.items())
        if not self.since(V1) or "verl" not in self.launch.versions or not is_plain:
            return
        batch, minibatch, group = (keys.integer(key) for key in (BATCH, MINIBATCH, GROUP))
        nodes, micro = keys.integer(NODES, 1), keys.integer(MICRO)
        gpus = (keys.integer(GPUS, 1) or 0) * (nodes or 0)
        if not (batch and minibatch and group and gpus):
            return
        rollouts, checked = minibatch * group, not self._is_dynamic()
        if checked and batch < minibatch:
            why = f"{BATCH} {batch} is less than {MINIBATCH} {minibatch}"
            self.stops(why, "verl/workers/config/actor.py: validate", BATCH, MINIBATCH)
        elif checked and batch * group % gpus:
            why = f"{BATCH} {batch} × {GROUP} {group} does not divide over {gpus} GPUs"
            self.stops(why, "verl/utils/config.py: validate_config", BATCH, GROUP)
        elif rollouts % gpus:
            why = f"{MINIBATCH} {minibatch} × {GROUP} {group} does not divide over {gpus} GPUs"
            source = "verl/workers/engine_workers.py: train_mini_batch"
            self.stops(why, source, MINIBATCH, GROUP)
        elif checked and micro and rollouts // gpus % micro:
            of = "of a GPU" if gpus > 1 else "of a minibatch"
            why = f"{MICRO} {micro} does not divide the {rollouts // gpus} rollouts {of}"
            source = "verl/workers/engine/utils.py: prepare_micro_batches"
            self.stops(why, source, MICRO, MINIBATCH, GROUP)

    def _refused_micro_batches(self, *, has_kl: bool) -> None:
        """Note a micro-batch size that the checkout, or the release that is named, asks for.

        Only of a command that names its data, as a fragment of one does not.
        """
        keys, check = self.keys, _CHECKS[self.since("0.6.0")]
        code = self.launch.beside.get(check)
        named = "verl" in self.launch.versions and self.since("0.2.0")
        asked = named if code is None else "Please set at least one of" in code
        is_plain = self.entry == MAIN and keys.has(TRAIN_FILES) and not keys.opaque
        for key in MICROS[: 2 + has_kl] if asked and is_plain and not self._is_dynamic() else ():
            both = (key, f"{key}_per_gpu")
            if all(is_among(keys.text(each, "null") or "?", [None]) for each in both):
                why = f"{check} asks for {both[1]}, or for {DYNAMIC}=True"
                self.note(why, *both, stops=True, apart=code is not None)

    def _refused_advantage(self) -> bool:
        """Return True if the advantage is none that the trainer has. Before 0.5.0 nothing registers
        one; a checkout's own trainer would name it."""
        name = self.keys.text(ADVANTAGE)
        texts = (self.launch.beside.get(path) or "" for path in TRAINERS)
        is_new = name not in (None, *KNOWN) and not self.since("0.5.0")
        of_main = self.entry in ("", MAIN)
        return is_new and of_main and not any(str(name) in text for text in texts)

    def _refused_defaults(self) -> None:
        """Note a file's first default as a shell writes it: main_ppo resolves every value."""
        for key, given in self.keys.given.items():
            shell = _OF_SHELL.search(given[-1].text) if given[-1].file else None
            if shell and self.launch.words and (key == _RUN_FOLDER or self.entry == MAIN):
                why = (
                    f"the launch would not start: {given[-1].file} gives {key} {shell[0]}, and "
                    f"OmegaConf has no resolver {shell[1]}: write ${{oc.env:{shell[1]},{shell[2]}}}"
                )
                self.note(why, key, stops=True, apart=True)
                break

    def _refused_bound(self) -> None:
        """Note if the policy loss of a release that is named refuses its own bound."""
        mode = self.keys.text(LOSS_MODE) or ""
        if mode in LOSS_FLOORS and self.since("0.8.0") and "verl" in self.launch.versions:
            key, least, default = LOSS_FLOORS[mode]
            value = self.keys.number(key, default)
            if value is not None and value <= least:
                why = f"the policy loss {mode} needs {key} above {least:g}"
                self.stops(why, "verl/trainer/ppo/core_algos.py", LOSS_MODE, key)

    def _refused_layout(self) -> None:
        """Note if the engine's tensor parallelism does not divide the GPUs."""
        keys = self.keys
        tensor = keys.integer(TENSOR)
        is_sync = keys.text(MODE, "sync") == "sync"
        gpus = (keys.integer(GPUS) or 0) * (keys.integer(NODES, 1) or 0) if tensor else 0
        if is_sync and tensor and gpus % tensor:
            why = f"{TENSOR} {tensor} does not divide {gpus} GPUs"
            self.stops(why, "verl/workers: _build_rollout", TENSOR, GPUS)

    def _is_dynamic(self) -> bool:
        """Return True if the sizes of batches are not checked (workers/config/actor.py)."""
        return self.keys.switch(DYNAMIC, default=False) is not False

    def _assumed(self) -> Iterator[str]:
        if self.of_a_fork:
            yield f"{self.of_a_fork}, which no release has, trains the policy on its own samples"
        missing = _not_here(self.launch)
        if missing and not self.keys.opaque:
            yield f"{', '.join(missing)} (not here) leaves the KL as verl has it"

    def _loss(self) -> InLoss:
        keys = self.keys
        on = keys.switch(USE_LOSS)
        of = ("actor/dp_actor.py: update_policy", "utils/losses.py: ppo_loss")
        self.sources["loss"] = f"verl/workers/{of[self.since('0.7.1')]}"
        if on is None and keys.has(LOSS_BETA) and keys.number(LOSS_BETA) == 0:
            return InLoss(False, None, 0.0)
        if on is None:
            self.switch(USE_LOSS)
            return InLoss(None)
        if not on:
            return InLoss(False)
        if path := _never_in_loss(self.launch):
            why = f"{USE_LOSS} puts no KL into the loss: {path} beside it reads no kl_loss_coef"
            self.note(why, USE_LOSS)
            return InLoss(False)
        estimator, straight = self._estimator(LOSS_TYPE)
        beta = self.number(LOSS_BETA)
        if beta and (place := _subtracted(self.launch)):
            beta = abs(beta)
            does = f"{place} beside it takes the KL off the loss"
            why = f"{does}: it pushes the policy away from its reference. Write `+` there"
            self.note(why, USE_LOSS, LOSS_BETA)
            self.decided = "other_objective", f"{estimator} in the loss, β = {beta:g}: {why}"
        return InLoss(None if beta is None else beta != 0, estimator, beta, straight)

    def _estimator(self, key: str) -> tuple[str | None, bool]:
        name = self.keys.text(key)
        if name is None:
            self.unknown.append(self.keys.leave_open(key, _NAMES))
            return None, False
        plain = name.removesuffix("+")
        if plain not in ESTIMATORS:
            self.unknown.append(f"{key} is '{name}', which verl does not have")
            self.note(f"{key}={name} stops verl at the first update: it is not implemented", key)
            return None, False
        straight = name.endswith("+")
        if straight and not self.since("0.8.0") and key == LOSS_TYPE:
            stops = f"stops verl {self.version} at the first update; it works from 0.8.0"
            self.note(f"{key}={name} {stops}", key)
        return ESTIMATORS[plain], straight and ESTIMATORS[plain] != "k2"

    def _reward(self, in_loss: InLoss) -> InReward:
        keys = self.keys
        self.sources["reward"] = "verl/trainer/ppo/ray_trainer.py: apply_kl_penalty"
        if self.since("0.4.0"):
            on = keys.switch(USE_REWARD)
            if on is None and in_loss.active and not keys.has(USE_REWARD):
                on = False
                keys.assumes.append(f"{USE_REWARD} is not true: {keys.opaque}")
            if on is None and keys.has(REWARD_BETA) and keys.number(REWARD_BETA) == 0:
                return InReward(False, None, 0.0)
            if on is None:
                self.switch(USE_REWARD)
                return InReward(None)
        else:
            used = False if _always_in_reward(self.launch) else keys.switch(USE_LOSS)
            if used is None:
                return InReward(None)
            on = not used
        is_dropped = DEAD_REWARD.search(self.entry) or keys.text(ADVANTAGE) == PARTS
        if on and is_dropped:
            return InReward(False)
        if on and (place := _without_reference(self.launch)):
            self.unknown.append(f"{place} beside it takes the reference policy out in some case")
            return InReward(None)
        if self._ambiguous(on, in_loss):
            return InReward(None)
        if not on:
            return InReward(False)
        estimator, _ = self._estimator(PENALTY)
        if keys.text(ADVANTAGE) in TO_GO.values():
            estimator = "k1_to_go"
        beta = self.number(REWARD_BETA)
        return InReward(None if beta is None else beta != 0, estimator, beta)

    def _ambiguous(self, on: bool | None, in_loss: InLoss) -> bool:
        """Return True, and note why, if another fitting release would give another reading."""
        eras = {i >= FIRST_WITH_SWITCH for i in self.spread}
        if len(eras) == 1 or self.keys.has(USE_REWARD) or in_loss.active or on is None:
            return False
        if self.keys.switch(USE_LOSS) or self.keys.number(REWARD_BETA) == 0:
            return False
        sides = (("is before 0.4.0", True), ("is 0.4.0 or later", False))
        for words, before in sides:
            newest = [i for i in self.spread if (i < FIRST_WITH_SWITCH) == before][-1]
            side = Possibility(f"verl {words}", release=releases().versions[newest])
            self.sides.append(side)
        self.unknown.append(
            "its keys fit releases before and after 0.4.0: before, k1 is in the reward unless "
            f"{USE_LOSS} is true; since, only where {USE_REWARD} is true. Say which: "
            "--library verl@VERSION"
        )
        return True

    def _inactive(self, in_reward: InReward, in_loss: InLoss) -> Iterator[Inactive]:
        keys = self.keys
        for key in (REJECTION, IS_WEIGHTS, LOSS_MODE):
            if why := self._bypassed(key):
                yield from keys.inert(why, key)
        if in_reward.active is False:
            asked = keys.switch(USE_REWARD)
            why = f"{USE_REWARD} is not true"
            if in_reward.beta == 0:
                why = "the KL in the reward is multiplied by 0"
            elif DEAD_REWARD.search(self.entry):
                why = "this entry point's trainer never puts a KL into the reward"
            elif keys.text(ADVANTAGE) == PARTS and asked:
                why = PARTS_WHY
            elif not self.since("0.4.0"):
                why = f"{USE_LOSS} is true, which takes the KL out of the reward in this release"
            idle = (PENALTY,) if in_reward.beta == 0 else (PENALTY, REWARD_BETA)
            yield from keys.inert(why, *([USE_REWARD] if asked else ()), *idle)
        if in_loss.active is False and in_loss.beta == 0:
            # Before 0.4.0 the switch takes the KL out of the reward, too.
            idle = (USE_LOSS, LOSS_TYPE) if self.since("0.4.0") else (LOSS_TYPE,)
            yield from keys.inert("the KL in the loss is multiplied by 0", *idle)
        elif in_loss.active is False and not _without_reference(self.launch):
            why = "puts no KL there" if keys.switch(USE_LOSS) else "is not true"
            yield from keys.inert(f"{USE_LOSS} {why}", LOSS_BETA, LOSS_TYPE)

    def _surroundings(self, group: int | None, in_reward: InReward) -> Surroundings:
        """Return the surroundings of the KL term in the loss of this release."""
        keys, read, unread = self.keys, self._read_since, self.unread
        advantage = keys.text(ADVANTAGE) or ""
        divided = DIVIDED_BY.get(advantage)
        if divided is None:
            self.unknown_advantage(advantage)
        because = f"{ADVANTAGE} {advantage}"
        if divided == "group_std":
            by_deviation = read(BY_DEVIATION, "0.4.0", "True")
            if self.since("0.4.0") or keys.has(BY_DEVIATION):
                because += f", {BY_DEVIATION} {by_deviation}"
            if group == 1 or by_deviation.lower() in ("false", "0", "no", "off"):
                divided = "nothing"
            elif group is None:
                own = f"{self.own_group} decides it"
                why = own if self.own_group else keys.why_unknown(GROUP)
                unread.append(f"{GROUP} is above 1: {why}")
        mode = read(LOSS_MODE, "0.4.0", "vanilla")
        aggregation = read(AGGREGATION, "0.4.0", "token-mean")
        entropy = as_number(read(ENTROPY, "0.4.0", OLD_ENTROPY))
        if self._bypassed(LOSS_MODE):
            mode = "bypass_mode"
        correction, weight = self._correction()
        name, ratio = self._policy_loss(mode, weighed=bool(correction))
        to_engine = bool(self.bypass) or mode == "bypass_mode"
        unread += self._raw(to_engine=bool(correction) or to_engine)
        old_of, updates = self._recomputed(to_engine=to_engine)
        if old_of and ratio == "token" and not correction:
            ratio = "none"
        by_length = mode in _BY_LENGTH and not (mode == "gspo" and self.since("0.9.1"))
        of_mode = f"{LOSS_MODE} {mode}, " if by_length else ""
        is_mean = aggregation == "seq-mean-token-mean"
        rejects = self._rejects()
        return Surroundings(
            advantage_divided_by=divided,
            divided_because=because,
            own_rollout_in_mean=advantage in OWN_IN_MEAN and group != 1,
            policy_loss=name,
            ratio=ratio,
            clip=clip_range(keys.number(CLIP_LOW), keys.number(CLIP_HIGH)),
            correction=correction,
            engine_weight=weight,
            length_weighted=is_mean or by_length,
            kl_loss_factor=None if by_length and not is_mean else 1.0,
            aggregation_because=f"{of_mode}{AGGREGATION} {aggregation}",
            entropy=entropy or 0.0,
            discount=self._discount(advantage),
            controller=f"{CONTROLLER} adaptive"
            if in_reward.active and keys.text(CONTROLLER) == "adaptive"
            else "",
            own_reference=keys.own_reference(REFERENCE_MODEL, POLICY_MODEL),
            clamp=Clamp(20.0 if self.since("0.4.1") else None, 10.0),
            clamp_of=("k3",),
            also_drops=self._dual() if (old_of or ratio == "token") and name == "ppo" else "",
            old_is_sampler=to_engine,
            old_of=old_of,
            one_update=None if updates is None else updates == 1,
            bound_notes=tuple(self._bound_notes(mode, aggregation)),
            rejected=("responses" if "seq" in rejects else "tokens") if rejects else "",
            rejected_because=f"{REJECTION} {rejects}",
            notes=() if self.since("0.4.1") else (UNBOUNDED,),
            unread=(
                *unread,
                *truncated(keys, top_p=f"{ROLLOUT}.top_p", top_k=f"{ROLLOUT}.top_k"),
            ),
        )

    def since(self, first: str) -> bool:
        """Return True for a release that is not older than `first`."""
        return self.at >= _index(first)

    def _read_since(self, key: str, since: str, before: str) -> str:
        """Return a value; `before`, in the releases before `since`. Note what is unknown."""
        if not self.since(since) and not self.keys.has(key):
            return before
        return self.read(key, DEFAULTS[key])

    def _correction(self) -> tuple[str, EngineWeight | None]:
        """Return the correction of the engine's mismatch in words and as a laboratory's weight."""
        keys = self.keys
        cap = keys.number(_CAP)
        if cap and cap > 0 and keys.switch(LOG_PROBS) is not False:
            words = f"token-level truncated importance sampling (at most {cap:g})"
            return words, EngineWeight("tis_token", most=cap)
        if not self.since("0.6.1") and keys.has(_OLD_WEIGHTS):
            cap = keys.number(f"{_OLD_WEIGHTS}_threshold")
            level = keys.text(f"{_OLD_WEIGHTS}_level", "")
            kind = f"{level or 'token'}-level truncated importance sampling (at most {cap})"
            return (kind if keys.switch(_OLD_WEIGHTS) and cap else ""), None
        if not self.since("0.6.1"):
            return "", None
        weights = self._read_since(IS_WEIGHTS, "0.6.1", "null").lower()
        off = weights in OFF or self._bypassed(IS_WEIGHTS)
        if off or self._has_no_log_probs(IS_WEIGHTS):
            return "", None
        bound = self._read_since(IS_THRESHOLD, "0.6.1", "2.0")
        low, _, high = bound.rpartition("_")
        of_sequence = weights == "sequence"
        words, kind = f"truncated importance sampling (at most {bound})", "tis"
        if low:
            words, kind = f"IcePop's masks (within {low} to {high})", "mis"
        level = "sequence" if of_sequence else "token"
        least, most = as_number(low or "0"), as_number(high)
        weight = None
        if least is not None and most:
            weight = EngineWeight(_WEIGHTS[kind, level], least, most)
        return f"{level}-level {words}", weight

    def _bypassed(self, key: str) -> str:
        """Return why a key does nothing in a bypass; empty where it acts.

        (trainer/ppo/v1/trainer_base.py: _compute_advantage; trainer/ppo/core_algos.py:
        compute_policy_loss_bypass_mode; trainer/ppo/rollout_corr_helper.py: apply_bypass_mode)
        """
        text = self.keys.text
        # Old recipes take the engine's log-probabilities by a key of their own.
        is_on = self.keys.has(BYPASS) or self.entry.startswith("verl.experimental")
        if not (self.bypass and is_on and self.since("0.6.1")):
            return ""
        if self._is_v1():
            idle = () if text(LOSS_MODE) == "bypass_mode" else (IS_WEIGHTS, REJECTION)
        else:
            of_ratio = (IS_WEIGHTS, REJECTION) if text(BYPASS_LOSS, "") != "reinforce" else ()
            # The trainer before v1 has the loss bypass_mode whatever loss_mode says.
            idle = (LOSS_MODE if self.since("0.7.0") else "", *of_ratio)
        return "the trainer does not read it in a bypass" if key in idle else ""

    def _raw(self, *, to_engine: bool) -> Iterator[str]:
        """Note a ratio to raw probabilities of the engine, at a temperature.

        Yield what is assumed of them where the release leaves their kind to vLLM. `to_engine`: True
        if the launch has a ratio to the engine's probabilities.
        """
        keys, temperature = self.keys, f"{ROLLOUT}.temperature"
        at = keys.number(temperature)
        if keys.text(ENGINE, "vllm") != "vllm" or not to_engine:
            return
        mode = keys.text(ENGINE_MODE, "processed_logprobs")
        if not self.since("0.7.0") and at not in (None, 0, 1):
            yield (
                f"the engine's log-probabilities are at {temperature} {at:g} as the trainer's are: "
                f"verl {self.version} leaves that to vLLM, whose later releases give raw ones, of "
                "temperature 1"
            )
        elif mode is not None and mode.lower().startswith(("raw", "null", "none")):
            instead = f"{ENGINE_MODE}=processed_logprobs"
            because = f"{ENGINE_MODE} {mode}"
            self.notes += two_temperatures(keys, temperature, because, instead, ENGINE_MODE)

    def _has_no_log_probs(self, correction: str) -> bool:
        """Return True, once with a remark, if the correction of this key has no probabilities of
        the engine."""
        keys = self.keys
        given = keys.switch(LOG_PROBS, default=self.since(V1))
        if given is not False or self._samples_ahead():
            return False
        does = "verl stops at the first step" if self.bypass else "verl goes on without it"
        note = AuditNote(
            f"{correction} does nothing: {LOG_PROBS} is false, so a batch has no probabilities of "
            f"the engine, and {does} (trainer/ppo/rollout_corr_helper.py)",
            keys.lines(correction, LOG_PROBS),
        )
        if note not in self.notes:
            self.notes.append(note)
        return True

    def _policy_loss(self, mode: str, *, weighed: bool) -> tuple[str, Ratio | None]:
        """Return the policy loss and its ratio; None for one that orch does not know.

        `weighed`: it has weights against the engine. `mode`: bypass_mode has one of two losses.
        """
        name = str(LOSSES.get(mode, mode))
        if self._removes_clip():
            name = "unclipped"
        elif mode == "bypass_mode" and self.keys.text(BYPASS_LOSS) == "reinforce":
            name = "weighted_reinforce" if weighed else "reinforce"
        elif mode == "bypass_mode":
            name = "ppo"
        return name, self.ratio(name, mode)

    def _removes_clip(self) -> str:
        """Return the key that takes PPO's clip away; empty without one."""
        ends = (key for key in self.keys.given if key.endswith(REMOVES_CLIP))
        return next((key for key in ends if self.keys.switch(key)), "")

    def _is_v1(self) -> bool:
        """Return True if trainer v1 runs, which keeps loss_mode where bypass_mode is true."""
        if self.keys.has(USES_V1):
            return self.keys.switch(USES_V1) is not False
        return self.since(V1) and not _OWN_LOOP.search(self.entry)

    def _dual(self) -> str:
        """Return what the second clip drops, which verl has since 0.4.0."""
        given = self.keys.number(DUAL, DUAL_DEFAULT)
        if not self.since("0.4.0") or (given is not None and given >= LARGE):
            return ""
        most = "c" if given is None else f"{given:g}"
        return (
            f"tokens of negative advantage whose ratio is above {most} (the dual clip, always on; "
            f"{DUAL}=1e9 turns it off)"
        )

    def _bound_notes(self, mode: str, aggregation: str) -> Iterator[BoundNote]:
        """Yield where a policy loss or a mask of verl is not what its name says (core_algos.py)."""
        keys = self.keys
        lines = keys.lines(LOSS_MODE)
        newest = self.since("0.9.1")
        if mode == "gspo" and newest and aggregation != "seq-mean-token-mean":
            yield BoundNote(
                f"GSPO is the mean over responses, and {AGGREGATION} {aggregation} weighs a "
                "response by its length (forced until 0.9.0)",
                f"{AGGREGATION}=seq-mean-token-mean",
                lines,
            )
        if mode == "geo_mean" and newest:
            yield BoundNote(
                "geo_mean is not normalised over micro-batches in 0.9.1: its gradient grows with "
                "their number, and a KL in the loss does not",
                "one micro-batch a minibatch (ppo_micro_batch_size_per_gpu of its size)",
                lines,
            )
        if mode == "geo_mean" and not keys.has(CLIP_LOW):
            yield BoundNote(
                "geo_mean reads clip_ratio 0.2 as a bound on the log-ratio; the paper has 0.4",
                f"{CLIP_LOW}=0.4 {CLIP_HIGH}=0.4",
                lines,
            )
        if mode == "cispo" and (keys.number(CLIP_LOW) or 0) < 1:
            yield BoundNote(
                "CISPO of verl has a lower bound too, which the paper has not: a token that fell "
                "counts more than its ratio",
                f"{CLIP_LOW}=1",
                lines,
            )
        if mode == "dro" and (pull := keys.number(DRO_BETA, 0)):
            yield BoundNote(
                f"DRO has a penalty of its own, of weight {pull:g} ({DRO_BETA}): to the policy "
                "before the step, not to the reference; with one update a batch it is 0",
                f"{LOSS_MODE}=vanilla, where that is not meant",
                keys.lines(DRO_BETA),
            )
        if mode == "sapo" and aggregation != "seq-mean-token-mean":
            yield BoundNote(
                f"SAPO is averaged by response, whatever {AGGREGATION} says; a KL in the loss is "
                f"averaged by it ({aggregation})",
                f"{AGGREGATION}=seq-mean-token-mean",
                lines,
            )
        is_dppo = mode in ("dppo_tv", "dppo_kl")
        if is_dppo and not keys.has(DUAL):
            yield BoundNote(
                f"DPPO's weight is cut to {DUAL}, by default 3: verl's own comment asks for a "
                "large one, 20",
                f"{DUAL}=20",
                lines,
            )
        if is_dppo and not self.bypass:
            yield BoundNote(
                "DPPO's distance is to the trainer's old policy here; the paper's is to the policy "
                "that sampled",
                f"{BYPASS}=True",
                lines,
            )
        yield from self._weight_notes(mode)

    def _weight_notes(self, mode: str) -> Iterator[BoundNote]:
        """Yield where a clip, a mask or the weights against the engine are not what their names
        say."""
        keys = self.keys
        if removes := self._removes_clip():
            yield BoundNote(
                f"{removes} is on: nothing at all bounds a step or the drift, but for the learning "
                "rate",
                f"{removes}=False",
            )
        bound = f"{REJECTION}_threshold"
        text = keys.text(bound, "") or ""
        low, high = (as_number(end) for end in text.partition("_")[::2])
        of_k1 = "k1" in (keys.text(REJECTION, "") or "").lower()
        if of_k1 and low and high and abs(low * high - 1) > 1e-3:
            least, most = f"{1 / high:.3g}", f"{1 / low:.3g}"
            yield BoundNote(
                f"the bounds {text} of {REJECTION} are of the inverse ratio: they keep {least} to "
                f"{most} of trainer over engine",
                f"{bound}={least}_{most}, where those were meant",
                keys.lines(bound),
            )

        weights = (keys.text(IS_WEIGHTS, "") or "").lower()
        weighed = weights not in OFF
        if mode == "geo_mean" and weighed:
            yield BoundNote(
                "geo_mean takes the weights against the engine as their geometric mean over the "
                "response, and a masked token as 1e-10: one of 100 tokens scales the whole "
                "response by 0.79",
                f"{IS_WEIGHTS}=null",
                keys.lines(IS_WEIGHTS),
            )
        if keys.text(BYPASS_LOSS) == "reinforce" and mode != "bypass_mode" and self._is_v1():
            yield BoundNote(
                f"{BYPASS_LOSS} is not read by trainer v1, the default: the loss is that of "
                f"{LOSS_MODE} {mode}",
                f"{USES_V1}=False, whose trainer reads it",
                keys.lines(BYPASS_LOSS),
            )
        normalized = f"{IS_WEIGHTS}_batch_normalize"
        if weighed and keys.switch(normalized):
            yield BoundNote(
                "the weights against the engine are divided by their mean: none is bounded by "
                f"{IS_THRESHOLD} any more",
                f"{normalized}=False",
                keys.lines(normalized),
            )

    def _rejects(self) -> str:
        """Return the criteria by which verl rejects samples; empty if it rejects none."""
        kinds = self._read_since(REJECTION, "0.6.1", "null").lower()
        acts = kinds not in OFF and not self._bypassed(REJECTION)
        return kinds if acts and not self._has_no_log_probs(REJECTION) else ""

    def _bypass(self) -> bool | None:
        """Return True if the old log-probabilities are the engine's; None if that is unknown."""
        is_own = self.entry.startswith("verl.experimental")
        for key in (BYPASS, "" if is_own else _ROLLOUT_LOGPROBS):
            if self.keys.has(key):
                anew = key != BYPASS and self.keys.switch(_ANEW, default=False)
                return False if anew else self.keys.switch(key)
        if not self.ahead or self.keys.opaque:
            return False
        if is_own or "fully_async" in self.entry:
            bases = [each for document in self.launch.documents for each in document.builds_on]
            named = bases or [config_name(self.launch.words) or self.entry]
            return any(map(_STALE.search, named))
        does = "computes the old log-probabilities anew"
        if self.is_fully:
            does = "takes the engine's log-probabilities"
        self.unread.append(f"{self.entry} {does}, as verl's recipe does")
        return self.is_fully

    def _recomputed(self, *, to_engine: bool) -> tuple[OldOf, float | None]:
        """Return when the trainer computes old log-probabilities of samples that lag, and the
        updates from then on; None if they are not known. `to_engine`: the engine's are taken.

        (experimental/fully_async_policy/fully_async_trainer.py and trainer/ppo/v1/
        trainer_separate_async.py: _compute_old_log_prob)
        """
        if to_engine or not self._samples_ahead():
            return "", 0
        number = self.keys.number
        separate = self.since(V1) and self.keys.text(MODE) == "separate_async"
        if not self.is_fully and not separate:
            return "batch", regime_of_sizes(self.keys, BATCH, MINIBATCH, PPO_EPOCHS).steps
        sizes = SEPARATE_KEYS if separate else FULLY_KEYS
        given = [number(key, default) for key, default in {**sizes, PPO_EPOCHS: 1}.items()]
        known = [each for each in given if each]
        return "sync", prod(known) if known == given else None

    def _discount(self, advantage: str) -> str:
        """Return λ and γ where they are not 1, for the advantages that read them."""
        read = {"gae": (LAMBDA, GAMMA), "reinforce_plus_plus": (GAMMA,)}.get(advantage, ())
        return self.discounts({key: key for key in read})

    def _changes(self, in_reward: InReward, in_loss: InLoss) -> Iterator[LaunchChange]:
        """Yield the changes to a term that is not criticised, the smallest first."""
        estimator, by_switch = (LOSS_TYPE, "mse"), self.since("0.4.0")
        if in_loss.active and not in_reward.active:
            yield self.keys.change("k2 in the loss", estimator)
        if in_reward.active and in_loss.active:
            yield self.keys.change("k1 in the reward alone", (USE_LOSS, "False"), (PENALTY, "kl"))
            if by_switch:
                yield self.keys.change("k2 in the loss alone", (USE_REWARD, "False"), estimator)
        beta = f"{in_reward.beta or in_loss.beta or 0.001:g}"
        switch = [(USE_REWARD, "True")] if by_switch else []
        rewarded = [*switch, (USE_LOSS, "False"), (PENALTY, "kl"), (REWARD_BETA, beta)]
        # An advantage that orch does not know may do anything to a KL in the reward.
        is_known = self.keys.text(ADVANTAGE) in (None, *KNOWN)
        # A group of one is mended first: then the deviation of a group rescales such a KL.
        divided = DIVIDED_BY.get(self.keys.text(ADVANTAGE) or "") == "group_std"
        if is_known and not (divided and any(each.apart for each in self.notes)):
            yield self.keys.change("k1 in the reward", *rewarded)
        if is_known and by_switch:
            words = "k1 in the reward, not rescaled"
            yield self.keys.change(words, *rewarded, (BY_DEVIATION, "False"), also=NOT_RESCALED)
        switch = [(USE_REWARD, "False")] if by_switch else []
        moved = [*switch, (USE_LOSS, "True"), estimator, (LOSS_BETA, beta)]
        yield self.keys.change("k2 in the loss", *moved)
