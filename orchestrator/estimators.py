"""The table of KL estimators: one entry each, from which everything that lists estimators derives.

An estimator turns x = log pi_theta - log pi_ref of a sampled token (so log r = -x) into an estimate
of the KL between the policy and the reference policy. An entry says its value, the gradient it
takes and whose mean it is. An entry of the form `vocabulary` averages that over the policy's
next-token distribution. The table gives: what `kl.estimator` of a spec may be (settings.py),
the laboratory's configurations and candidate objectives (kl/), the lists of `orch explain`, and
what the probes look for in a library. How a library spells an estimator is that library's own
fact and stays in its backend.

To add an estimator, write its entry into `_ENTRIES` below, or publish it from another package as an
entry point of the group `orch.estimators` (an `EstimatorEntry`, or several); see kl/README.md.

This module lies below settings and imports nothing but errors; NumPy is imported by a call only.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from orchestrator.errors import EnvironmentFault, did_you_mean

Array = Any
"""numpy.ndarray, torch.Tensor or float; results are of the kind given."""

GradientForm = Literal[
    "plain", "straight_through", "ratio_attached", "ratio_detached", "vocabulary"
]
"""How the gradient of an estimator in the loss arises.

plain: that of its value; straight_through: that of k2, whatever its value; ratio_attached: its
value is weighted by w = pi_theta / pi_rollout, and the gradient goes through w too;
ratio_detached: weighted by w, without w's own gradient; vocabulary: no sample of the token enters,
its value is averaged over the policy's next-token distribution, and differentiated as that average.
"""

Credit = Literal["sequence", "to_go", "later", "token"]
"""The tokens whose KL in the reward a token's score multiplies: all of the response (the paper),
itself and those after it, those after it, or only itself."""

NONE = "none"
"""The value of `kl.estimator` that stands for no KL term. It is no entry of the table."""


@dataclass(frozen=True, slots=True)
class EstimatorEntry:
    """One estimator. Make the forms derived from a plain one by `weighted`, `straight_through`."""

    name: str
    """The name in a spec: letters, digits and `_`, and `+` at the end."""
    formula: str
    """Its definition, in r = pi_ref / pi_theta and w = pi_theta / pi_rollout; sg: no gradient."""
    value: Callable[[Array], Array]
    """The estimate of each token from x, any shape, before any weight."""
    slope: Callable[[Array], Array]
    """d estimate / d log pi_theta from x, before any weight: with the form plain, the derivative of
    `value`."""
    is_reverse_kl: bool
    """True if its mean over the policy's tokens is KL(policy, reference policy). Otherwise it is
    the mean of a surrogate."""
    source: str
    """The definition: paper and equation, section of the blog, or file and release."""
    descends: str = ""
    """The objective, by its key in kl/catalogue.py, whose gradient E[slope * grad log pi] is, token
    by token; empty: none with a name, so the catalogue gets one for it."""
    form: GradientForm = "plain"
    base: str = ""
    """The plain estimator whose value it has; its own name where it is plain (the default)."""
    symbol: str = ""
    """The symbol in formulas of objectives, such as `|log r|`. Default: the name."""
    in_specs: bool = True
    """True if a spec may name it. Otherwise only the laboratory and the probes know it."""
    credit: Credit = "sequence"
    """The tokens whose KL is charged to a token, where the KL is in the reward."""
    in_reward: str = ""
    """The plain estimator whose value the reward is charged; its own where empty."""
    top: int | None = None
    """With the form vocabulary: sum over the so many likeliest tokens (a set held fixed); None:
    over all."""
    top_of: Literal["policy", "reference"] = "policy"
    """Whose likeliest tokens these are."""
    tail: bool = False
    """Add the other tokens, lumped together as one."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "base", self.base or self.name)
        object.__setattr__(self, "symbol", self.symbol or self.name)

    @property
    def is_plain(self) -> bool:
        """Return True for an estimate with a formula of its own, not derived from another."""
        return self.form == "plain" and self.base == self.name

    @property
    def is_of_vocabulary(self) -> bool:
        """Return True if it needs the next-token distributions, not only the sampled token."""
        return self.form == "vocabulary"

    @property
    def is_of_a_token(self) -> bool:
        """Return True for a function of the sampled token's log-ratio, charged to the response."""
        return not self.is_of_vocabulary and self.credit == "sequence"

    @property
    def is_weighted(self) -> bool:
        """Return True if the importance ratio weights it in the loss."""
        return self.form in ("ratio_attached", "ratio_detached")

    @property
    def is_straight_through(self) -> bool:
        """Return True if it has the gradient of k2 instead of its own."""
        return self.form == "straight_through"


def weighted(
    base: EstimatorEntry, *, detached: bool = False, source: str = "", in_specs: bool = True
) -> EstimatorEntry:
    """Return `rho_<base>`, weighted by the importance ratio, or `sg_rho_<base>` without its
    gradient."""
    weight = "sg(w)" if detached else "w"
    return replace(
        base,
        name=f"sg_rho_{base.name}" if detached else f"rho_{base.name}",
        formula=f"{weight} ({base.formula})",
        source=source or base.source,
        descends="",
        form="ratio_detached" if detached else "ratio_attached",
        symbol=f"{weight} {base.symbol}",
        in_specs=in_specs,
    )


def straight_through(base: EstimatorEntry, *, source: str = "") -> EstimatorEntry:
    """Return `<base>+`: the value of `base` with the gradient of k2."""
    return replace(
        base,
        name=f"{base.name}+",
        formula=f"sg({base.formula}), with the gradient of (log r)^2 / 2",
        slope=_K2.slope,
        source=source or base.source,
        descends="",
        form="straight_through",
        symbol=f"{base.symbol}+",
    )


def to_go(base: EstimatorEntry, *, source: str) -> EstimatorEntry:
    """Return `<base>_to_go`: in the reward, a token is charged its own estimate and later ones."""
    return replace(
        base,
        name=f"{base.name}_to_go",
        formula=f"{base.formula}, in the reward summed from the token on",
        source=source,
        descends="",
        symbol=f"{base.symbol} to go",
        credit="to_go",
    )


def over_vocabulary(
    name: str, base: EstimatorEntry, words: str, *, source: str, **how: Any
) -> EstimatorEntry:
    """Return an estimator that averages `base` over the policy's next-token distribution."""
    is_reverse_kl = base.is_reverse_kl and how.get("top") is None
    own: dict[str, Any] = {"base": "", "symbol": "", "descends": "", **how}
    own |= {"source": source, "is_reverse_kl": is_reverse_kl, "form": "vocabulary"}
    return replace(base, name=name, formula=words, **own)


def elementwise(function: str, x: Array) -> Array:
    """Return a function of each element that torch has as a method and NumPy as a function."""
    if hasattr(x, "detach"):
        return getattr(x, function)()
    import numpy as np

    return getattr(np, function)(x)


def _log_cosh(x: Array) -> Array:
    """Return log cosh x of each element: exact near 0, and without overflow."""
    # cosh x = 1 + 2 sinh²(x / 2). Beyond the bound log cosh x grows as |x|, which the end adds.
    inner = x.clip(-_LARGE, _LARGE)
    half = elementwise("sinh", inner / 2)
    return elementwise("log1p", 2 * half * half) + abs(x) - abs(inner)


_LARGE = 60.0
"""From here on log cosh x is x - log 2 in double precision; cosh x is far below float32's most."""
_SCHULMAN = "Schulman 2020, Approximating KL Divergence"
_BLOG = "blog §6.2"
_VERL = "verl 0.8.0, verl/trainer/ppo/core_algos.py kl_penalty"

_K1 = EstimatorEntry(
    name="k1",
    formula="-log r",
    value=lambda x: x,
    # Ones of the kind of x, which may be a float, an array or a tensor.
    slope=lambda x: x**0,
    is_reverse_kl=True,
    source=f"{_SCHULMAN}; paper eq. 11",
    descends="zero",
)
_K2 = EstimatorEntry(
    name="k2",
    formula="(log r)^2 / 2",
    value=lambda x: x * x / 2,
    slope=lambda x: x,
    is_reverse_kl=False,
    source=_SCHULMAN,
    descends="token_reverse_kl",
)
_K3 = EstimatorEntry(
    name="k3",
    formula="r - 1 - log r",
    # exp(-x) - 1 would lose its digits near 0, where most tokens are.
    value=lambda x: elementwise("expm1", -x) + x,
    slope=lambda x: -elementwise("expm1", -x),
    is_reverse_kl=True,
    source=f"{_SCHULMAN}; paper eq. 14",
    descends="token_forward_kl",
)
_ABS = EstimatorEntry(
    name="abs",
    formula="|log r|",
    value=lambda x: abs(x),
    slope=lambda x: elementwise("sign", x),
    is_reverse_kl=False,
    source=_VERL,
    descends="total_variation",
    symbol="|log r|",
)

_FORWARD = EstimatorEntry(
    name="forward",
    formula="r log r",
    value=lambda x: -x * elementwise("exp", -x),
    slope=lambda x: (x - 1) * elementwise("exp", -x),
    is_reverse_kl=False,
    source="the mean over the policy of p/q log p/q",
)
"""No entry of the table: the integrand of the forward KL."""

_JS = EstimatorEntry(
    name="js",
    formula="(log(2 / (1 + r)) + r log(2 r / (1 + r))) / 2",
    # 1 + r = 2 exp(-x / 2) cosh(x / 2), so both logarithms are ±x / 2 - log cosh(x / 2).
    value=lambda x: (
        -elementwise("expm1", -x) * x / 4 - (1 + elementwise("exp", -x)) * _log_cosh(x / 2) / 2
    ),
    slope=lambda x: elementwise("exp", -x) * (x / 4 + _log_cosh(x / 2) / 2),
    is_reverse_kl=False,
    source="the mean over the policy of (log q/m + p/q log p/m) / 2, m = (p + q) / 2",
)
"""No entry of the table: the integrand of the Jensen-Shannon divergence."""

_RAO_BLACKWELL = "Amini et al. 2025, arXiv 2504.10637"
_REVERSE = "sum over the vocabulary of q log (q/p)"
_FORWARDS = "sum over the vocabulary of p log (p/q)"
_TO_GO = "Tang and Munos 2025, arXiv 2506.09477"
_TOP = 4

_ENTRIES: dict[str, EstimatorEntry] = {
    entry.name: entry
    for entry in (
        _K1,
        _K2,
        _K3,
        _ABS,
        weighted(_K1, source=_BLOG),
        weighted(_K2, source=_BLOG),
        weighted(_K2, detached=True, source=_BLOG),
        weighted(_K3, source=_BLOG),
        straight_through(_K1, source=_VERL),
        straight_through(_K2, source=_VERL),
        straight_through(_K3, source=_VERL),
        straight_through(_ABS, source=_VERL),
        weighted(_K1, detached=True, source=_BLOG, in_specs=False),
        weighted(_K3, detached=True, source=_BLOG, in_specs=False),
        to_go(_K1, source=_TO_GO),
        over_vocabulary("full", _K1, _REVERSE, source=_RAO_BLACKWELL, descends="token_reverse_kl"),
        over_vocabulary(
            "full_forward",
            _FORWARD,
            _FORWARDS,
            source=_RAO_BLACKWELL,
            descends="token_forward_kl",
        ),
        over_vocabulary(
            "js",
            _JS,
            "sum over the vocabulary of (q log (q/m) + p log (p/m)) / 2, m = (q + p) / 2",
            source="Agarwal et al. 2024, arXiv 2306.13649, eq. 1 with beta 1/2",
            symbol="Jensen-Shannon divergence",
        ),
        over_vocabulary(
            "rb",
            _K1,
            f"{_REVERSE}, in the reward that of later tokens only",
            source=f"{_RAO_BLACKWELL}; {_TO_GO}",
            descends="token_reverse_kl",
            credit="later",
        ),
        over_vocabulary(
            "rb_k1",
            _K1,
            f"{_REVERSE}, in the reward k1 of later tokens",
            source=f"{_RAO_BLACKWELL}; {_TO_GO}",
            descends="token_reverse_kl",
            credit="later",
            in_reward="k1",
        ),
        over_vocabulary(
            f"top{_TOP}",
            _K1,
            f"{_REVERSE}, its {_TOP} likeliest tokens only",
            source="verl 0.9.1, distillation losses",
            top=_TOP,
        ),
        over_vocabulary(
            f"top{_TOP}_tail",
            _K1,
            f"{_REVERSE}, all but its {_TOP} likeliest tokens lumped into one",
            source="the KL of a coarser distribution",
            top=_TOP,
            tail=True,
        ),
        over_vocabulary(
            f"top{_TOP}_forward",
            _FORWARD,
            f"{_FORWARDS}, the reference's {_TOP} likeliest tokens only",
            source="verl 0.9.1, distillation losses (forward_kl_topk)",
            top=_TOP,
            top_of="reference",
        ),
        over_vocabulary(
            f"top{_TOP}_js",
            _JS,
            f"the terms of js of the reference's {_TOP} likeliest tokens, all others as one",
            source="the Jensen-Shannon divergence of a coarser distribution",
            top=_TOP,
            top_of="reference",
            tail=True,
        ),
    )
}


class EstimatorTable(Mapping[str, EstimatorEntry]):
    """Entries by name, in order, those of other packages last.

    Their packages are looked for when a name that is not orch's own, or the whole table, is read.
    """

    def __init__(self, entries: dict[str, EstimatorEntry]):
        self.entries = entries
        self.load_plugins: Callable[[], None] = lambda: None
        """Registers the entries of other packages; called once. orchestrator/__init__.py puts the
        function of `orchestrator.plugins` here: the table lies below it."""
        self._is_loaded = False

    def __getitem__(self, name: str) -> EstimatorEntry:
        if name not in self.entries:
            self._load()
        return self.entries[name]

    def __iter__(self) -> Iterator[str]:
        self._load()
        return iter(self.entries)

    def __len__(self) -> int:
        self._load()
        return len(self.entries)

    def _load(self) -> None:
        if self._is_loaded:
            return
        before = dict(self.entries)
        self._is_loaded = True  # first, as the loader may read the table itself
        try:
            self.load_plugins()
        except BaseException:  # leave no half-filled table: the next reader gets the same error
            self.entries.clear()
            self.entries.update(before)
            self._is_loaded = False
            raise


TABLE = EstimatorTable(_ENTRIES)


def entry(name: str) -> EstimatorEntry:
    """Return the entry of that name. Raise LookupError with a sentence if there is none."""
    try:
        return TABLE[name]
    except KeyError:
        raise LookupError(
            f"no KL estimator is called '{name}'{did_you_mean(name, tuple(TABLE))} "
            f"(there are: {', '.join(TABLE)})"
        ) from None


def names() -> tuple[str, ...]:
    """Return the names of estimators that a spec may use, without `none`."""
    return tuple(name for name, entry in TABLE.items() if entry.in_specs)


def choices() -> tuple[str, ...]:
    """Return the values that `kl.estimator` may have: `none`, then `names()`."""
    return (NONE, *names())


def is_choice(name: str) -> bool:
    """Return whether `kl.estimator` may have this value."""
    entry = TABLE.get(name)
    return name == NONE if entry is None else entry.in_specs


def plain_names() -> tuple[str, ...]:
    """Return the estimators that are neither weighted nor straight-through."""
    return tuple(name for name, entry in TABLE.items() if entry.is_plain)


def vocabulary_names() -> tuple[str, ...]:
    """Return the estimators that average over the policy's next-token distribution."""
    return tuple(name for name, entry in TABLE.items() if entry.is_of_vocabulary)


def register(new: EstimatorEntry) -> None:
    """Add an estimator at the end of the table.

    Raise EnvironmentFault on a name that is taken or cannot stand in `k1.reward`, and on a base
    that is no plain estimator of the table.
    """
    if new.name in _ENTRIES or new.name == NONE:
        raise EnvironmentFault(
            f"the KL estimator '{new.name}' is in the table already; give yours another name"
        )
    if not new.name.removesuffix("+").isidentifier():
        raise EnvironmentFault(
            f"the name of a KL estimator is letters, digits and '_', with '+' at the end if it is "
            f"straight-through; got '{new.name}'"
        )
    alone = new.is_plain or new.is_of_vocabulary
    base = new if alone else _ENTRIES.get(new.base)
    if base is None or not (alone or base.is_plain) or new.base != base.name:
        raise EnvironmentFault(
            f"the KL estimator '{new.name}' derives from '{new.base}', which is no plain estimator "
            f"of the table: register '{new.base}' first"
        )
    _ENTRIES[new.name] = new


def unregister(name: str) -> None:
    """Take an estimator out of the table again; for tests."""
    del _ENTRIES[name]
