"""Read the KL that a launch of TRL asks for, release by release.

A launch is `trl grpo`, `trl rloo`, `trl.scripts.grpo`, orch's own orch_trl.py, somebody's script
with TRL's options on the command line or in a YAML recipe (open-r1), or a call of GRPOConfig or
RLOOConfig in Python. Sources: trl/trainer/grpo_trainer.py (_compute_loss) and rloo_trainer.py of
each release since 0.14.0. history.json has the defaults of each release.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from math import gcd
from pathlib import Path
from typing import Literal

from backends.trl.options import (
    OLD_NAMES,
    REDECLARED,
    VERSIONS,
    Script,
    class_table,
    inherited,
    own_options,
)
from backends.trl.processes import number_of_processes
from orchestrator.audit.libraries import found_beside, unread
from orchestrator.audit.own_code import entry_at, files_of, with_modules
from orchestrator.audit.reading import (
    KL_WEIGHTS,
    LONGEST_ENTRY,
    Keys,
    ReleaseReader,
    flags_in_order,
    truncated,
    two_temperatures,
)
from orchestrator.kl.estimators import Correction, EngineWeight, Ratio
from orchestrator.library.key_tables import (
    completed,
    inside,
    merged_table,
    nearest,
    version_tuple,
)
from orchestrator.library.launches import (
    UNKNOWN,
    UNSET,
    AuditNote,
    BoundNote,
    CommandWord,
    ConfigDocument,
    Decided,
    Divisor,
    Given,
    HeldKeys,
    InLoss,
    InReward,
    Launch,
    LaunchChange,
    LaunchReading,
    Possibility,
    Range,
    Surroundings,
    TrainingRegime,
)
from orchestrator.library.manifest import ReleaseTable
from orchestrator.losses.table import LOSS_STEPS

CLASSES: Mapping[str, Script] = {
    "GRPOConfig": "grpo",
    "GMPOConfig": "grpo",
    "RLOOConfig": "rloo",
    "grpo_defaults": "grpo",
    "get_default_grpo_config": "grpo",
}
"""Calls that make a trainer's configuration."""
OF_VERIFIERS = ("grpo_defaults", "get_default_grpo_config")
OWN_ENTRY = re.compile(
    r"(?:^|/)(?:orch_trl\.py|trl)$|^trl\.cli(?:\.main)?$"
    r"|^trl\.scripts\.(grpo|rloo)$|(?:^|/)trl/scripts/(grpo|rloo)\.py$"
)
_MODULE = re.compile(r"^(?!torch\.distributed|accelerate\.commands)[A-Za-z_]\w*(?:\.\w+)+$")
_NAMED = re.compile(r"grpo|gspo|rloo", re.IGNORECASE)
_SAMPLES = re.compile(r"(?:sampl|generat|infer|eval)\w*?(?:\.py)?$", re.IGNORECASE)
_OTHERS = re.compile(r"\b(swift|verl|openrlhf|llamafactory|axolotl|open_instruct|roll|areal)\b")
_OWN_FLAGS = frozenset({"config", "metrics", "chat", "kl_estimator", "kl_placement"})
_SIGNS = frozenset(
    {
        "num_generations",
        "max_completion_length",
        "num_iterations",
        "steps_per_generation",
        "reward_funcs",
        "importance_sampling_level",
        "use_bias_correction_kl",
        "scale_rewards",
        "log_completions",
        "vllm_mode",
        "rloo_k",
        "kl_coef",
    }
)
"""Options of TRL's that few other programs have."""
_LISTS = frozenset(("lora_target_modules", "reward_funcs", "reward_weights"))
"""Flags with a value for each word after them that count in a cell or its reward."""
_FOREIGN = frozenset({"rlhf_type", "algorithm", "actor_rollout_ref", "exp_name"})
FIRST_GRPO, FIRST_NEW_RLOO, FIRST_CLIP, FIRST_LOSS_TYPE = (0, 14), (0, 22), (0, 16), (0, 17)
_FIRST_WITH = dict.fromkeys(("grpo", "bnpo", "dr_grpo"), FIRST_LOSS_TYPE)
_FIRST_WITH |= {
    "dapo": (0, 22),
    "cispo": (0, 26),
    "sapo": (0, 26),
    "luspo": (0, 28),
    "vespo": (1, 0),
}
"""Value of loss_type -> the first release whose _compute_loss has it; it refuses all others."""
FIRST_CORRECTED, FIRST_MINIBATCHES = (0, 26), (0, 18)
FIRST_FILLED, FIRST_ACCUMULATED = (0, 15), (0, 17)
SWAPPED = ((0, 22, 0), (0, 22, 1))
"""Releases whose _generate_and_score_completions divides by the group's deviation for `batch` and
`none`, and by nothing for `group`; mended in 0.22.2."""
FIRST_STRICT = (0, 19)
"""The first release whose TrlParser refuses options of a file that it does not know
(trl/scripts/utils.py); before, it leaves them out without a word."""
FIRST_PROCESSED = (0, 24)
"""The first release that asks vLLM for probabilities at the temperature (grpo_trainer.py)."""
FIRST_SYNC_CHECK = (1, 9)
"""The first release read that refuses sync_ref_model without a reference policy."""
_SAMPLED = {f"generation_kwargs.{key}": key for key in ("top_p", "top_k", "min_p")}
"""Entry of an option that wins over the option of its name -> that option."""
_COPIED = {"epsilon_low": "epsilon", "importance_sampling_level": "importance_sampling_level"} | {
    name: name for name in ("beta", "epsilon_high", "loss_type", "num_iterations", "scale_rewards")
}
"""Attribute of the trainer -> the option that it is copied from."""
_MODES: Mapping[str, tuple[Correction, str]] = {
    "token_truncate": ("tis_token", "token-level truncated importance sampling"),
    "token_mask": ("mis_token", "token-level importance masks"),
    "sequence_truncate": ("tis_sequence", "sequence-level truncated importance sampling"),
    "sequence_mask": ("mis_sequence", "sequence-level importance masks"),
}
_DIVIDED_BY: Mapping[str, Divisor] = {"none": "nothing", "batch": "batch_std"}
MEAN_RATIO_KL = (
    "k3 in the loss, β = {beta}, times the response's geometric mean ratio: on-policy, of T "
    "tokens, 1 - 1/T of the gradient of each token's forward KL and 1/T of that of the response's "
    "reverse KL per token"
)
"""At ratio 1 the gradient of s · mean k3 is mean ∇k3 + (mean k3) (1/T) Σ ∇log π. The gradient of
E[mean k3] is E[mean ∇k3] + E[(mean k3) Σ ∇log π], and E[mean k3] is the reverse KL over T."""


@dataclass(frozen=True, slots=True)
class Fork:
    """A program with TRL's options and its own loss: k3, without a correction."""

    title: str
    source: str
    defaults: Mapping[str, str] = field(default_factory=dict)
    releases: tuple[tuple[int, ...], tuple[int, ...]] = ((0, 14), (99,))
    """The first and the last release of TRL that it uses."""
    ahead: str = ""
    """The key that lets it sample ahead of training, on by default; empty if it has none."""
    loss: str = ""
    """Its policy loss, an entry of orchestrator.losses; empty: the one that loss_type says."""
    since: str = ""
    """The first release with its beta, in words."""


GMPO = Fork(
    "TRL's GMPOTrainer",
    "trl/experimental/gmpo/gmpo_trainer.py",
    {"epsilon": "0.4"},
    ((1, 16), (99,)),
    loss="gmpo",
)
UNSLOTH = Fork(
    "Unsloth",
    "unsloth_zoo/rl_replacements.py (grpo_compute_loss), unsloth/models/rl.py; it asks for TRL up "
    "to 0.24.0 (August 2026)",
    {
        "beta": "0.001",
        "loss_type": "bnpo",
        "vllm_importance_sampling_correction": "False",
        "learning_rate": "5e-05",
        "weight_decay": "0.01",
        "warmup_ratio": "0.1",
        "seed": "3407",
        "optim": "adamw_8bit",
    },
    ((0, 14), (0, 24)),
    since=" since 2025.6.5 (before, it was TRL's)",
)
_REFUSED_BY_TRAINER = re.compile(
    r"trl(?:\.\w+)*\.GRPOTrainer\((?!(?:model|reward_funcs|args|train_dataset|eval_dataset|"
    r"processing_class|reward_processing_classes|callbacks|optimizers|quantization_config|"
    r"peft_config|tools|rollout_func|environment_factory)\))(\w+)\)"
)
"""What GRPOTrainer takes in no release, 0.14.0 to 1.16.0 (trl/trainer/grpo_trainer.py)."""
OF_UNSLOTH = frozenset(
    {
        "vllm_sampling_params",
        "unsloth_num_chunks",
        "unsloth_logit_chunk_multiplier",
        "unsloth_grpo_mini_batch",
        "max_seq_length",
    }
)
"""Options that Unsloth adds to TRL's (unsloth/models/rl.py, its text of a configuration)."""
_UNSLOTH = re.compile(r"(?m)^\s*(?:import|from)\s+unsloth\b")
FIRST_OWN_BETA = (2025, 6, 5)
"""The first release of Unsloth with a beta and a loss_type of its own (unsloth/models/rl.py)."""
VERIFIERS = Fork(
    "verifiers",
    "verifiers/trainers/grpo_trainer.py and grpo_config.py (0.1.0 to 0.1.5)",
    {
        "beta": "0.001",
        "loss_type": "dr_grpo",
        "scale_rewards": "False",
        "sync_ref_model": "True",
        "ref_model_mixup_alpha": "0.5",
        "ref_model_sync_steps": "100",
        "num_batches_ahead": "1",
    },
    ((0, 17), (0, 17)),
    "num_batches_ahead",
)
VLM_R1 = Fork(
    "VLM-R1",
    "src/open_r1/trainer/grpo_trainer.py (VLMGRPOTrainer) and grpo_config.py",
    {"beta": "0.04", "loss_type": "grpo", "scale_rewards": "True"},
    ((0, 16), (0, 17)),
)
OPEN_R1 = (0, 14), (0, 18)
"""The releases of TRL that open-r1 and its offshoots use. setup.py of open-r1 required TRL's
repository of January to May 2025, then 0.18.0 until its last commit."""
_OPEN_R1_ENTRY = re.compile(r"(?:^|/)open_r1[/.]\w*(?:grpo|gspo)\w*(?:\.py)?$")
_OPEN_R1_KEYS = frozenset({"dataset_prompt_column", "data_file_paths", "image_folders"})
"""Options of open-r1's and VLM-R1's own scripts."""
_VLM_R1_ENTRY = re.compile(r"open_r1/grpo_(?:jsonl|rec)\.py$")


Runner = Literal["accelerate", "script", ""]


@dataclass(frozen=True, slots=True)
class LaunchOptions:
    """The options of a launch, before its release is known."""

    script: Script
    entry: str
    grammar: Literal["argparse", "structured"]
    given: Sequence[tuple[str, Given]]
    opaque: str = ""
    assumes: tuple[str, ...] = ()
    fork: Fork | None = None
    unknown: str = ""
    names: tuple[str, ...] = ()
    """The imports of a Python file, and the keywords that it passes to them."""
    shipped: tuple[str, str] | None = None
    """Estimator and placement of a KL that orch's own program adds to TRL's trainer."""
    flags: Sequence[tuple[str, Given]] = ()
    """The options of the command line, which win over `given`."""
    options_of_its_own: frozenset[str] | None = frozenset()
    """Further options of a program of somebody's own; None: they are not known."""
    ignored: frozenset[str] = frozenset()
    """Options of a file that its parser does not refuse, and leaves out if it has not got them."""
    runner: Runner = ""
    """The program that gets a flag which TRL's own parser does not know. `trl grpo` hands it to
    `accelerate launch`; TRL's scripts refuse it. Empty for another program."""

    def options(self, version: str) -> Iterator[tuple[str, Given]]:
        """Yield every option by its name in this release, the last one of a name wins.

        TRL's parser (transformers.HfArgumentParser) takes abbreviations, and `--no_NAME` for a
        switch that is on by default. A file of options has whole names.
        """
        yield from self.given
        for name, each in self.flags:
            yield _resolved(self.script, version, name, each, short=self.runner != "")


def audit(launch: Launch) -> LaunchReading | None:
    """Return the audit's reading of a launch; None if it starts no RL trainer of TRL."""
    request = _from_call(launch) or _from_words(launch) or _from_recipe(launch)
    if request is None:
        return None
    releases, because, exact = _releases(request, launch)
    if len(releases) > 1:
        because += "; the newest is taken"
    giving: dict[Terms, list[str]] = {}
    regimes: dict[bool | None, str] = {}
    for version in releases:
        reader = _Reader(launch, request, version, because)
        giving.setdefault(reader.terms(), []).append(version)
        regime = reader.regime()
        regimes[regime.on_policy] = regime.because
    newest = _Reader(launch, request, releases[-1], because)
    reading = newest.reading(_undecided(request, releases), releases[0])
    if len(regimes) > 1:
        why = f"{' or '.join(regimes.values())}: releases of TRL differ"
        reading = replace(reading, regime=TrainingRegime(None, why))
    if len(giving) > 1:
        differing = [f"{_worded(terms)} in {_range(each)}" for terms, each in giving.items()]
        why = f"releases of TRL differ: {'; '.join(differing)}"
        sides = [Possibility(f"TRL is {_range(e)}", release=e[-1]) for e in giving.values()]
        reading = replace(
            reading,
            unknown=(*reading.unknown, f"{why}. Say which: --library trl@VERSION"),
            possibilities=reading.possibilities or tuple(sides),
        )
    pinned = "" if exact else launch.release("trl")[0]
    lacking = [name for name in request.names if name.startswith("trl.") and "GRPO" in name]
    if pinned and lacking and version_tuple(pinned) < FIRST_GRPO:
        text = f"TRL {pinned} has no {lacking[0]} (trl/__init__.py): ImportError"
        refused = (AuditNote(text, stops=True), *reading.contradictions)
        reading, pinned = replace(reading, version=pinned, contradictions=refused), ""
    return replace(reading, held=replace(_held(request, releases, exact=exact), named=pinned))


# ------------------------------------------------------------------------ the options of a launch


def _from_call(launch: Launch) -> LaunchOptions | None:
    document = launch.documents[-1] if launch.documents else None
    started = _entry(launch.words)
    is_read = started is not None and (started[3] or _VLM_R1_ENTRY.search(started[0]))
    if document is None or document.kind != "call" or document.name not in CLASSES or is_read:
        return None
    owner = document.module.partition(".")[0]
    if not {"trl", "unsloth", "unsloth?", "verifiers"} & {owner, *document.imports}:
        return None
    (fork, assumes), unknown = _by_unsloth(launch, document), ""
    if document.name == "GMPOConfig":
        fork = GMPO
    bases = ", ".join(document.builds_on)
    of_verifiers = owner == "verifiers" or document.name in OF_VERIFIERS
    if of_verifiers and any(name.startswith("trl.GRPOTrainer(") for name in launch.names):
        bases = f"{document.name} of verifiers"  # TRL's own trainer takes it
    elif of_verifiers:
        fork, unknown = VERIFIERS, _of_another_verifiers(document)
    elif owner not in ("trl", "unsloth"):
        assumes = (f"{document.name} of {document.module or 'this file'} is TRL's",)
    if document.parser and not launch.words:
        assumes = (*assumes, "no option is given on the command line of this program")
    opaque = f"{bases} may set it" if bases else ""
    given = [(key, each) for key, each in document.values.items() if each.text or not bases]
    files = [pair for d in launch.documents[:-1] for pair in d.values.items()]
    program = next((i for i, word in enumerate(launch.words) if word.text.endswith(".py")), 0)
    taken = [*files, *_flags(launch.words[program + 1 :])]
    options, by_parser = document.options, bool(document.parser and launch.words)
    entry = f"{launch.words[program].text}: " if launch.words else ""
    if bases and launch.words:
        taken = [pair for pair in taken if _known(CLASSES[document.name], pair[0])]
        is_whole = bases.startswith(("**vars(", "**asdict("))
        options = None if options is None else options.union(() if is_whole else dict(taken))
        assumes = (*assumes, f"{bases} has the options of its command line")
    names_file = any(word.text == "--config" for word in launch.words)
    if by_parser and (launch.missing or (names_file and not files)):
        opaque = "its configuration file could not be read"
    if launch.words and (bases or by_parser):  # what the program sets after parsing comes last
        given = [*taken, *given]
    given = [*document.defaults.items(), *given, *_on_trainer(document, dict(given))]
    return LaunchOptions(
        CLASSES[document.name],
        f"{entry}{document.name}",
        "argparse" if by_parser else "structured",
        given,
        opaque or launch.open_end,
        assumes,
        fork,
        unknown,
        launch.names,
        options_of_its_own=_with_added(fork, options),
        ignored=frozenset(dict(files) if document.parser == "TrlParser" else ()),
    )


def _of_another_verifiers(document: ConfigDocument) -> str:
    """Return why a configuration is of a release of verifiers that is not read; empty: it is."""
    if {"micro_batch_size", "rollouts_per_example"} & {*document.values}:
        return "verifiers since 0.1.8 has another trainer behind this name"
    is_older = document.name == "get_default_grpo_config"
    return "verifiers before 0.1.0 chose β itself, and orch has not read it" if is_older else ""


def _on_trainer(
    document: ConfigDocument, given: Mapping[str, Given]
) -> Iterator[tuple[str, Given]]:
    """Yield the options in whose place the loss reads an attribute that the file sets on the
    trainer (GRPOTrainer.__init__ copies them)."""
    if "epsilon_low" in document.on_trainer and "epsilon_high" not in given:
        yield "epsilon_high", given.get("epsilon", Given("0.2"))
    for name, each in document.on_trainer.items():
        if name in _COPIED:
            yield _COPIED[name], each


def _from_words(launch: Launch) -> LaunchOptions | None:
    entry = _entry(launch.words)
    if entry is None:
        return None
    name, script, rest, own = entry
    flags = list(_flags(rest))
    documents = [d for d in launch.documents if d.kind == "yaml"]
    ours = {key: each.text for key, each in _flags(rest, own=True)}
    if own and (joined := [word for word in rest if word.text.startswith("--config=")]):
        documents = []  # TRL's parser looks for the word `--config` alone
        flags.append(("config=", Given(joined[0].text, joined[0].lines)))
    given = [(key, each) for d in documents for key, each in d.values.items()]
    keys = {key.partition(".")[0] for key, _ in (*given, *flags)}
    config = ours.get("config", "")
    shipped = (ours.get("kl_estimator", ""), ours.get("kl_placement", ""))
    lacking = launch.missing[:1] or (() if documents or not config else (config,))
    missing = "".join(f"{each} could not be read" for each in lacking)
    assumes: tuple[str, ...] = ()
    if not own:
        signs = len(keys & _SIGNS) + ({"beta", "per_device_train_batch_size"} <= keys)
        named = _NAMED.search(name) is not None
        text = launch.beside.get(found_beside(entry_at(launch.words)[1], launch.beside)) or ""
        is_other = unread(text).startswith("TRL's ") and not _NAMED.search(text)
        if is_other or (_SAMPLES.search(name) and not named):
            return None
        every = {key for key, _ in _flags(launch.words)}  # `swift rlhf --rlhf_type grpo a.py`
        if (keys | every) & _FOREIGN or not ((named and missing) or signs >= (1 if named else 2)):
            return None
        assumes = (f"{name} hands its options to TRL's trainer as they are: it is not TRL's own",)
    fork = VLM_R1 if _VLM_R1_ENTRY.search(name) else None
    fork = _unsloth(launch) if not own and _imports_unsloth(launch) else fork
    runner: Runner = ""
    if own and not name.endswith("orch_trl.py"):
        runner = "script" if "scripts" in name else "accelerate"
    if runner == "accelerate":  # what TRL hands on; the other options of a file it hands on too
        given, flags = (
            [each for each in options if each[0] not in _handed_on() or _known(script, each[0])]
            for options in (given, flags)
        )
    return LaunchOptions(
        script,
        name,
        "argparse",
        given,
        launch.open_end or missing,
        () if fork else assumes,
        fork,
        names=launch.names,
        shipped=shipped if all(shipped) else None,
        flags=flags,
        options_of_its_own=frozenset() if own else None,
        ignored=frozenset(dict(given) if runner == "script" else ()),
        runner=runner,
    )


def _with_added(fork: Fork | None, options: frozenset[str] | None) -> frozenset[str] | None:
    """Return a program's further options, with those that Unsloth adds."""
    is_unsloth = fork is not None and fork.title == UNSLOTH.title
    return options | OF_UNSLOTH if is_unsloth and options is not None else options


def _by_unsloth(launch: Launch, document: ConfigDocument) -> tuple[Fork | None, tuple[str, ...]]:
    """Return Unsloth if the program or the file imports it, so that it replaces TRL's classes, and
    what is taken for granted."""
    if "unsloth" in document.imports or _imports_unsloth(launch):
        return _unsloth(launch), ()
    if "unsloth?" in document.imports:
        return _unsloth(launch), ("the condition holds under which it imports Unsloth",)
    program = found_beside(entry_at(launch.words)[1], launch.beside)
    for name in launch.names:
        owner = name.rpartition(".")[0] or name
        for path in files_of(owner.replace(".", "/"), program, launch.beside):
            for module, code in with_modules(path, launch.beside[path], launch.beside):
                if _UNSLOTH.search(code):
                    said = f"{module}, which imports Unsloth, does so before it trains"
                    return _unsloth(launch), (said,)
    return None, ()


def _imports_unsloth(launch: Launch) -> bool:
    return any(name.partition(".")[0] == "unsloth" for name in launch.names)


def _unsloth(launch: Launch) -> Fork:
    """Return Unsloth with the defaults of its release."""
    pinned, _ = launch.release("unsloth")
    if not pinned or version_tuple(pinned) >= FIRST_OWN_BETA:
        return UNSLOTH
    later = ("beta", "loss_type")
    return replace(UNSLOTH, defaults={k: v for k, v in UNSLOTH.defaults.items() if k not in later})


@cache
def _handed_on() -> frozenset[str]:
    """Return the options of a launch by `trl` that are `accelerate launch`'s."""
    plain = json.loads(Path(__file__).with_name("accelerate.json").read_text(encoding="utf-8"))
    return frozenset(plain["flags"]) | {"accelerate_config", "env"}


def _known(script: Script, key: str) -> bool:
    return key in inherited(script) or any(key in own for own in own_options(script).values())


def _resolved(
    script: Script, version: str, name: str, given: Given, *, short: bool
) -> tuple[str, Given]:
    """Return the option that a flag stands for in a release, and its value.

    short: the flag may be an abbreviation. A flag that stands for no option, or for several, is
    returned as it is.
    """
    known = _switches(script, version)
    meant = completed(name, known) if short else (name,)
    whole = meant[0] if len(meant) == 1 else name
    if known.get(whole):
        return whole.removeprefix("no_"), replace(given, text="False")
    return whole, given


@cache
def _switches(script: Script, version: str) -> Mapping[str, bool]:
    """Return the flags of a release's parser, True for those that turn a switch off."""
    options_ = {**inherited(script), **own_options(script)[version]}
    off = {f"no_{key}": True for key, option in options_.items() if option.default is True}
    return {**off, **dict.fromkeys(options_, False)}


def _from_recipe(launch: Launch) -> LaunchOptions | None:
    """Return the options of a YAML file alone: TRL's flat names, or `_target_: trl.GRPOConfig`."""
    if launch.words or not launch.documents or launch.documents[-1].kind != "yaml":
        return None
    document = launch.documents[-1]
    script: Script = "rloo" if "rloo" in document.name.lower() else "grpo"
    prefix = ""
    for key, each in document.values.items():
        name = each.text.rpartition(".")[2]
        if key.endswith("_target_") and name in CLASSES:
            prefix, script = key.removesuffix("_target_"), CLASSES[name]
    given = [
        (key.removeprefix(prefix), each)
        for key, each in document.values.items()
        if key.startswith(prefix) and not key.endswith("_target_")
    ]
    keys = {key.partition(".")[0] for key, _ in given}
    if keys & _FOREIGN or not (prefix or (keys & _SIGNS and keys & set(inherited(script)))):
        return None
    assumes = ("a trainer of TRL reads this file: nothing in it says so",) if not prefix else ()
    own = frozenset[str]() if prefix else None  # a program that reads it may have its own
    name = document.name or "recipe"
    return LaunchOptions(script, name, "argparse", given, assumes=assumes, options_of_its_own=own)


def _entry(words: Sequence[CommandWord]) -> tuple[str, Script, Sequence[CommandWord], bool] | None:
    """Return the program, its trainer, the words after them, and True if it is TRL's own."""
    for i, word in enumerate(words):
        if len(word.text) >= LONGEST_ENTRY:
            continue
        if (match := OWN_ENTRY.search(word.text)) is not None:
            at = i if match[1] or match[2] else i + 1
            name = match[1] or match[2] or "".join(each.text for each in words[at : at + 1])
            is_known = name in ("grpo", "rloo")
            script: Script = "rloo" if name == "rloo" else "grpo"
            return (word.text, script, words[at + 1 :], True) if is_known else None
        is_module = i > 0 and words[i - 1].text in ("-m", "--module")
        if not word.text.endswith(".py") and not (is_module and _MODULE.search(word.text)):
            continue
        if _OTHERS.search(word.text):
            return None
        script = "rloo" if "rloo" in word.text.lower() else "grpo"
        return word.text, script, words[i + 1 :], False
    return None


def _flags(words: Sequence[CommandWord], *, own: bool = False) -> Iterator[tuple[str, Given]]:
    """Yield each flag with its value: those of orch's program orch_trl.py if `own`, else others."""
    for name, given in flags_in_order(words, dashes=False, several=_LISTS):
        if name in _LISTS and " " in given.text and not given.text.startswith("["):
            given = replace(given, text=f"[{', '.join(given.text.split())}]")
        if (name in _OWN_FLAGS) == own:
            yield name, given


# --------------------------------------------------------------------- the release of a launch


def _releases(request: LaunchOptions, launch: Launch) -> tuple[Sequence[str], str, bool]:
    """Return the releases that a launch may run on, oldest first, and the reason.

    The third value is True only if something names one release and orch has its table.
    """
    own = own_options(request.script)
    versions = list(own)
    wanted, why = launch.release("trl")
    if wanted:
        version = versions[nearest(versions, wanted)]
        return [version], why, version_tuple(version) == version_tuple(wanted)
    open_r1 = _is_open_r1(request)
    if request.fork is not None or open_r1:
        first, last = request.fork.releases if request.fork is not None else OPEN_R1
        versions = [v for v in versions if first <= version_tuple(v)[: len(first)]]
        versions = [v for v in versions if version_tuple(v)[: len(last)] <= last]
    versions = inside(versions, launch.bounds("trl")[0])
    every = {key for version in own for key in own[version]}
    keys = {key.partition(".")[0] for key, _ in request.options(versions[-1])} & every
    keys -= REDECLARED | (request.options_of_its_own or frozenset())
    refused = {v: sum(key not in own[v] for key in keys) for v in own}
    if request.fork is not None:
        return versions, f"{request.fork.title} stands on these", False
    every_release = inside(list(own), launch.bounds("trl")[0])
    least = min(refused[v] for v in every_release)
    if least < min(refused[v] for v in versions):  # its keys are of another time than open-r1's
        versions, open_r1 = every_release, False
    fitting = [v for v in versions if refused[v] == least]
    having, named = _having(request.names, fitting)
    if named:
        return having, f"its imports fit {_range(having)} ({', '.join(named[:3])})", False
    if open_r1:
        return fitting, f"open-r1, whose script it is, stands on {_range(fitting)}", False
    if fitting == versions:
        return fitting, "its keys are in every release", False
    telling = sorted(k for k in keys if len({k in own[v] for v in own}) > 1)
    return fitting, f"its keys fit {_range(fitting)} ({', '.join(telling[:3])})", False


def _having(names: Sequence[str], versions: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the releases with every name that a file imports, and the deciding names.

    No name decides if no release has them all.
    """
    known = _names()
    spans = {name: known[name] for name in names if name in known}
    first = max((version_tuple(each) for each, _ in spans.values()), default=())
    last = min((version_tuple(each) for _, each in spans.values() if each), default=(99,))
    having = [version for version in versions if first <= version_tuple(version) <= last]
    if not having or len(having) == len(versions):
        return list(versions), []
    return having, [name.removeprefix("trl.") for name in spans]


@cache
def _names() -> Mapping[str, tuple[str, str | None]]:
    """Return the first release and the last (None: 1.9.0 has it) of the names that TRL exports, and
    of its trainers' parameters (`trl.GRPOTrainer(tools)`), where they are not in all releases.

    Source: __init__.py, rewards/__init__.py and the two trainers, in 43 tags from 0.14.0 to 1.9.0.
    """
    text = Path(__file__).with_name("names.json").read_text(encoding="utf-8")
    return {name: (first, last) for name, (first, last) in json.loads(text).items()}


def _is_open_r1(request: LaunchOptions) -> bool:
    """Return True if a launch runs open-r1's script, or a script with its options."""
    if request.grammar != "argparse":
        return False
    named = _OPEN_R1_ENTRY.search(request.entry) is not None
    return named or bool(_OPEN_R1_KEYS & {key for key, _ in request.options(VERSIONS[0])})


def _undecided(request: LaunchOptions, releases: Sequence[str]) -> Iterator[str]:
    """Yield the options around the KL whose default differs between these releases."""
    own = own_options(request.script)
    given = {key: each.text for key, each in request.options(releases[-1])}
    use_vllm = given.get("use_vllm", "" if request.opaque else "False")
    engine = _OF_ENGINE if use_vllm.lower() != "false" else ()
    for key in ("loss_type", *(f"vllm_importance_sampling_{each}" for each in engine)):
        values = {getattr(own[version].get(key), "default", None) for version in releases}
        if len(values) > 1 and key not in given and request.fork is None:
            last = releases[-1]
            newest = getattr(own[last].get(key), "default", None)
            yield f"{key} is {newest}, as in {last}: its default is another in {releases[0]}"


_OF_ENGINE = ("correction", "mode", "cap", "clip_max", "clip_min")
Terms = tuple[InReward, InLoss, tuple[str, ...]]
_PLAIN = re.compile(rf"[\w./+${{}}{UNKNOWN}{UNSET}-]+")
"""A text that needs no quotes within a list."""


def _worded(terms: Terms) -> str:
    reward, loss, unknown = terms
    if unknown:
        return "unknown"
    if reward.active:
        return f"{reward.estimator} in the reward, β = {reward.beta:g}"
    return f"{loss.estimator} in the loss, β = {loss.beta:g}" if loss.active else "no KL"


def _range(versions: Sequence[str]) -> str:
    return versions[0] if len(versions) == 1 else f"{versions[0]} to {versions[-1]}"


@cache
def _table(script: Script, versions: tuple[str, ...]) -> ReleaseTable:
    if len(versions) == 1:
        return class_table(script, versions[0])
    return merged_table(class_table(script, version) for version in versions)


def _held(request: LaunchOptions, releases: Sequence[str], *, exact: bool) -> HeldKeys:
    """Return the options of a launch with the table of its class in its releases."""
    given: dict[str, list[Given]] = {}
    parts: dict[str, dict[str, Given]] = {}
    table = _table(request.script, tuple(releases))
    more = request.options_of_its_own or frozenset()
    for key, each in request.options(releases[-1]):
        if (name := _SAMPLED.get(key, "top_p")) != "top_p" and table.has(name):
            given.setdefault(name, []).append(each)
        root, _, part = key.partition(".")  # an option whose value is a dictionary or a list
        if part and (table.has(root) or root in more):
            parts.setdefault(root, {})[part] = each
            given[root] = [_whole(parts[root])]
        else:
            given.setdefault(key, []).append(each)
    others = [v for v in own_options(request.script) if v not in releases]
    fork = request.fork
    of_fork = fork.defaults if fork is not None else {}
    unsaid = [f"{key}={text}" for key, text in of_fork.items() if key not in given]
    ignores = request.runner == "script" or version_tuple(releases[-1]) < FIRST_STRICT
    return HeldKeys(
        given,
        request.grammar,
        table,
        "TRL" if not exact else f"TRL {releases[-1]}",
        exact=exact,
        others=(_table(request.script, tuple(others)),) if others else (),
        defaults={
            "vllm_importance_sampling_correction": "False",  # of a release without it
            "loss_type": "bnpo" if version_tuple(releases[-1]) >= FIRST_CLIP else "grpo",
            **_defaults(request.script, releases[-1]),
            **of_fork,
        },
        own=frozenset(of_fork) | more | {"output_dir"},
        in_files=request.ignored if ignores else frozenset(),
        flag="--" if request.grammar == "argparse" else "",
        open=request.options_of_its_own is None,
        opaque=request.opaque,
        fork=f"{fork.title} trains it, by its own {', '.join(unsaid)}" if fork and unsaid else "",
    )


def _whole(parts: Mapping[str, Given]) -> Given:
    """Return a list or a dictionary, whose parts have numbers or names, as one value."""
    texts = (x.text if _PLAIN.fullmatch(x.text) else json.dumps(x.text) for x in parts.values())
    is_list = all(map(str.isdigit, parts))
    whole = ", ".join(t if is_list else f"{k}: {t}" for k, t in zip(parts, texts, strict=True))
    return Given(
        f"[{whole}]" if is_list else f"{{{whole}}}",
        tuple(sorted({line for each in parts.values() for line in each.lines})),
        tuple(reason for each in parts.values() for reason in each.why),
    )


@cache
def _defaults(script: Script, version: str) -> Mapping[str, str]:
    own = own_options(script)[version]
    every = {**inherited(script), **own}
    if version_tuple(version) < FIRST_MINIBATCHES:
        every.pop("bf16", None)
    texts = {key: "" if o.default is None else str(o.default) for key, o in every.items()}
    return texts if "learning_rate" in own else {**texts, "learning_rate": "5e-05"}


# --------------------------------------------------------------- a launch under a release's rules


class _Reader(ReleaseReader):
    """A launch under the rules of one release."""

    library = "trl"
    title = "TRL"

    def __init__(self, launch: Launch, request: LaunchOptions, version: str, because: str):
        defaults = dict(_defaults(request.script, version))
        defaults |= request.fork.defaults if request.fork is not None else {}
        keys = Keys(defaults, opaque=request.opaque, assumes=list(request.assumes))
        super().__init__(launch, keys, request.entry, version, because)
        self.request, self.at = request, version_tuple(version)
        self.fork, self.is_rloo = request.fork, request.script == "rloo"
        self.own_loss = request.fork.loss if request.fork is not None else ""
        self.swapped = self.at[:3] in SWAPPED and request.fork is None
        as_flag = request.grammar == "argparse" and request.entry != "recipe"
        self.written = "--{key} {value}" if as_flag else "{key} = {value}"
        for key, given in request.options(version):
            self.keys.add(self._current(_SAMPLED.get(key, key)), given)

    def _current(self, key: str) -> str:
        """Return the name in 0.22 to 0.24 of an option with an old name of RLOOConfig."""
        both = self.is_rloo and FIRST_NEW_RLOO <= self.at[:2] <= (0, 24)
        return OLD_NAMES.get(key, key) if both else key

    def _name(self, new: str) -> str:
        """Return an option's name in this release."""
        if not self.is_rloo or self.at[:2] >= FIRST_NEW_RLOO:
            return new
        return next((old for old, name in OLD_NAMES.items() if name == new), new)

    def terms(self) -> Terms:
        """Return the KL in the reward, the KL in the loss, and the reasons if they are unknown."""
        key = self._name("beta")
        beta = self.keys.number(key)
        if self.request.unknown:
            return InReward(None), InLoss(None), (self.request.unknown,)
        if beta is None:
            return InReward(None), InLoss(None), (self.keys.leave_open(key, KL_WEIGHTS),)
        if beta == 0:
            zero = self.is_rloo
            return InReward(False, None, 0.0 if zero else None), InLoss(False, None, 0.0), ()
        if self.request.shipped is not None:
            name, place = self.request.shipped
            reward, loss = (place in (each, "reward_and_loss") for each in ("reward", "loss"))
            of_reward = InReward(True, name, beta) if reward else InReward(False)
            return of_reward, InLoss(True, name, beta) if loss else InLoss(False), ()
        if self.is_rloo:
            return InReward(True, "k1", beta), InLoss(False), ()
        weighted: bool | None = False
        why = self.keys.why_unknown("use_bias_correction_kl")
        if self._corrects():
            weighted = self.keys.switch("use_bias_correction_kl")
            level = self.keys.text("importance_sampling_level")
            if weighted and level not in ("token", "sequence"):
                why = (
                    "importance_sampling_level is not known: k3 is multiplied by the ratio it names"
                )
                weighted = None
            weighted = weighted and level == "token"
        if weighted is None:
            return InReward(False), InLoss(None, None, beta), (why,)
        return InReward(False), InLoss(True, "rho_k3" if weighted else "k3", beta), ()

    def _corrects(self) -> bool:
        """Return True if TRL's own loss may multiply the KL by the importance ratio."""
        others = self.fork is not None or self.request.shipped is not None
        return self.at >= FIRST_CORRECTED and not others

    def reading(self, undecided: Iterable[str], oldest: str) -> LaunchReading:
        """Return the reading of the launch in this release, the newest since the oldest it may be
        of."""
        reward, loss, unknown = self.terms()
        keys, fork = self.keys, self.fork
        self.unread += undecided
        is_unsaid = not (keys.has("beta") or self.request.unknown)
        if fork is not None and "beta" in fork.defaults and is_unsaid:
            keys.assumes.append(
                f"β is {fork.defaults['beta']}, the default of {fork.title}{fork.since}"
            )
        keys.assumes += self._processes()
        if any(name.endswith("Trainer(rollout_func)") for name in self.request.names):
            keys.assumes.append("rollout_func samples from the policy alone, as TRL itself does")
        on = None if unknown else bool(reward.active or loss.active)
        group = keys.integer(self._name("num_generations"))
        regime, around = self.regime(), self._surroundings()
        corrects = fork is None and "vllm_importance_sampling_correction" in keys.defaults
        if on is False and corrects and keys.text("use_vllm") is None:
            keys.assumes.append(f"use_vllm is False: {keys.why_unknown('use_vllm')}")
        self._refused(on)
        self.notes += self._raw()
        source = f"trl/trainer/{self.request.script}_trainer.py"
        if self.request.shipped is not None:
            source = "backends/trl/launch/orch_trl_kl.py, beside the launch"
        source = source if fork is None else f"{fork.title}: {fork.source}"
        self.sources = {"reward": source, "loss": source}
        return self.found(
            reward,
            loss,
            advantage_estimator=self._advantage(),
            group_size=group,
            changes=self._changes(loss, oldest),
            unknown=unknown,
            regime=regime,
            surroundings=around,
            decided=self._by_mean_ratio(loss),
        )

    def _by_mean_ratio(self, loss: InLoss) -> Decided | None:
        """Return the verdict on k3 times the response's geometric mean ratio, with its gradient."""
        is_on = loss.active and self._corrects() and self.keys.switch("use_bias_correction_kl")
        if not is_on or self.keys.text("importance_sampling_level") != "sequence":
            return None
        return "other_objective", MEAN_RATIO_KL.format(beta=f"{loss.beta:g}")

    def _refused(self, is_loaded: bool | None) -> None:
        """Note each setting with which this release of TRL does not start."""
        keys, config = self.keys, f"trl/trainer/{self.request.script}_config.py: __post_init__"
        group = self._name("num_generations")
        if not self.is_rloo and (keys.integer(group) or 2) < 2:
            self.stops(f"{group} is below 2", config, group)
        called = (_REFUSED_BY_TRAINER.fullmatch(each) for each in self.request.names)
        for name in (each[1] for each in called if each and not self.fork):
            self.stops(f"GRPOTrainer takes no {name}", "trl/trainer/grpo_trainer.py: __init__")
        whole = 0
        if self.at >= FIRST_MINIBATCHES and not self.fork:
            whole = keys.integer("generation_batch_size") or 0
        for name in ("per_device_train_batch_size", group):
            if whole % (part := keys.integer(name) or 1):
                why = f"generation_batch_size {whole} is no multiple of {name} {part}"
                self.stops(f"{why}, with any number of processes", config, name)
        if self.at >= FIRST_SYNC_CHECK and is_loaded is False and self._is_on("sync_ref_model"):
            why = "sync_ref_model is on, and with beta 0 there is no reference policy"
            source = f"trl/trainer/{self.request.script}_trainer.py"
            self.stops(why, source, "sync_ref_model", self._name("beta"))

    def _processes(self) -> Iterator[str]:
        """Yield the number of processes without which TRL refuses the launch, if it is above 1.

        TRL wants generation_batch_size, which is a process's rollouts times the processes, to be a
        multiple of num_generations (trl/trainer/grpo_config.py: __post_init__; before 0.18
        GRPOTrainer itself, which before 0.17 left out gradient_accumulation_steps).
        """
        keys, size = self.keys, "per_device_train_batch_size"
        first = FIRST_MINIBATCHES if self.is_rloo else FIRST_FILLED
        is_checked = self.at >= first and self.fork is None
        if (
            not is_checked
            or not (place := self._checks())
            or not keys.has(size)
            or keys.has("generation_batch_size")
        ):
            return
        per = "steps_per_generation"
        steps = keys.integer(per if keys.has(per) else "gradient_accumulation_steps")
        steps = steps if self.at >= FIRST_ACCUMULATED else 1
        per_device, group = keys.integer(size), keys.integer(self._name("num_generations"))
        if not (per_device and steps and group):
            return
        least = group // gcd(group, per_device * steps)
        number = number_of_processes([word.text for word in self.launch.words])
        if number is not None and number % least:
            why = f"{per_device * steps} rollouts of each of {number} processes fill no groups of"
            self.stops(f"{why} {group}", place, size)
        elif number is None and least > 1:
            yield (
                f"the launch has a multiple of {least} processes: TRL refuses groups of {group} "
                f"that {per_device * steps} rollouts a process do not fill"
            )

    def _checks(self) -> str:
        """Return where TRL checks the groups; empty if the program has not got TRL's class that
        does. A trainer of somebody's own need not derive from TRL's."""
        place, kinds = "config.py: __post_init__", "Trainer|Config"
        if self.at < FIRST_MINIBATCHES:
            place, kinds = "trainer.py: __init__", "Trainer"
        names = " ".join(self.request.names)
        named = re.search(rf"(?:^| )trl\.(?:\w+\.)*(?:GRPO|RLOO)(?:{kinds})\b", names)
        is_assumed = names or (self.launch.words and self.request.assumes)
        return "" if is_assumed and not named else f"trl/trainer/{self.request.script}_{place}"

    def _raw(self) -> Iterator[AuditNote]:
        """Yield a remark if the correction divides by raw probabilities of vLLM (#4159)."""
        if self.request.script != "grpo" or self.at >= FIRST_PROCESSED or not self._correction()[0]:
            return
        because = (
            f"TRL {self.version} leaves vLLM's default; since 0.24.0 it asks for processed ones"
        )
        instead = "vllm_importance_sampling_correction=False, or take TRL 0.24.0"
        yield from two_temperatures(self.keys, "temperature", because, instead, "use_vllm")

    def _advantage(self) -> str | None:
        if self.is_rloo:
            return "rloo"
        return {"group": "grpo", "batch": "grpo", "none": "dr_grpo"}.get(self._scale() or "")

    def _scale(self) -> str | None:
        """Return the divisor of the advantage: `group`, `batch` or `none`; None if unknown."""
        if not self.is_rloo and self.at < FIRST_CLIP and self.fork is None:
            return "group"
        text = (self.keys.text("scale_rewards") or "").lower()
        named = {"true": "group", "false": "none"}.get(text, text) or None
        if self.swapped and named is not None:
            return "none" if named == "group" else "group"
        return named

    def regime(self) -> TrainingRegime:
        """Return the training regime in this release."""
        keys, name, fork = self.keys, self._name("num_iterations"), self.fork
        if fork is not None and self.request.unknown:
            return TrainingRegime(None, self.request.unknown)
        if fork is not None and fork.ahead and keys.number(fork.ahead) != 0:
            return TrainingRegime(False, f"{fork.title} samples {fork.ahead} batches ahead")
        if not self.is_rloo and self.at < FIRST_CLIP:
            return TrainingRegime(True, f"TRL {self.version} makes one update of each batch")
        iterations = keys.integer(name)
        if self.is_rloo and name == "num_ppo_epochs":
            parts = keys.integer("num_mini_batches")
            if iterations is None or parts is None:
                return TrainingRegime.unread([name, "num_mini_batches"])
            return TrainingRegime.of_steps(iterations * parts, f"{name} × num_mini_batches")
        if iterations is None:
            return TrainingRegime(None, keys.why_unknown(name))
        if self.at < FIRST_MINIBATCHES:
            return TrainingRegime.of_steps(iterations, f"{name} {iterations}")
        per, accumulated = "steps_per_generation", "gradient_accumulation_steps"
        steps = keys.integer(per)
        # The default of each of the two is the other, or 1.
        is_open = keys.opaque or keys.has(per)
        each = keys.integer(accumulated) or (None if is_open else 1)
        if keys.has("generation_batch_size") and not keys.has(per):
            whole = keys.integer("generation_batch_size")
            update = (keys.integer("per_device_train_batch_size") or 0) * (each or 0)
            if iterations <= 1 and whole and whole <= update:
                why = f"an update takes {update} rollouts a process, a rollout batch has {whole}"
                return TrainingRegime(True, why, steps=1)
            why = "generation_batch_size over the processes, which the launch does not say"
            return TrainingRegime(None if iterations <= 1 else False, why)
        if each is None or (keys.has(per) and steps is None):
            return TrainingRegime(None, keys.why_unknown(accumulated if steps else per))
        updates = iterations * max((steps or each) // each, 1)
        return TrainingRegime.of_steps(updates, f"{name} × {per} / {accumulated}")

    # ------------------------------------------------------------------- the surroundings of the KL

    def _read(self, key: str, otherwise: str) -> str:
        """Return the value of an option. If it is unknown, note it and return `otherwise`."""
        if key not in self.keys.defaults and not self.keys.has(key):
            return otherwise
        return self.read(key, otherwise)

    def _is_on(self, key: str) -> bool:
        return self._read(key, "False").strip().lower() in ("true", "1", "yes", "on")

    def _clip(self) -> Range | None:
        low, high = (self.keys.number(self._name(key)) for key in ("epsilon", "epsilon_high"))
        given = self.keys.last("epsilon_high")
        if low is None or (high is None and given is not None and UNKNOWN in given.text):
            return None
        return low, low if high is None else high

    def _surroundings(self) -> Surroundings:
        return replace(
            self._around_rloo() if self.is_rloo else self._around_grpo(),
            moving_reference=self._moving_reference(),
            notes=tuple(self._notes()),
            unread=(
                *self.unread,
                *truncated(self.keys, top_p="top_p", top_k="top_k", min_p="min_p"),
            ),
        )

    def _around_rloo(self) -> Surroundings:
        key = self._name("normalize_advantages")
        divided = self._is_on(key)
        return Surroundings(
            advantage_divided_by="batch_std" if divided else "nothing",
            divided_because=key if divided else "",
            ratio="sequence",
            clip=self._clip(),
        )

    def _around_grpo(self) -> Surroundings:
        scale = self._scale()
        if scale is None:
            self.unread.append(f"scale_rewards is group: {self.keys.why_unknown('scale_rewards')}")
        named = self._loss_type()
        own = self.own_loss
        correction, weight = self._correction() if not own else ("", None)
        level = self._read("importance_sampling_level", "token")
        is_hidden = self.keys.has("loss_type") and self.keys.text("loss_type") is None
        clips = self.at >= FIRST_CLIP and named in ("grpo", "bnpo", "dr_grpo", "dapo", "luspo")
        padded = named == "luspo" and self.at < (1, 10)
        plain = "gspo" if level == "sequence" else "ppo"
        ratio: Ratio = (
            "sequence_mean" if level == "sequence" or named == "vespo" or own else "token"
        )
        if self.at < FIRST_CLIP and self.fork is None:
            ratio = "none"  # exp(logp - logp.detach()), to no other policy
        return Surroundings(
            advantage_divided_by=_DIVIDED_BY.get(scale or "", "group_std"),
            divided_because=f"scale_rewards {self.keys.text('scale_rewards') or 'group'}"
            + (f", which TRL {self.version} reads the other way" if self.swapped else ""),
            own_rollout_in_mean=True,
            policy_loss=own or (named if named in LOSS_STEPS else plain),
            ratio=ratio,
            clip=self._clip() if clips and not is_hidden else None,
            bound_notes=tuple(self._bound_notes(named, level)),
            correction=correction,
            engine_weight=weight,
            length_weighted=named in ("grpo", "sapo"),
            kl_loss_factor=None if padded else 1.0,
            aggregation_because=f"loss_type {named}",
            entropy=float(self.keys.number("entropy_coef") or 0.0)
            if "entropy_coef" in self.keys.defaults
            else 0.0,
        )

    def _loss_type(self) -> str:
        """Return the aggregation of the loss. Before 0.17.0 no option chooses it."""
        if self.fork is None and self.at < FIRST_LOSS_TYPE:
            return "bnpo" if self.at >= FIRST_CLIP else "grpo"
        return self._read("loss_type", "grpo")

    def _correction(self) -> tuple[str, EngineWeight | None]:
        """Return the correction against vLLM in words, empty without one, and as the laboratory's
        weight; None where its kind or its bound is not known."""
        keys, start = self.keys, "vllm_importance_sampling_"
        key = f"{start}correction"
        if key not in keys.defaults or not self._is_on("use_vllm") or not self._is_on(key):
            return "", None
        mode, given = keys.text(f"{start}mode"), keys.last(f"{start}mode")
        modes = [mode or "token_truncate"]
        if not mode and f"{start}mode" in keys.defaults:
            modes = [text for _, text in given.choices] if given else []
        words = [f"{_MODES.get(each, ('', each))[1]} against vLLM" for each in modes]
        text = " or ".join(words) or "weights or masks against vLLM, whose kind is not known"
        if len(modes) != 1 or modes[0] not in _MODES:
            return text, None
        bounds = {end: keys.number(f"{start}{end}") for end in _OF_ENGINE[2:]}
        most = bounds["cap"] or bounds["clip_max"]
        weight = (
            EngineWeight(_MODES[modes[0]][0], bounds["clip_min"] or 0.0, most) if most else None
        )
        return text, weight

    def _bound_notes(self, named: str, level: str) -> Iterator[BoundNote]:
        """Yield where a bound of this release is not what its name says (_compute_loss)."""
        keys = self.keys
        lines = keys.lines("loss_type", "epsilon_high")
        other = self.fork or keys.has("use_liger_loss") or keys.has("use_liger_kernel")
        if not other and FIRST_LOSS_TYPE <= self.at < _FIRST_WITH.get(named, (99,)):
            is_own = self.request.options_of_its_own is None  # its trainer may be, too
            yield BoundNote(
                f"TRL {self.version}'s trainer has no loss_type {named}: error at the first loss",
                "loss_type grpo" + ", or audit the program whose own trainer has it" * is_own,
                lines,
                wrong=not is_own,
            )
        if named == "cispo":
            given = keys.number("epsilon_high") if keys.has("epsilon_high") else None
            most = given if given is not None else keys.number("epsilon")
            if most is not None and most < 1:
                yield BoundNote(
                    f"TRL's cispo takes epsilon_high as the bound itself, not as 1 + it: every "
                    f"weight is cut to {most:g}, on-policy too, and a KL in the loss is not, so β "
                    f"counts × {1 / most if most else 0:.3g}",
                    "epsilon_high 5.0 (a bound above 1)",
                    lines,
                    wrong=True,
                )
        if self.own_loss == "gmpo" and self._is_on("use_vllm"):
            yield BoundNote(
                "GMPOTrainer does not multiply by the weights against vLLM, which it computes by "
                "default",
                "vllm_importance_sampling_correction False, or loss_type grpo of GRPOTrainer with "
                "importance_sampling_level sequence",
                keys.lines("use_vllm"),
            )
        delta = keys.number("delta") if keys.has("delta") else None
        clip = self._clip()
        if delta is not None and clip is not None and delta <= 1 + clip[1]:
            yield BoundNote(
                f"delta {delta:g} is within the clip: it cuts the ratio of every sign of the "
                f"advantage, and 1 + epsilon_high {1 + clip[1]:g} cuts nothing",
                f"delta above {1 + clip[1]:g}, for the second clip of negative advantages alone",
                keys.lines("delta"),
            )
        if keys.has("off_policy_mask_threshold") and keys.number("off_policy_mask_threshold"):
            yield BoundNote(
                "off_policy_mask_threshold drops responses of negative advantage only, by a "
                "sampled KL that can be below 0 for a response that is far: what is kept pushes up",
                "vllm_importance_sampling_mode token_truncate, which weighs both signs",
                keys.lines("off_policy_mask_threshold"),
            )
        if named == "vespo" and "masks" in self._correction()[0]:
            yield BoundNote(
                "VESPO takes the weights against vLLM into the response's own: one masked token "
                "counts as 1e-8, and the response is gone",
                "vllm_importance_sampling_mode token_truncate",
                keys.lines("vllm_importance_sampling_mode"),
            )
        if level == "sequence" and named in ("bnpo", "dr_grpo", "dapo"):
            yield BoundNote(
                f"GSPO is the mean over responses, and loss_type {named} is not", "loss_type grpo"
            )
        if level == "sequence" and named == "sapo":
            yield BoundNote(
                "SAPO gates the response's geometric mean here, and each token in its paper",
                "importance_sampling_level token",
            )

    def _moving_reference(self) -> str:
        if not self._is_on("sync_ref_model"):
            return ""
        steps, alpha = (
            self._read(f"ref_model_{key}", "…") for key in ("sync_steps", "mixup_alpha")
        )
        return (
            f"every {steps} steps it becomes {alpha} of the policy and the rest of itself "
            "(sync_ref_model)"
        )

    def _notes(self) -> Iterator[str]:
        if self._read("off_policy_mask_threshold", ""):
            yield "off_policy_mask_threshold masks the policy loss, not the KL"
        if (quantile := self.keys.number("top_entropy_quantile")) is not None and quantile < 1:
            yield "top_entropy_quantile masks tokens of the policy loss, not of the KL"
        if self._read("reward_clip_range", "") and self.is_rloo:
            yield "reward_clip_range clips the task reward, before the KL is taken off"

    def _changes(self, loss: InLoss, oldest: str) -> Iterator[LaunchChange]:
        """Yield the change of k3 in the loss to the token's reverse KL, if the release has it."""
        key = "use_bias_correction_kl"
        written = f"--{key} True" if self.written.startswith("--") else f"{key}=True"
        edit = self.keys.edit(key, "True", written) if loss.active and self._corrects() else None
        if edit is not None:
            is_old = version_tuple(oldest) < FIRST_CORRECTED
            since = "if TRL is 0.26.0 or later, " if is_old else ""
            yield LaunchChange(f"{since}k3 times the importance ratio in the loss", (edit,))
