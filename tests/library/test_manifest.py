"""The engine of the backends' manifests, on a small table of its own."""

from dataclasses import replace

import pytest

from orchestrator.errors import SpecError, UnsupportedSetting
from orchestrator.identity import BIRTH_VALUES, flatten
from orchestrator.library.manifest import (
    ABSENT,
    TEXT,
    Constant,
    Manifest,
    ManifestError,
    Meaning,
    Number,
    ReleaseTable,
    Row,
    fits,
    same,
)
from orchestrator.settings import EngineCorrection, Precision, Settings
from tests.settings import plain

SETTINGS = plain(
    kl={"estimator": "k3", "placement": "loss", "beta": 0.1}, loss={}, backend={"name": "toy"}
)
OF_ROWS_BELOW = ("kl.placement", "kl.estimator", "kl.beta", "optimizer.schedule", "seed")
REST = tuple(
    Row(name, carried_by="toy.json", offer=TEXT if texts else Number(null=True))
    for name, value in flatten(SETTINGS.model_dump())
    for texts in [isinstance(value, str) or name == "backend.version"]
    if name not in BIRTH_VALUES and name not in OF_ROWS_BELOW
)
"""Rows of the fields that are as old as the table."""
SCHEDULE = Row("optimizer.schedule", carried_by="toy.json", offer=same("constant"))


IN_LOSS = {"kl.placement": ("loss",)}
IN_REWARD = {"kl.placement": ("reward",)}
PLACEMENTS = (
    Row(
        "kl.placement",
        key="in_reward",
        offer=(Meaning("reward", True, also={"in_loss": False}),),
    ),
    Row(
        "kl.placement",
        key="in_loss",
        offer=(Meaning("loss", True, also={"in_reward": False}),),
    ),
)
ESTIMATORS = (
    Row(
        "kl.estimator",
        key="loss_kl",
        offer=(
            Meaning("k1", "k1", spellings=("kl",)),
            Meaning("k3", "k3", "approximated", "clamped", spellings=("low_var",)),
        ),
        when=IN_LOSS,
    ),
    Row("kl.estimator", key="loss_kl", offer=same("k2"), when=IN_LOSS, since="2.0"),
    Row(
        "kl.estimator",
        key="loss_kl",
        offer=(Meaning("rho_k1", "rho_k1", "extension", "brought along"),),
        when=IN_LOSS,
    ),
    Row("kl.estimator", key="penalty", offer=same("k1", "k2"), when=IN_REWARD, until="2.0"),
    Row("kl.estimator", key="kl_penalty", offer=same("k1", "k2"), when=IN_REWARD, since="2.0"),
)
BETAS = (
    Row("kl.beta", key="loss_coef", offer=Number(least=0), when=IN_LOSS),
    Row("kl.beta", key="coef", offer=Number(least=0), when=IN_REWARD),
)
SEED = (
    Row("seed", key="seed", offer=(Meaning(0, ABSENT),)),
    Row("seed", key="seed", offer=Number(least=1, most=100, whole=True)),
)
KEYS = ("in_reward", "in_loss", "loss_kl", "loss_coef", "coef", "seed", "shuffle")
TWO = Manifest(
    "toy",
    ("2.0", "1.0"),
    (
        *PLACEMENTS,
        *ESTIMATORS,
        *BETAS,
        *SEED,
        SCHEDULE,
        *REST,
    ),
    {
        "2.0": ReleaseTable(
            "2.0",
            frozenset({*KEYS, "kl_penalty"}),
            {"loss_kl": frozenset({"k1", "kl", "k2", "k3", "low_var"})},
            defaults={"in_reward": False, "in_loss": False, "loss_kl": "k3", "seed": 0},
        ),
        "1.0": ReleaseTable("1.0", frozenset({*KEYS, "penalty"})),
    },
    constants=(
        Constant("shuffle", False, accepts=(True, False)),
        Constant("coef", 0.0, when=IN_LOSS),
    ),
    extensions={"loss_kl": {"rho_k1"}},
)


def test_a_launch_reads_back_in_every_spelling() -> None:
    launch = {"in_loss": True, "in_reward": False, "loss_kl": "low_var", "loss_coef": 0.5}
    assert TWO.read({**launch, "seed": 7}, "2.0") == {
        "kl": {"placement": "loss", "estimator": "k3", "beta": 0.5},
        "seed": 7,
    }


def test_every_key_without_a_meaning_is_told_at_once() -> None:
    launch = {"in_loss": True, "in_reward": False, "loss_kl": "k33", "loss_coef": -1, "seed": 7}
    with pytest.raises(SpecError, match=r"no kl\.estimator for 'k33'") as caught:
        TWO.read(launch, "2.0")
    assert len(caught.value.faults) == 2
    assert "did you mean 'k3'" in str(caught.value)
    assert "no kl.beta for '-1' (it knows: numbers from 0)" in str(caught.value)


def of_table(keys: set[str], values: frozenset[object]) -> Manifest:
    table = ReleaseTable("2.0", frozenset(keys), {"loss_kl": values})
    return replace(TWO, tables={**TWO.tables, "2.0": table})


MISREAD = Row("kl.estimator", key="loss_kl", offer=same("k3"), when=IN_LOSS, read=lambda _: "k1")


@pytest.mark.parametrize(
    ("faulty", "why"),
    [
        (of_table({*KEYS} - {"loss_coef"}, frozenset({"k3"})), "has no key loss_coef"),
        (of_table({*KEYS}, frozenset({"k1"})), "loss_kl of 2.0 takes k1; not k3"),
        (
            replace(TWO, rows=(MISREAD, *(r for r in TWO.rows if r != ESTIMATORS[0]))),
            "reads back as k1",
        ),
    ],
)
def test_exact_is_earned(faulty: Manifest, why: str) -> None:
    with pytest.raises(ManifestError, match=why):
        faulty.ledger(SETTINGS, faulty.assignments(SETTINGS))


@pytest.mark.parametrize(
    ("kind", "right", "wrong"),
    [
        ("int", [1], [True, 1.0, "1", None]),
        ("float", [1, 0.5], [True, "1", None]),
        ("Optional[int]", [None, 3], [0.5]),
        ("List[float]", [[], [1, 0.5]], [[True], 1.0]),
        ("float x 2", [(0.1, 0.2)], [(0.1,), 0.1]),
        ("switch", [True, False], [1, "true"]),
        ("Union[bool, int]", ["anything"], []),
    ],
)
def test_types_of_a_release(kind: str, right: list[object], wrong: list[object]) -> None:
    assert all(fits(kind, value) for value in right)
    assert not any(fits(kind, value) for value in wrong)


def test_releases_are_ordered_as_numbers() -> None:
    later, old = Row("seed", "seed", since="0.9.0"), Row("seed", "sed", until="0.9.0")
    tables = {"0.10.0": ReleaseTable("0.10.0", frozenset({"seed"}))}
    assert Manifest("toy", ("0.10.0",), (later, old), tables).rows_of("seed", "0.10.0") == (later,)


def test_a_value_of_another_type_cannot_be_sent() -> None:
    table = ReleaseTable("1.0", frozenset({"seed"}), kinds={"seed": "int"})
    assert "of type int; 0.5 is not" in table.objection("seed", 0.5)
    assert not table.objection("seed", 5)


def test_an_extension_must_be_listed_to_send_what_the_release_does_not_take() -> None:
    kl = SETTINGS.kl.model_copy(update={"estimator": "rho_k1"})
    asked = SETTINGS.model_copy(update={"kl": kl})
    launch = TWO.assignments(asked)
    assert TWO.ledger(asked, launch)
    with pytest.raises(ManifestError, match="takes k1, k2, k3, kl, low_var; not rho_k1"):
        replace(TWO, extensions={}).ledger(asked, launch)


CORRECTED = SETTINGS.loss.but(correction=EngineCorrection(kind="tis_token", most=2.0))


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        (SETTINGS.but(precision=Precision(training="bf16")), "precision.training"),
        (SETTINGS.but(loss=CORRECTED), "loss.correction"),
    ],
)
def test_what_is_younger_than_the_table_is_accounted_for_and_refused_with_any_value(
    asked: Settings, field: str
) -> None:
    """A field, and a section as one."""
    entries = {e.field: e for e in TWO.ledger(SETTINGS, TWO.assignments(SETTINGS))}
    assert "before the field existed" in entries[field].note
    with pytest.raises(UnsupportedSetting) as refused:
        TWO.carry(asked)
    assert (refused.value.field, refused.value.offered) == (field, (None,))
