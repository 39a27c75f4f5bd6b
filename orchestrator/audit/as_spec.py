"""A launch script as a spec of one cell: each of its keys is in the spec, or in a comment.

    script --launch_of--> Launch, LaunchReading --spec_of--> LaunchSpec --spec_text--> YAML

The library's manifest reads the fields, as it reads orch's own launches. The KL, the correction of
the engine's mismatch and the defaults of a release without a manifest are those of the audit's
reading. What the script leaves to its data, its environment or code of its own is `???`: a plan
asks for it.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any, Literal

import yaml

from orchestrator import plugins
from orchestrator.audit import own_code, pipeline
from orchestrator.audit.judge import AuditFinding, judge
from orchestrator.audit.key_check import unnumbered
from orchestrator.audit.reading import as_number, flags_in_order
from orchestrator.audit.surroundings import estimator_name
from orchestrator.errors import SelectionError
from orchestrator.estimators import choices
from orchestrator.identity import flatten
from orchestrator.library.launches import (
    UNKNOWN,
    UNSET,
    Given,
    InLoss,
    InReward,
    Launch,
    LaunchReading,
    Surroundings,
)
from orchestrator.library.manifest import Manifest, ReleaseTable, UnreadField, equal
from orchestrator.library.needs import name_of
from orchestrator.library.protocol import Backend
from orchestrator.library.release_marks import Replaced
from orchestrator.settings import Frozen, Settings
from orchestrator.spec.fields import FIELDS
from orchestrator.spec.redaction import HIDDEN, hide, hide_in_text, holds_token

ASK = "???"
"""The value of a field that a person must give. A spec that has it is refused with its name."""
NEEDED = (
    "model.path",
    "data.path",
    "advantage.estimator",
    "kl.estimator",
    "rollout.group_size",
    "rollout.max_response_tokens",
    "batch.num_prompts",
    "optimizer.learning_rate",
    "optimizer.num_warmup_steps",
    "num_train_steps",
)
"""Fields without which a launch is another one."""
OWN = ("model.path", "data.path")
"""Fields for which the library's default stands in for nothing."""
MARK = "-"
"""The value of a key in a launch that is made only to see what the manifest calls the key."""
OF_OWN: Mapping[Replaced, tuple[str, ...]] = {
    "loss": ("loss.policy", "kl.estimator"),
    "advantage": ("advantage.estimator",),
    "samples": ("advantage.estimator", "rollout.temperature", "rollout.top_p"),
    "trainer": ("loss.policy", "advantage.estimator", "kl.estimator"),
}
"""What somebody's own code takes the place of -> the fields that it decides."""
REWARD = re.compile(
    r"(?i)reward_(?:func|fn|model|manager|path|pretrain)|custom_reward|rm_url|remote_url|env_class"
    r"|^reward\.model|agent_(?:func_)?path"
)
"""A key that names the script's reward."""
UNSAID, NO_VALUE = "no key of the launch says it", "it gives no value that a cell has"
TRAINS = re.compile(
    r"(?i)fp16|dtype|precision|lora|peft|quant|load_in_|normali[sz]e_reward|reward_clip|whiten"
    r"|filter|dropout|freeze|mask_trunc|overlong|penalty|entropy|temperature|top_[pk]|min_lr"
)
"""A key of the training itself, for a person to check where no field has it."""
NOT_TRAINING = re.compile(r"(?i)(?:^|[._])(?:val|eval|test)|^(?:logging|save)_|(?<!long_)prompts?$")
ASKED = {
    "precision.training": re.compile(r"(?:^|[._])fp16$"),
    "optimizer.max_grad_norm": re.compile(r"[.]grad_clip$"),
    "lora.rank": re.compile(r"(?:^|[._])(?:lora[._]r(?:ank)?|use_peft|peft_config)$"),
    "num_train_steps": re.compile(r"^total_episodes$"),
    "batch.num_minibatches": re.compile(r"^num_mini_batches$"),
    "max_staleness_steps": re.compile(r"[.]staleness_threshold$"),
    "rollout.top_p": re.compile(r"^generation_kwargs$"),
    "rollout.temperature": re.compile(r"^generation_kwargs$"),
}
"""Field -> a key that makes it another one, where the library's manifest does not read the key."""
OFF = (None, False, 0, "", "none", "null")
ADAPTERS = re.compile(r"\(peft_config\)$|^peft\.LoraConfig\(|\.get_peft_model$|^unsloth(?:\.|$)")
"""A name or keyword of a program that gives its model adapters (Launch.names)."""

Outcome = Literal["held", "asked", "default", "placed", "replaced", "unheld", "idle", "secret"]
_WORDS: Mapping[Outcome, str] = {
    "held": "{source} -> {fields}",
    "asked": "{source}: {note}; give {fields}",
    "default": "not in the spec: {source}: the spec's launch has it too",
    "placed": "not in the spec: {source}: a spec has it as {fields}: set it there",
    "replaced": "not in the spec: {source}: orch's launches have {note}: this is another training",
    "unheld": "not in the spec: {source}: no field holds it{note} (backend.extra may pass it on)",
    "idle": "not in the spec: {source}: it has no effect: {note}",
    "secret": "not in the spec: {source}: a secret belongs into the environment",
}


@dataclass(frozen=True)
class KeyLine:
    """What became of one key of the script.

    held: it is in `fields`. asked: a person must give `fields`. default: the release has the same
    value without it. placed: a spec has it as `fields`, for a person to set. replaced: orch sends
    another value. unheld: no field has it; note: nor has the spec's release. idle: the library does
    not use it. secret: its value is not copied.
    """

    key: str
    value: object
    outcome: Outcome
    fields: tuple[str, ...] = ()
    note: str = ""


@dataclass(frozen=True)
class LaunchSpec:
    """A launch as fields of a cell, and what became of each of its keys."""

    library: str
    version: str
    """The release whose tables read the keys."""
    runs_on: str
    """The release that the script runs on."""
    guessed: bool
    """True if nothing names it: the launch's keys led to it."""
    fields: Mapping[str, Any]
    lines: tuple[KeyLine, ...]
    asked: Mapping[str, str]
    """Field -> why a person must give it."""
    remarks: tuple[str, ...]
    """What the script trains and the spec does not, each a sentence."""


def launch_of(
    text: str, name: str, files: Mapping[str, str], versions: Mapping[str, str]
) -> tuple[Launch, LaunchReading, int]:
    """Return the first launch of a run without arguments, with somebody's own code around its loss,
    its reading, and the number of launches.

    Raise SelectionError if the keys of none are known, UnreadableScript if the file has none.
    """
    readings = list(pipeline.readings(text, name, files, versions))
    launches = {
        json.dumps(typed(launch, reading), sort_keys=True, default=str): (launch, reading)
        for launch, reading, is_use in reversed(readings)
        if reading.held is not None
        and reading.version[:1].isdigit()  # no fork with keys of its own
        and not (is_use and not all(use for *_, use in readings))
    }
    if not launches:
        unread = ", ".join(dict.fromkeys(f"{r.library} {r.version}" for _, r, _ in readings))
        known = f"{name}: its launch is of {unread}, whose keys orch does not know"
        numbered = {r.library for _, r, _ in readings if r.version[:1].isdigit()}
        for library in sorted(numbered & {*plugins.names()}):
            read = ", ".join(f"{library}@{each}" for each in plugins.load(library).versions)
            known += f". If those of another release fit it, say which: --library {read}"
        raise SelectionError(known)
    launch, reading = [*launches.values()][-1]
    program = (name, pipeline.script_of(text, name)[0])
    return own_code.with_own_code(launch, reading, program), reading, len(launches)


def typed(launch: Launch, reading: LaunchReading) -> dict[str, object]:
    """Return the keys of a launch with typed values; the last value of a key counts."""
    return {key: _value(each[-1].text) for key, each in _given(launch, reading).items() if each}


def _given(launch: Launch, reading: LaunchReading) -> Mapping[str, Sequence[Given]]:
    """Return the keys of a launch, and those flags of its program that the library has not got."""
    held = reading.given
    flags = flags_in_order(launch.words[own_code.entry_at(launch.words)[0] + 1 :], dashes=False)
    known = tuple(key.replace("-", "_") for key in held)
    rest = {
        key: [value]
        for key, value in flags
        if not any(k.startswith(key.removeprefix("no_")) for k in known) and "config" not in key
    }
    given = {**rest, **held}
    lists: dict[str, list[Given]] = {}  # `a` for `a.0` and `a.1`
    for key in [key for key, each in given.items() if each and key.rpartition(".")[2].isdigit()]:
        lists.setdefault(key.rpartition(".")[0], []).append(given.pop(key)[-1])
    joined = {key: json.dumps([e.text for e in each]) for key, each in lists.items()}
    return {**given, **{key: [replace(lists[key][0], text=text)] for key, text in joined.items()}}


def _value(text: str) -> object:
    text = text.strip()
    if own_code.OPEN.search(text):
        return text.replace(UNKNOWN, "?").replace(UNSET, "")
    if (number := as_number(text)) is not None:
        return int(number) if number.is_integer() and "e" not in text.lower() else number
    if text in ("True", "true", "False", "false"):
        return text.lower() == "true"
    if text in ("null", "None", "~"):
        return None
    if text.startswith(("[", "{")):
        try:
            plain: object = yaml.safe_load(text)
        except yaml.YAMLError:
            return text
        return plain
    return text.strip("'\"")


def spec_of(launch: Launch, reading: LaunchReading) -> LaunchSpec:
    """Return a launch as fields of a cell. Raise SelectionError for a library that orch only reads.

    A field that a person must give is ASK.
    """
    backend = plugins.load(reading.library) if reading.library in plugins.names() else None
    if backend is None or backend.manifest is None:
        raise SelectionError(f"orch reads launches of {reading.library} and trains with none")
    manifest, version = backend.manifest, reading.version
    if version not in manifest.versions:
        version = backend.neighbour(version) if version else manifest.release(None)
    fields, lines, missing = _by_keys(backend, launch, reading, version)
    if adapters := [name for name in launch.names if ADAPTERS.search(name)]:
        why = f"the script has {', '.join(adapters)}; without LoRA drop lora; orch's has no dropout"
        missing |= dict.fromkeys(("lora.rank", "lora.alpha", "lora.targets"), why)
    with_keys = {name for line in lines if line.outcome == "held" for name in line.fields}
    missing |= {name: UNSAID for name in OWN if name not in with_keys and name not in missing}
    lines = list(_as_read(lines, reading))
    finding = judge(reading, replace(launch, own=()), "")
    remarks = [
        *(f"taken for granted: {each}" for each in finding.assumes),
        *_of_reading(fields, launch, finding, missing),
        *_first_file(fields),
        *_another_training(lines),
    ]
    flat = dict(flatten(fields))
    if opaque := launch.open_end or (reading.held.opaque if reading.held is not None else ""):
        by_key = {row.field for row in manifest.rows if row.key}
        by_key |= {"data.max_prompt_tokens"}
        known = {name for name, value in flat.items() if value is not None}
        for name in sorted({*known, "data.max_prompt_tokens", "batch.num_minibatches"} - with_keys):
            if not by_key.isdisjoint((name, name.rpartition(".")[0])) and name[:3] != "kl.":
                missing.setdefault(name, f"no key gives it, and {opaque}")
    if reading.own_group:
        why = f"{reading.own_group} is a fork's key, and may multiply it"
        names = ("rollout.group_size", "batch.num_minibatches", "num_train_steps")
        missing |= dict.fromkeys((*names, "optimizer.num_warmup_steps"), why)
    elif reading.group_size is None:
        missing.setdefault("rollout.group_size", UNSAID)
    prompts, parts = (flat.get(f"batch.{name}") for name in ("num_prompts", "num_minibatches"))
    if isinstance(prompts, int) and isinstance(parts, int) and (not parts or prompts % parts):
        missing["batch.num_minibatches"] = (
            f"the script makes {parts} minibatches of {prompts} prompts, and a cell's hold whole "
            f"ones: a divisor of {prompts}"
        )
    sizes = manifest.rows_of("data.num_prompts", version)
    needed = NEEDED if any(row.meaning(None) for row in sizes) else (*NEEDED, "data.num_prompts")
    missing |= {name: UNSAID for name in needed if flat.get(name) is None and name not in missing}
    known = {name for name in FIELDS if name.partition(".")[0] in Settings.model_fields}
    missing = {name: why for name, why in missing.items() if name in known}
    for name in missing:
        _put(fields, name, ASK)
    for section in ("model", "data"):
        path = fields[section]["path"]
        _put(fields, f"{section}.name", section if path == ASK else name_of(str(path)))
    return LaunchSpec(
        reading.library,
        version,
        (reading.held.named if reading.held is not None else "") or reading.version,
        finding.release_guessed,
        fields,
        tuple(lines),
        {name: hide_in_text(why) for name, why in missing.items()},
        tuple(map(hide_in_text, remarks)),
    )


def _by_keys(
    backend: Backend, launch: Launch, reading: LaunchReading, version: str
) -> tuple[dict[str, Any], list[KeyLine], dict[str, str]]:
    """Return the fields that the keys of a launch decide over the defaults of its release, what
    becomes of each key, and why fields must be given."""
    manifest = backend.manifest
    assert manifest is not None  # noqa: S101 - spec_of asks
    given, given_ = typed(launch, reading), _given(launch, reading)
    own: dict[str, str] = {}  # the manifest's name of a key, which is one for all releases
    for key in given:
        marked = backend.values_of_anybody((), {key: MARK}, version)
        own[key] = next((name for name, value in marked.items() if value == MARK), key)
    open_ = {k for k, v in given.items() if v == "" or own_code.OPEN.search(given_[k][-1].text)}
    secret = {k for k, v in given.items() if hide(v, k) != v or holds_token(str(v))}
    program = (*(word.text for word in launch.words), reading.advantage_estimator or "")
    former: dict[str, object] = {}
    if reading.version != version and reading.held is not None:
        newer = manifest.tables[version].defaults
        own_defaults = ((k, _value(text or "null")) for k, text in reading.held.defaults.items())
        former = {
            k: v for k, v in own_defaults if v not in ("?", "") and not equal(newer.get(k), v)
        }

    def read(
        values: Mapping[str, object], without: str = ""
    ) -> tuple[dict[str, Any], tuple[UnreadField, ...]]:
        every = {k: v for k, v in {**former, **values}.items() if k != without}
        launched = backend.values_of_anybody(program, every, version)
        fields, refused = manifest.read_in_part(launched, version)
        return _plain({k: v for k, v in fields.items() if k in Settings.model_fields}), refused

    lost = {key for key in given if _is_lost(key, own[key], reading, manifest.tables[version])}
    known = {key: value for key, value in given.items() if key not in open_ | secret | lost}
    refused = {each.key: each for each in read(known)[1]}
    bad = {key: refused[name] for key, name in own.items() if key in known and name in refused}
    known = {key: value for key, value in known.items() if key not in bad}
    fields = read(known)[0]
    flat = dict(flatten(fields))
    lines = []
    missing = {
        each.field: f"{name}={each.value} by default: {NO_VALUE}"
        if former.get(name, ASK) == each.value
        else UNSAID
        for name, each in refused.items()
    }
    for key, value in given.items():
        used: set[str] = set()
        names = tuple(dict.fromkeys(row.field for row in manifest.rows if row.key == own[key]))
        if key in lost:
            names = tuple(sorted(_changed(flat, read({**known, key: value})[0])))
        elif key in known:
            used = ({*names} & flat.keys()) | _changed(flat, read(known, key)[0])
        elif key in bad:
            names = (bad[key].field,)
        elif not names and own[key] in manifest.fields_of_keys:
            names = (manifest.fields_of_keys[own[key]],)
        else:
            some = (_changed(flat, read({**known, key: v})[0]) for v in (True, 1, 0.5, MARK))
            names = tuple(dict.fromkeys((*names, *sorted(set().union(*some)))))
        if key in secret:
            line = KeyLine(key, HIDDEN, "secret", names, "it holds a secret, which is not copied")
        elif (key in open_ | lost and names) or key in bad:
            note = f"the script takes it from {', '.join(given_[key][-1].why[:1]) or 'its run'}"
            if key not in open_:
                lacks = f"{reading.library} {reading.version} has no such key, and a fork may"
                note = NO_VALUE if key in bad else lacks
            line = KeyLine(
                key,
                value,
                "asked",
                names,
                note,
            )
        else:
            line = _line(manifest, reading, version, own[key], key, value, tuple(sorted(used)))
        lines.append(line)
        missing |= _asked_by(line, missing)
    return fields, lines, missing


def _asked_by(line: KeyLine, missing: Mapping[str, str]) -> dict[str, str]:
    """Return why a person must give the fields of a key."""
    if line.outcome in ("asked", "secret"):
        return dict.fromkeys(line.fields, f"{_source(line)}: {line.note}")
    names = line.fields if line.outcome == "held" else ()
    unsaid = [name for name in names if missing.get(name) == UNSAID]
    return dict.fromkeys(unsaid, f"{_source(line)}: {NO_VALUE}")


def _plain(nested: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields with their sections as mappings."""
    return {
        name: _plain(value.model_dump() if isinstance(value, Frozen) else value)
        if isinstance(value, Mapping | Frozen)
        else value
        for name, value in nested.items()
    }


def _changed(flat: Mapping[str, Any], nested: Mapping[str, Any]) -> set[str]:
    """Return the fields in which `nested` differs; the section where `flat` has none of it."""
    other = dict(flatten(nested))
    names = {n for n in flat.keys() | other.keys() if flat.get(n, ASK) != other.get(n, ASK)}
    return {n for n in names if n in flat or n.rpartition(".")[0] not in flat}


def _is_lost(key: str, name: str, reading: LaunchReading, table: ReleaseTable) -> bool:
    """Return True for a key of the spec's release that the launch's own release has not got, nor
    the configuration of its checkout."""
    held = reading.held
    has = held is None or not held.exact or held.table.has(unnumbered(key)) or key in held.checkout
    return not has and table.has(name)


def _line(
    manifest: Manifest,
    reading: LaunchReading,
    version: str,
    name: str,
    key: str,
    value: object,
    used: tuple[str, ...],
) -> KeyLine:
    """Return what becomes of a key whose value is known. name: the manifest's name of it."""
    if used:
        return KeyLine(key, value, "held", used)
    sent = manifest.constants_of(version).get(name)
    if sent is not None and sent.accepts and not any(equal(x, value) for x in sent.accepts):
        return KeyLine(key, value, "replaced", note=f"{name}={sent.value}")
    if sent is not None and equal(sent.value, value):
        return KeyLine(key, value, "default")
    system = [f"system.{row.field}" for row in manifest.system if name in row.keys]
    if place := manifest.fields_of_keys.get(name) or next(iter(system), ""):
        return KeyLine(key, value, "placed", (place,))
    table, held = manifest.tables[version], reading.held
    is_sent = sent is not None or NOT_TRAINING.search(name)  # orch's own value may be another
    if not is_sent and name in table.defaults and equal(table.defaults[name], value):
        return KeyLine(key, value, "default")
    tables = (table, held.table, *held.others) if held is not None else (table,)
    having = [t.version for t in tables for n in (key, name) if t.has(unnumbered(n))]
    asked = tuple(field for field, own_key in ASKED.items() if own_key.search(key))
    if having and asked and value not in OFF:
        return KeyLine(key, value, "asked", asked, "orch does not read it")
    if sent is not None:
        return KeyLine(key, value, "unheld", note=f", and orch's launches have {sent.value}")
    lacks = "" if version in having else f", and {reading.library} {version} has no such key"
    return KeyLine(key, value, "unheld", note=lacks)


def _of_reading(
    fields: dict[str, Any], launch: Launch, reading: AuditFinding, missing: dict[str, str]
) -> Iterator[str]:
    """Put the audit's KL and what is around it into the fields, ask for what somebody's own code
    decides, and yield what no field says."""
    kl, was = _kl(reading, missing), fields.get("kl") or {"estimator": "none"}
    alike = ("estimator", "placement", "beta")
    if kl is None or any(was.get(k) != kl.get(k) for k in alike if k in {*kl, *was}):
        fields["kl"] = kl or {"estimator": ASK}
    else:
        missing.pop("kl.estimator", None)
    for each in launch.own:
        missing |= dict.fromkeys(OF_OWN[each.kind], own_code.why(launch.own))
    if any(name.endswith("(callbacks)") for name in launch.names):
        yield "the script hands its trainer callbacks, which may change settings while it trains"
    regime, parts = reading.regime, (fields.get("batch") or {}).get("num_minibatches", 1)
    if regime.ahead and not fields.get("max_staleness_steps"):
        missing["max_staleness_steps"] = regime.why
    elif regime.steps and max(regime.steps, 1) != parts and "batch.num_minibatches" not in missing:
        yield f"the script makes {regime.because}, the spec's launch {parts}: another training"
    yield from reading.stops
    if reading.held is not None and reading.held.fork:
        yield reading.held.fork
    if reading.no_gradient:
        dead = f"the script's KL in the loss has no gradient: {reading.no_gradient}"
        yield f"{dead}; the spec has none there, as one of its release may act"
    around = reading.surroundings
    loss = "ppo" if around is None or "policy" in fields.get("loss", {}) else around.policy_loss
    if reading.bound is not None and (reading.rollout_kl or loss != "ppo"):
        yield f"the script's loss is another than the spec's: {reading.bound.step}"
    elif around is not None and around.old_is_sampler:
        yield "the script's ratio is to the engine's probabilities, a cell's to the trainer's own"
    if around is not None:
        yield from _of_surroundings(fields, around)


def _of_surroundings(fields: dict[str, Any], around: Surroundings) -> Iterator[str]:
    """Put the facts around the KL into the fields, and yield what no field says."""
    if around.controller and not fields["kl"].get("controller"):
        yield f"the script's β moves ({around.controller}), the spec's stays: another training"
    if around.moving_reference and "reset_reference_every_steps" not in fields["kl"]:
        yield f"the script's reference policy moves: {around.moving_reference}"
    weight, loss = around.engine_weight, fields.setdefault("loss", {})
    if weight is not None:
        most = {"most": weight.most} if isfinite(weight.most) else {}
        known = {"kind": weight.kind, "least": weight.least, **most}
        loss["correction"] = {**(loss.get("correction") or {}), **known}
    elif around.correction and not loss.get("correction"):
        yield f"the script corrects for the engine: {around.correction}"
    elif not around.correction and not around.rejected and loss.get("correction"):
        loss["correction"] = None
    if around.entropy:
        loss["entropy_bonus"] = around.entropy
    if around.length_weighted and loss.get("aggregation") == "token_mean":
        loss["aggregation"] = "sequence_mean"
    clip = loss.get("clip") or {}
    if around.also_drops and not clip.get("dual"):
        yield f"the script's loss also drops {around.also_drops}"
    elif clip.get("dual") and not around.also_drops and around.ratio == "token":
        clip["dual"] = None


def _kl(reading: AuditFinding, missing: dict[str, str]) -> dict[str, Any] | None:
    """Return the KL of a finding as a cell has it; None, and why, if no cell has it."""
    terms: dict[str, InReward | InLoss] = {"reward": reading.in_reward, "loss": reading.in_loss}
    without = {"loss"} if reading.no_gradient else set()
    active = {place: term for place, term in terms.items() if term.active and place not in without}
    names = {place: estimator_name(term) for place, term in active.items()}
    if reading.verdict == "undetermined" or any(term.active is None for term in terms.values()):
        missing["kl.estimator"] = reading.why
    elif reading.decided is not None:
        missing["kl.estimator"] = reading.decided[1]
    elif len(active) == 2:
        why = "two KL terms act at once, and a cell has one"
        missing |= dict.fromkeys(("kl.estimator", "kl.placement", "kl.beta"), why)
    elif any(name not in choices() for name in names.values()):
        missing["kl.estimator"] = f"no cell has {', '.join(names.values())}"
    elif not active:
        missing.pop("kl.estimator", None)
        return {"estimator": "none"}
    else:
        ((place, term),) = active.items()
        beta = {"beta": ASK if term.beta is None else term.beta}
        missing |= {"kl.beta": "the script does not fix it"} if term.beta is None else {}
        missing.pop("kl.estimator", None)
        return {"estimator": names[place], "placement": place, **beta}
    return None


def _first_file(fields: dict[str, Any]) -> Iterator[str]:
    """Put the first file of a list, without weights, into `data.path`; yield a sentence if the list
    has others."""
    paths = fields.setdefault("data", {}).get("path") or []
    paths = paths.split(",") if isinstance(paths, str) else paths
    paths = [each for each in paths if as_number(str(each)) is None]
    fields["data"] |= {"path": paths[0]} if paths else {}
    fields.setdefault("model", {})
    if len(paths) > 1:
        yield f"data.path is the first of the script's {len(paths)} files: join them"


def _another_training(lines: list[KeyLine]) -> Iterator[str]:
    """Yield what changes the training and no field has: the reward, orch's values, unheld keys."""
    named = [_source(x) for x in lines if x.outcome != "held" and REWARD.search(x.key)]
    whose = f"is {', '.join(named)}" if named else "is named by no key"
    yield f"the spec trains on another reward: the script's {whose}; set data.reward"
    for line in lines:
        if line.outcome == "replaced":
            yield f"the script has {_source(line)}, orch's launches {line.note}: another training"
    unheld = [x for x in lines if x.outcome == "unheld" and not NOT_TRAINING.search(x.key)]
    trains = [x for x in unheld if x.note or (x.value not in OFF and TRAINS.search(x.key))]
    if named := [_source(x) for x in trains if not REWARD.search(x.key)]:
        yield f"no field holds {', '.join(named)}: pass on what you need in backend.extra"


def _as_read(lines: list[KeyLine], reading: LaunchReading) -> Iterator[KeyLine]:
    """Yield the lines. A key that the audit read for the KL or the correction is in their field, or
    in none where it has no effect."""
    idle = {each.flag: each.why for each in reading.inactive}
    read_keys = {each.key for each in reading.settings} - idle.keys()
    for line in lines:
        place: tuple[str, ...] = ()
        free = line.outcome in ("unheld", "default", "replaced")
        if free and (line.key in read_keys or "kl_estimator" in line.key):
            if "kl" in line.key.lower() and not reading.rollout_kl:
                place = ("kl",)
            elif re.search(r"tis_|_tis|rollout_is|is_correction|importance_sampling_c", line.key):
                place = ("loss.correction",)
        read = all(name.startswith(("kl.", "loss.correction")) for name in line.fields)
        dead = reading.no_gradient if read and line.fields and not reading.in_reward.active else ""
        why = next((idle[key] for key in idle if read and line.key.startswith(key)), dead)
        if line.outcome == "held" and why:
            yield KeyLine(line.key, line.value, "idle", note=why)
        else:
            yield KeyLine(line.key, line.value, "held", place) if place else line


def _put(nested: dict[str, Any], name: str, value: object) -> None:
    section, _, rest = name.partition(".")
    if rest:
        inner = nested.get(section)
        nested[section] = inner if isinstance(inner, dict) else {}
        _put(nested[section], rest, value)
    else:
        nested[section] = value


def _source(line: KeyLine) -> str:
    """Return a key and its value in one line, without a secret of it."""
    value = hide(line.value, line.key)
    text = "null" if value is None else str(value)
    return f"{line.key}={_one_line(text)}"


def _shown(line: KeyLine, flat: Mapping[str, object]) -> str:
    names = [f"{n}={flat[n]}" for n in line.fields if n in flat and line.outcome == "held"]
    return _WORDS[line.outcome].format(
        source=_source(line), note=line.note, fields=", ".join(names or line.fields)
    )


def spec_text(spec: LaunchSpec, source: str) -> str:
    """Return the spec as YAML, with a comment for each key of the script and each remark."""
    fields = {**spec.fields}
    flat = dict(flatten(fields))
    guess = " (a guess)" if spec.guessed else ""
    tables = "" if spec.runs_on == spec.version else f", read as {spec.version}"
    head = [
        f"From {_one_line(source)}, a launch of {spec.library} {spec.runs_on}{guess}{tables}.",
        *(f"give {name} (??? below): {why}" for name, why in spec.asked.items()),
        *(f"check: {each}" for each in spec.remarks),
        "check: resources, which are not read",
        *(_shown(line, flat) for line in spec.lines),
    ]
    model, data = fields.pop("model"), fields.pop("data")
    fields.pop("backend", None)
    seed = fields.pop("seed", 0)
    body = {
        "defaults": [{"site": "auto"}, "_self_"],
        "name": name_of(source.rpartition(".")[0] or source),
        "question": f"What does {source} do?",
        "seeds": [seed],
        "model": model,
        "data": data,
        "backend": f"{spec.library}@{spec.version}",
        "base": {**fields, "resources": {"num_nodes": 1, "gpus_per_node": 8}},
        "studies": {"script": {}},
    }
    comments = "".join(f"# {_one_line(each)}\n" for each in head)
    return comments + yaml.safe_dump(body, sort_keys=False, allow_unicode=True, width=100)


def _one_line(text: str) -> str:
    return text if text.isprintable() else json.dumps(text)
