"""Derive from the evidence the sentences that would surprise a user."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from orchestrator.estimators import plain_names
from orchestrator.kl.differences import DIFFERENCES, describe, differing
from orchestrator.kl.library_semantics import PLAIN
from orchestrator.probes import corrections, evidence
from orchestrator.probes.capability import Release, words
from orchestrator.settings import BackendRef
from orchestrator.spec.rehearse import semantics

EvidenceMapping = Mapping[str, Any]
BEST = ("sequence_reverse_kl", "token_reverse_kl")


def findings(known: Sequence[Release]) -> list[str]:
    """Return sentences about these releases. A sentence true of several names them together."""
    releases_by_sentence: dict[str, list[Release]] = {}
    for release in known:
        measured = evidence.read(*release)
        if measured is None:
            continue
        for rule in RULES:
            for sentence in rule(measured):
                releases_by_sentence.setdefault(sentence, []).append(release)
    return [f"**{_releases(of)}**: {sentence}" for sentence, of in releases_by_sentence.items()]


def _releases(of: Sequence[Release]) -> str:
    by: dict[str, list[str]] = {}
    for library, version in of:
        by.setdefault(library, []).append(version)
    return "; ".join(f"{library} {', '.join(versions)}" for library, versions in by.items())


def _silence(measured: EvidenceMapping) -> Iterator[str]:
    silent = measured["silent"]
    for place in ("reward", "loss"):
        if silent[place]:
            each = silent[place]
            yield (
                f"a launch that says nothing about KL trains with {each['estimator']} in the "
                f"{place}, β = {each['beta']:g}"
            )
    if silent["proximal"]:
        each = silent["proximal"]
        yield (
            "a launch that says nothing about KL has a penalty in its loss, but towards the policy "
            f"that sampled, not the reference policy ({each['estimator']}, weight {each['beta']:g})"
        )


def _averages(measured: EvidenceMapping) -> Iterator[str]:
    for average, each in measured["loss"].items():
        if each.get("policy") and each["kl"] not in (each["policy"], "refused"):
            yield (
                f"asked for `{average}`, it averages the policy loss by `{each['policy']}` and the "
                f"KL in the loss by `{each['kl']}`: what β means depends on response lengths"
            )


def _credit(measured: EvidenceMapping) -> Iterator[str]:
    each = measured["reward"].get("rloo", {})
    if each.get("within") == "to_go":
        yield (
            "a KL in the reward is subtracted token by token after the baseline and summed from "
            "each token on: the expected gradient of the whole sum, with another variance"
        )
    if each.get("within") == "response" and each.get("others") == "leave_one_out":
        yield "a KL in the reward is summed over the response and lies inside the group's baseline"
    if each.get("within") == "response" and each.get("others") == "none":
        yield (
            "a KL in the reward is summed over the response and subtracted after the baseline, "
            "which does not see it: the KL keeps its full variance"
        )
    grpo = measured["reward"].get("grpo", {})
    if grpo.get("divided_by_deviation") and grpo.get("others") == "group":
        yield (
            "with grpo the KL in the reward is inside what is divided by the group's deviation: "
            "where task rewards are equal, the KL alone is scaled to unit size, whatever β"
        )
    elif grpo.get("divided_by_deviation"):
        yield (
            "with grpo only the task reward is divided by the group's deviation, the KL is not: β "
            "counts in units of that deviation"
        )


def _clamps(measured: EvidenceMapping) -> Iterator[str]:
    for each in measured["names"]:
        plain = each["name"] in plain_names() and each["place"] == "loss"
        if plain and each.get("flat_below") is not None:
            yield (
                f"`{each['name']}` in the loss is held within ±{each['value_bound']:g}, and has no "
                f"gradient once log π/π_ref is below {each['flat_below']:g} or above "
                f"{each['flat_above']:g}: a policy that far away is not pulled back"
            )


def _straight_through(measured: EvidenceMapping) -> Iterator[str]:
    names = [each for each in measured["names"] if each.get("straight_through")]
    loss = [each for each in names if each["place"] == "loss"]
    weighted = [each for each in loss if each["gradient"] == "sg_rho_k2"]
    plain = [each for each in loss if each["gradient"] == "k2"]
    if plain:
        listed = ", ".join(f"`{each['name']}`" for each in plain)
        yield f"{listed} in the loss log their own value and have the gradient of k2, all the same"
    if weighted:
        bound = weighted[0]["weight_bound"]
        limit = f", w at most {bound:g}" if bound else ""
        listed = ", ".join(f"`{each['name']}`" for each in weighted)
        yield f"{listed} log their own value and have the gradient w x{limit}: one and the same"


def _broken_names(measured: EvidenceMapping) -> Iterator[str]:
    for each in measured["names"]:
        if "error" in each and each["place"] == "loss":
            yield f"`{each['name']}` is accepted by the configuration and raises {each['error']}"


def _objectives(measured: EvidenceMapping) -> Iterator[str]:
    native = [each for each in measured["cells"] if each["on_policy"] and "objective" in each]
    noise = [f"`{_label(c)}`" for c in native if c["objective"] == "zero"]
    if noise:
        yield f"{', '.join(noise)}: no gradient in expectation, it is noise and regularises nothing"
    off = [each for each in measured["cells"] if not each["on_policy"]]
    policy = [each for each in off if each.get("reward_kl_of") == "policy"]
    if policy:
        yield (
            "a KL in the reward is computed with the policy being updated, not once per rollout "
            "batch with the policy that sampled: off-policy it is another surrogate"
        )
    wrong = [f"`{_label(c)}`" for c in measured["cells"] if c.get("agrees") is False]
    if wrong:
        yield f"measured otherwise than `orch explain` says: {', '.join(dict.fromkeys(wrong))}"


def _label(cell: Mapping[str, Any]) -> str:
    return f"{cell['estimator']}.{str(cell['placement']).replace('reward_and_loss', 'both')}"


def _natives(measured: EvidenceMapping) -> Iterator[str]:
    names: dict[tuple[str, str], list[str]] = {}
    for each in measured["natives"]:
        objectives = (words(each["on_policy"]), words(each["off_policy"]))
        names.setdefault(objectives, []).append(f"`{each['name']}`")
    for (on, off), own in names.items():
        is_ = "is" if len(own) == 1 else "are each"
        yield f"its own {', '.join(own)} {is_} {on} on-policy, and on older samples {off}"


def _ratio(measured: EvidenceMapping) -> Iterator[str]:
    above = measured["ratio"]["flat_above"]
    if above is None:
        yield "without a clip the policy loss does not bound its importance ratio at all"


RULES: tuple[Callable[[EvidenceMapping], Iterator[str]], ...] = (
    _silence,
    _averages,
    _credit,
    _clamps,
    _straight_through,
    _broken_names,
    _objectives,
    _natives,
    _ratio,
    corrections.sentences,
)


# Mathematics of a release that was not measured: read in its source, or left out of rehearsals.


Unmeasured = tuple[str, str, str]
"""The property, its value in the release, and the reason why it was not measured."""
LEFT_OUT = "left out of the rehearsal"


def unmeasured_differences(library: str, version: str) -> list[Unmeasured]:
    """Return the differences that were only read in the source, then those no rehearsal has."""
    meaning = semantics(BackendRef(name=library, version=version))
    read = [
        (
            DIFFERENCES[cause].title,
            describe(meaning.dialect, cause),
            DIFFERENCES[cause].not_compared,
        )
        for cause in differing(meaning.dialect, PLAIN)
        if DIFFERENCES[cause].not_compared
    ]
    return read + [("not imitated", sentence, LEFT_OUT) for sentence in meaning.omits]


def grouped_by_releases(known: Sequence[Release]) -> dict[Unmeasured, list[Release]]:
    """Return each unmeasured difference of these releases, with the releases that share it."""
    by: dict[Unmeasured, list[Release]] = {}
    for release in known:
        for sentence in unmeasured_differences(*release):
            by.setdefault(sentence, []).append(release)
    return by
