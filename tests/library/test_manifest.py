"""The engine of the backends' manifests, on a small table of its own."""

from collections.abc import Callable

import pytest

from orchestrator.errors import SpecError, UnsupportedSetting
from orchestrator.library.manifest import (
    ABSENT,
    Manifest,
    ManifestError,
    Meaning,
    Number,
    ReleaseTable,
    Row,
    fits,
    same,
)
from orchestrator.settings import Clip, Settings

SETTINGS = Settings.model_validate(
    {
        "model": {"name": "m", "path": "p"},
        "data": {"name": "d", "path": "p"},
        "advantage": {"estimator": "rloo"},
        "loss": {},
        "kl": {"estimator": "k3", "placement": "loss", "beta": 0.1},
        "rollout": {"group_size": 2, "max_response_tokens": 8},
        "batch": {"num_prompts": 2},
        "optimizer": {"learning_rate": 1.0},
        "num_train_steps": 1,
        "backend": {"name": "toy"},
    }
)
TEXTS = {
    "model": ("name", "path", "chat_template"),
    "data": ("name", "path", "split", "instruction", "reward"),
    "advantage": ("estimator",),
    "loss": ("aggregation",),
    "kl": ("placement",),
    "backend": ("name", "version"),
}
NUMBERS = {
    "data": ("num_prompts", "max_prompt_tokens"),
    "loss": ("constant_tokens",),
    "kl": ("reset_reference_every_steps",),
    "rollout": ("group_size", "max_response_tokens", "temperature", "top_p"),
    "batch": ("num_prompts", "num_minibatches"),
    "optimizer": (
        "learning_rate",
        "weight_decay",
        "beta1",
        "beta2",
        "epsilon",
        "max_grad_norm",
        "num_warmup_steps",
    ),
}
REST = (
    *(Row(f"{s}.{n}", carried_by="toy.json") for s, names in TEXTS.items() for n in names),
    *(
        Row(f"{s}.{n}", carried_by="toy.json", offer=Number(null=True))
        for s, names in NUMBERS.items()
        for n in names
    ),
    *(
        Row(name, carried_by="toy.json", offer=Number())
        for name in ("num_train_steps", "max_staleness_steps", "seed")
    ),
)
SCHEDULE = Row("optimizer.schedule", carried_by="toy.json", offer=same("constant"))


class Clips:
    """Every clip without a dual."""

    def __contains__(self, value: object) -> bool:
        return value is None or (isinstance(value, Clip) and value.dual is None)

    def __str__(self) -> str:
        return "a clip without dual"


ESTIMATOR = Row("kl.estimator", key="kl", offer=(Meaning("k3", "low_var", spellings=("k3",)),))
BETA = Row("kl.beta", key="coef", offer=Number(least=0))
CLIP = Row(
    "loss.clip",
    key="low",
    offer=Clips(),
    write=lambda s: s.loss.clip.low if s.loss.clip else 0.0,
    adds=lambda s: {"high": s.loss.clip.high if s.loss.clip else 0.0},
    read=lambda launch: (
        Clip.model_validate({"low": launch["low"], "high": launch["high"]})
        if launch["low"]
        else None
    ),
)


def manifest(
    *rows: Row,
    keys: tuple[str, ...] = ("kl", "coef", "low", "high"),
    values: dict[str, frozenset[object]] | None = None,
) -> Manifest:
    table = ReleaseTable("1.0", frozenset(keys), values or {})
    return Manifest("toy", ("1.0",), (*rows, SCHEDULE, *REST), {"1.0": table})


WHOLE = manifest(ESTIMATOR, BETA, CLIP)


def test_a_section_of_the_settings_can_be_one_field() -> None:
    fields = dict(WHOLE.fields(SETTINGS))
    assert fields["loss.clip"] == Clip()
    assert "loss.clip.low" not in fields
    assert WHOLE.assignments(SETTINGS) == {"kl": "low_var", "coef": 0.1, "low": 0.2, "high": 0.2}
    assert len(WHOLE.ledger(SETTINGS, WHOLE.assignments(SETTINGS))) == len(fields)


def test_a_launch_reads_back_in_every_spelling() -> None:
    launch = {"kl": "k3", "coef": 0.5, "low": 0.1, "high": 0.3}
    assert WHOLE.read(launch, "1.0") == {
        "kl": {"estimator": "k3", "beta": 0.5},
        "loss": {"clip": Clip(low=0.1, high=0.3)},
    }


def test_every_key_without_a_meaning_is_told_at_once() -> None:
    with pytest.raises(SpecError, match=r"no kl\.estimator for 'kl3'") as caught:
        WHOLE.read({"kl": "kl3", "coef": -1, "low": 0.0, "high": 0.0}, "1.0")
    assert len(caught.value.faults) == 2
    assert "did you mean 'k3'" in str(caught.value)


def test_a_row_that_cannot_tell_leaves_its_field_out() -> None:
    silent = Row("kl.estimator", key="kl", offer=same("k3"), read=lambda _: ABSENT)
    assert manifest(silent).read({"kl": "k3"}, "1.0") == {}


@pytest.mark.parametrize(
    ("table", "why"),
    [
        (lambda: manifest(ESTIMATOR, BETA, CLIP, keys=("kl", "low", "high")), "has no key coef"),
        (
            lambda: manifest(ESTIMATOR, BETA, CLIP, values={"kl": frozenset({"k1"})}),
            "kl of 1.0 takes k1; not low_var",
        ),
        (
            lambda: manifest(
                Row("kl.estimator", key="kl", offer=(Meaning("k3", "x"),), read=lambda _: "k1"),
                BETA,
                CLIP,
            ),
            "reads back as k1",
        ),
    ],
)
def test_exact_is_earned(table: Callable[[], Manifest], why: str) -> None:
    faulty = table()
    with pytest.raises(ManifestError, match=why):
        faulty.ledger(SETTINGS, faulty.assignments(SETTINGS))


def test_what_no_row_carries_is_refused() -> None:
    other = SETTINGS.model_copy(update={"kl": SETTINGS.kl.model_copy(update={"estimator": "k4"})})
    with pytest.raises(UnsupportedSetting, match=r"toy cannot run kl\.estimator=k4") as caught:
        WHOLE.check(other)
    assert caught.value.offered == ("k3",)


def test_advice_may_depend_on_the_cell() -> None:
    row = Row(
        "kl.estimator", key="kl", offer=same("k1"), advice=lambda s: f"Not at {s.kl.placement}."
    )
    with pytest.raises(UnsupportedSetting, match="Not at loss"):
        manifest(row, BETA, CLIP).check(SETTINGS)


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


def test_a_value_of_another_type_cannot_be_sent() -> None:
    table = ReleaseTable("1.0", frozenset({"seed"}), kinds={"seed": "int"})
    assert "of type int; 0.5 is not" in table.objection("seed", 0.5)
    assert not table.objection("seed", 5)
