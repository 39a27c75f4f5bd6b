"""The table of estimators: the one list of them, the same in NumPy and torch, with the gradient
that a name promises."""

import ast
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from orchestrator import estimators
from orchestrator.errors import EnvironmentFault, LaboratoryError
from orchestrator.estimators import (
    TABLE,
    EstimatorEntry,
    elementwise,
    straight_through,
    vocabulary_names,
    weighted,
)
from orchestrator.exact.derivation import derive, problems
from orchestrator.exact.figures import figure1
from orchestrator.kl.catalogue import ObjectiveKind, catalogue
from orchestrator.kl.configuration import extended
from orchestrator.kl.estimators import (
    importance_ratio,
    token_kl,
    vocabulary_kl,
    vocabulary_slope,
)
from orchestrator.kl.library_semantics import PLAIN, Dialect
from orchestrator.kl.table import row_of, stored_rows
from orchestrator.kl.verdicts import verdict
from orchestrator.settings import Kl
from orchestrator.spec.schema import schema
from tests.command_line import ROOT, in_this_process
from tests.kl.brute import state_value

X = np.concatenate([np.linspace(-3.0, -0.01, 60), np.linspace(0.01, 3.0, 60)])


TOY = EstimatorEntry(
    name="toy",
    formula="(1 - 1/r)^2 / 2",
    value=lambda x: elementwise("expm1", x) ** 2 / 2,
    slope=lambda x: elementwise("expm1", x) * elementwise("exp", x),
    is_reverse_kl=False,
    source="this test",
)


@pytest.fixture
def toy() -> Iterator[EstimatorEntry]:
    estimators.register(TOY)
    yield TOY
    estimators.unregister("toy")


@pytest.fixture(params=[*TABLE, "toy"])
def form(request: pytest.FixtureRequest, toy: EstimatorEntry) -> EstimatorEntry:
    """Every entry of the table, and the toy."""
    return TABLE[request.param]


def test_an_entry_does_not_contradict_itself(form: EstimatorEntry) -> None:
    assert problems(form) == []


def test_numpy_and_torch_agree_on_value_slope_and_autograd(form: EstimatorEntry) -> None:
    x = torch.tensor(X, requires_grad=True)
    np.testing.assert_allclose(form.value(x).detach(), form.value(X), rtol=1e-14)
    np.testing.assert_allclose(form.slope(x).detach(), form.slope(X), rtol=1e-14)
    if form.is_of_vocabulary:  # test_vocabulary.py
        return
    zero = torch.zeros_like(x)
    token_kl(form.name, x, zero, x.detach()).sum().backward()
    attached = form.value(X) if form.form == "ratio_attached" else 0.0
    assert x.grad is not None
    np.testing.assert_allclose(x.grad, form.slope(X) + attached, rtol=1e-12)


@given(st.lists(st.tuples(*[st.floats(-3, 3)] * 3), min_size=2, max_size=6))
def test_the_mean_is_the_reverse_kl_where_an_entry_says_so(logits: list[Any]) -> None:
    """Under the policy, and of a weighted form under any rollout policy."""
    logp, logp_ref, logp_rollout = (x - np.logaddexp.reduce(x) for x in np.array(logits).T)
    kl = float(np.exp(logp) @ (logp - logp_ref))
    for form in TABLE.values():
        if form.is_reverse_kl and not form.is_of_vocabulary:
            sampler = logp_rollout if form.is_weighted else logp
            estimate = token_kl(form.name, logp, logp_ref, logp_rollout)
            assert float(np.exp(sampler) @ estimate) == pytest.approx(kl, abs=1e-9), form.name


def test_the_loss_of_a_plain_estimator_descends_what_its_entry_says(form: EstimatorEntry) -> None:
    if form.is_plain:
        found = verdict(Kl(estimator=form.name, placement="loss", beta=1.0), on_policy=True)
        expected = form.descends or f"slope_{form.name}"
        assert found.terms == (() if expected == "zero" else ((1, expected),))


def test_a_wrong_entry_is_refused_with_its_numbers() -> None:
    wrong = EstimatorEntry("k0", "-log r", lambda x: x, lambda x: 2 * x, False, "nowhere")
    assert len(problems(wrong)) == 2
    estimators.register(wrong)
    try:
        with pytest.raises(LaboratoryError, match=r"slope of .* 'k0' is not the derivative"):
            derive(["k0"])
    finally:
        estimators.unregister("k0")


@pytest.mark.parametrize(
    ("entry", "sentence"),
    [
        (TABLE["k3"], "'k3' is in the table already"),
        (EstimatorEntry("none", "0", abs, abs, False, ""), "'none' is in the table already"),
        (EstimatorEntry("k1.loss", "0", abs, abs, False, ""), "letters, digits and '_'"),
        (weighted(TOY), "register 'toy' first"),
    ],
)
def test_what_cannot_be_registered(entry: EstimatorEntry, sentence: str) -> None:
    before = dict(TABLE)
    with pytest.raises(EnvironmentFault, match=sentence):
        estimators.register(entry)
    assert dict(TABLE) == before


def test_one_entry_is_all_that_an_estimator_needs(toy: EstimatorEntry) -> None:
    kl = Kl(estimator="toy", placement="loss", beta=0.1)
    assert "toy" in json.dumps(schema()["$defs"]["value kl.estimator"])
    assert "toy.both" in json.dumps(schema()["$defs"]["value kl"])
    on = verdict(kl, on_policy=True)
    assert on.objective is ObjectiveKind.SURROGATE
    assert "derived now by the laboratory" in on.notes[-1]
    output = in_this_process(ROOT, ["explain", "toy", "loss", "-v"], {}).stdout
    assert "toy = (1 - 1/r)^2 / 2" in output
    assert "token by token, the slope of toy itself" in output
    assert {"token_toy", "mean_toy", "ppo_toy", "sampled_toy"} <= catalogue().keys()
    assert {"toy.reward", "toy.loss", "toy.both"} <= {each.label for each in extended()}
    data = figure1()
    assert "toy.loss" in {row["label"] for row in data["configurations"]}
    assert "toy" in data["estimates"]
    assert PLAIN.clamps("toy")
    assert not Dialect(kl_clamp=(20.0, 10.0), kl_clamp_of=("k3",)).clamps("toy")


def test_no_row_of_an_added_estimator_is_without_a_name(toy: EstimatorEntry) -> None:
    """Its derived forms too; and the rows of the others stay what is stored."""
    added = [weighted(toy), weighted(toy, detached=True), straight_through(toy)]
    for each in added:
        estimators.register(each)
    try:
        rows = derive(["toy", *(each.name for each in added)])
        unknown = {row["ratio"] for row in rows if row["objective"] == ObjectiveKind.UNKNOWN}
        assert unknown <= {"sequence_mean"}
        stored = [row.naming for row in stored_rows() if row.estimator == "k3"]
        assert [row_of(row).naming for row in derive(["k3"])] == stored
    finally:
        for each in added:
            estimators.unregister(each.name)


def test_an_unknown_estimator_is_refused_with_the_names_there_are(toy: EstimatorEntry) -> None:
    with pytest.raises(ValidationError, match="'toy'"):
        Kl(estimator="k0", placement="loss")
    estimators.unregister("toy")
    with pytest.raises(ValidationError, match="literal_error"):
        Kl(estimator="toy", placement="loss")
    estimators.register(toy)  # as the fixture left it


def test_names_of_the_laboratory_alone_are_refused_in_a_spec() -> None:
    inner = [name for name, each in TABLE.items() if not each.in_specs]
    assert inner == ["sg_rho_k1", "sg_rho_k3"]
    for name in inner:
        assert not estimators.is_choice(name)
        with pytest.raises(ValidationError):
            Kl(estimator=name, placement="loss")


def test_no_second_list_of_estimators_exists() -> None:
    """Outside the table and the backends, whose names are their library's own, no tuple, list, set
    or mapping names three estimators.

    What a launch carries to where orch is not installed has names of its own, which
    tests/backends/trl/test_quiet.py holds to the table.
    """
    carried = ROOT / "orchestrator" / "library" / "quiet_kl"
    known = set(estimators.choices()) - {"none", "abs"}
    lists = []
    for path in sorted((ROOT / "orchestrator").rglob("*.py")):
        if path == ROOT / "orchestrator/estimators.py" or path.parent == carried:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            parts: list[Any] = getattr(node, "elts", None) or getattr(node, "keys", None) or []
            words = {part.value for part in parts if isinstance(part, ast.Constant)}
            if len(words & known) >= 3:
                lists.append(f"{path.relative_to(ROOT)}:{parts[0].lineno}")
    assert not lists, lists


RNG = np.random.default_rng(3)
LOGP, LOGP_REF, LOGP_OLD = -RNG.exponential(1.5, (3, 4, 6))
MASK = np.array([[1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0], [1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 0]])


def test_a_sequence_ratio_stops_at_the_mask_and_gives_the_past_its_gradient() -> None:
    logp = torch.tensor(LOGP, requires_grad=True)
    old, mask = torch.as_tensor(LOGP_OLD), torch.as_tensor(MASK)
    ratio = importance_ratio(logp, old, "sequence", mask)
    wanted = np.exp(((LOGP - LOGP_OLD) * MASK).sum(1, keepdims=True))
    np.testing.assert_allclose(ratio.detach(), wanted, rtol=1e-13)
    ratio.sum().backward()
    assert logp.grad is not None
    np.testing.assert_allclose(logp.grad, wanted * MASK, rtol=1e-13)


def test_small_log_ratios_keep_their_digits() -> None:
    """k3 of x is x^2 / 2 to first order; computed as exp(-x) - 1 + x it would be rounding."""
    x = torch.tensor([1e-3, -1e-3], dtype=torch.float32)
    found = token_kl("k3", x, torch.zeros(2))
    np.testing.assert_allclose(found, [5e-7, 5e-7], rtol=1e-3)


def test_mistakes_are_named() -> None:
    with pytest.raises(TypeError, match=r"rho_k1.*rollout policy"):
        token_kl("rho_k1", LOGP, LOGP_REF)
    with pytest.raises(LookupError, match="'k0'"):
        token_kl("k0", LOGP, LOGP_REF)


@pytest.mark.parametrize("name", vocabulary_names())
def test_slopes_are_torchs_and_those_of_differences(name: str) -> None:
    random = np.random.default_rng(1)
    logits, ref = random.normal(size=(2, 3, 9))
    logp, logp_ref = (x - np.logaddexp.reduce(x, -1, keepdims=True) for x in (logits, ref))
    leaf = torch.tensor(logits, requires_grad=True)
    value = vocabulary_kl(name, leaf.log_softmax(-1), torch.tensor(logp_ref))
    np.testing.assert_allclose(value.detach(), vocabulary_kl(name, logp, logp_ref), rtol=1e-12)
    value.sum().backward()
    of_logp = np.exp(logp) * vocabulary_slope(name, logp, logp_ref)
    closed = of_logp - np.exp(logp) * of_logp.sum(-1, keepdims=True)
    assert leaf.grad is not None
    np.testing.assert_allclose(leaf.grad, closed, rtol=1e-10, atol=1e-12)
    by_hand = state_value(TABLE[name], *map(torch.tensor, (logp, logp_ref)))
    np.testing.assert_allclose(value.detach(), by_hand, rtol=1e-12)
    with pytest.raises(TypeError, match="vocabulary_kl"):
        token_kl(name, leaf, leaf)
