"""The evidence on corrections and on what stands beside a KL term, as rows and as sentences."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from orchestrator.probes import evidence

Release = tuple[str, str]

ALL = "all tokens"
COLUMNS = (
    "library",
    "launch",
    "`loss.correction.kind`",
    "weight of a token in the policy loss",
    "its ratio is of",
    "KL in the loss",
)
WHOSE = {
    "proximal": "proximal policy / engine",
    "policy": "policy / engine",
    "?": "?",
    None: "-",
}


def entries(release: Release) -> Sequence[Mapping[str, Any]]:
    """Return the measured corrections of a release: those of cells, then in its own words."""
    measured = (evidence.read(*release) or {}).get("corrections")
    if measured is None:
        return ()
    cells = [
        {**each, "name": f"loss.correction.kind={each['kind']}{_bounds(each)}"}
        for each in measured["cells"]
        if "refused" not in each
    ]
    return [*cells, *measured["own"]]


def _bounds(cell: Mapping[str, Any]) -> str:
    bounds = {name: cell[name] for name in ("least", "most") if cell[name]}
    return "".join(f" {name}={value:g}" for name, value in bounds.items())


def rows(known: Sequence[Release]) -> list[tuple[str, ...]]:
    """Return a row of COLUMNS for each measured correction. Releases that agree share a row."""
    releases: dict[tuple[str, ...], list[str]] = {}
    for library, version in known:
        for entry in entries((library, version)):
            releases.setdefault((library, *_row(entry)), []).append(version)
    return [(f"{key[0]} {', '.join(of)}", *key[1:]) for key, of in releases.items()]


def _row(entry: Mapping[str, Any]) -> tuple[str, ...]:
    name = f"`{entry['name']}`" + (" (says nothing of it)" if entry.get("silent") else "")
    if "error" in entry:
        return (name, "-", f"raises {entry['error']}", "-", "-")
    policy = entry["policy"]
    ratio = WHOSE[policy.get("of")] if policy["weight"] != "1" else "-"
    kind = policy.get("kind")
    same = kind and policy["divisor"] == ALL and policy.get("of") == "proximal"
    return (name, f"`{kind}`" if same else "-", _weight(policy), ratio, _of_kl(entry))


def _weight(part: Mapping[str, Any]) -> str:
    if part["weight"] == "?":
        return "none that orch knows"
    divided = "" if part["divisor"] == ALL else f"; divided by {part['divisor']}"
    return str(part["weight"]) + divided


def _of_kl(entry: Mapping[str, Any]) -> str:
    kl, policy = entry.get("kl"), entry["policy"]
    if kl is None:
        return "the launch has none"
    if kl["weight"] == "1":
        return "not weighted" + _weight(kl).removeprefix("1")
    return "the same" if _weight(kl) == _weight(policy) else _weight(kl)


def sentences(measured: Mapping[str, Any]) -> Iterator[str]:
    """Yield what would surprise a user of a release's corrections."""
    own = [each for each in measured.get("corrections", {}).get("own", ()) if "policy" in each]
    for each in own:
        if each.get("silent") and each["policy"]["weight"] not in ("1", "?"):
            yield (
                f"a launch that says nothing of a correction (`{each['name']}`) weights tokens "
                f"all the same, by {_weight(each['policy'])} ({WHOSE[each['policy']['of']]})"
            )
    inverse = [f"`{each['name']}`" for each in own if "the inverse of" in each["policy"]["weight"]]
    if inverse:
        yield (
            f"{', '.join(inverse)}: the bounds are of the inverse ratio, engine / proximal policy: "
            "0.5 and 3 keep ratios from 1/3 to 2"
        )
    corrected = [each for each in own if each["policy"]["weight"] != "1" and "kl" in each]
    smaller = [each for each in corrected if each["kl"]["weight"] != "1"]
    if smaller:
        listed = ", ".join(f"`{each['name'].split()[0]}`" for each in smaller)
        divided = all(each["policy"]["divisor"] != ALL for each in smaller)
        yield (
            f"{listed}: what is rejected in the policy loss is rejected in the KL in the loss too"
            f"{', and leaves the divisor of both means' if divided else ''}: β keeps its proportion"
        )
    alone = [each for each in corrected if each["kl"]["weight"] == "1"]
    if alone:
        yield (
            f"{_part(len(alone), len(corrected))} of its measured corrections of the engine's "
            "mismatch weight the policy loss and leave the KL in the loss as it is: where the "
            "weight is below 1, β counts more"
        )


def _part(count: int, of: int) -> str:
    return f"all {of}" if count == of else f"{count} of {of}"


BESIDE = ("library", "of", "launch", "measured")
SUBJECTS = {
    "level": "ratio level",
    "controller": "adaptive β",
    "reference": "reference that moves",
}


def beside_rows(known: Sequence[Release]) -> list[tuple[str, ...]]:
    """Return a row of BESIDE for each ratio level, controller and moving reference."""
    releases: dict[tuple[str, ...], list[str]] = {}
    for library, version in known:
        for each in (evidence.read(library, version) or {}).get("beside", ()):
            row = (library, SUBJECTS[each["subject"]], f"`{each['name']}`", _beside(each))
            releases.setdefault(row, []).append(version)
    rows_ = [(f"{key[0]} {', '.join(of)}", *key[1:]) for key, of in releases.items()]
    return sorted(rows_, key=lambda row: list(SUBJECTS.values()).index(row[1]))


def _beside(each: Mapping[str, Any]) -> str:
    if "error" in each:
        return f"raises {each['error']}"
    if each["subject"] == "level":
        policy, kl = each["policy"], each.get("kl")
        text = f"policy loss: {_level(policy)}"
        return text if kl is None else f"{text}; KL in the loss: {_level(kl)}"
    if each["subject"] == "controller":
        return f"β follows {each['follows']}; a step counts {each.get('counts', '?')}"
    return "as the cell says" if each["agrees"] else "otherwise than the cell says"


def _level(part: Mapping[str, Any]) -> str:
    if part["level"] == "?":
        return "no level that orch knows"
    level = "no ratio" if part["level"] == "none" else f"`{part['level']}`"
    return level + ("" if part["divisor"] == ALL else f", divided by {part['divisor']}")


def levels(measured: Mapping[str, Any]) -> Iterator[str]:
    """Yield what would surprise a user of a release's ratio levels."""
    of_levels = [each for each in measured.get("beside", ()) if each["subject"] == "level"]
    both = [each for each in of_levels if "policy" in each and "kl" in each]
    for each in both:
        if each["kl"]["level"] not in ("none", "token", "?"):
            yield (
                f"`{each['name']}` multiplies the KL in the loss by the ratio of the response too: "
                "no divergence with a name (`orch explain gspo+k3`)"
            )
        divisors = each["policy"].get("divisor"), each["kl"].get("divisor")
        if each["policy"]["level"] != "token" and divisors[0] != ALL and divisors[1] == ALL:
            yield (
                f"`{each['name']}` averages the policy loss by response and the KL in the loss by "
                "token: what β means depends on response lengths"
            )
