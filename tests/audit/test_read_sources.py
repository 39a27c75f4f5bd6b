"""What readers say an estimator's name means, measured in the library's own function on CPU torch.

Each library is on no registry: ORCH_<NAME>_SOURCE names a checkout of the release in the table; a
library without one is skipped, and says so. ms-swift computes its KL inside its trainer's method:
it is read, and not measured.
"""

import ast
import os
import typing
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orchestrator.estimators import TABLE

Estimate = Callable[[Any, Any], Any]
"""log-probabilities of the policy and the reference policy -> the estimate of each token."""


def own(library: str, release: str, path: str, name: str) -> Callable[..., Any]:
    """Return one function of a checkout, without its decorators, run on its own."""
    torch = pytest.importorskip("torch")
    variable = f"ORCH_{library.upper()}_SOURCE"
    folder = os.environ.get(variable)
    if folder is None or not (Path(folder) / path).is_file():
        warnings.warn(
            f"{variable} names no checkout of {library} {release}: not measured", stacklevel=1
        )
        pytest.skip(f"{variable} names no checkout of {library} {release}")
    tree = ast.parse((Path(folder) / path).read_text(encoding="utf-8"))
    (found,) = (n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == name)
    found.decorator_list = []
    scope: dict[str, Any] = {"torch": torch, "F": torch.nn.functional, **vars(typing)}
    exec(compile(ast.Module([found], []), path, "exec"), scope)  # noqa: S102 - its own checkout
    function: Callable[..., Any] = scope[name]
    return function


def slime(name: str, ratio: bool) -> Estimate:
    kl = own("slime", "0.3.1", "slime/utils/ppo_utils.py", "compute_approx_kl")

    def estimate(policy: Any, reference: Any) -> Any:
        weight = (policy - policy.detach()).exp() if ratio else None
        return kl(policy, reference, name, weight)

    return estimate


def nemo_rl(release: str, name: str) -> Estimate:
    """Return the estimate with the weight that ClippedPGLossFn of the release gives it."""
    variable = f"nemo_rl_{release.replace('.', '')}"
    kl = own(variable, release, "nemo_rl/algorithms/utils.py", "calculate_kl")

    def estimate(policy: Any, reference: Any) -> Any:
        if release == "0.6.0":
            return kl(policy, reference, name)
        weight = (policy - policy.detach()).exp()
        return kl(policy, reference, name, importance_sampling_weights=weight)

    return estimate


def areal(name: str) -> Estimate:
    kl = own("areal", "1.0.4", "areal/utils/data.py", "_compute_approx_kl")
    return lambda policy, reference: kl(policy, reference, name, True)


def roll(name: str) -> Estimate:
    kl = own("roll", "0.3.0", "roll/utils/functionals.py", "compute_approx_kl")
    return lambda policy, reference: kl(policy, reference, None, name)


def open_instruct(index: int) -> Estimate:
    kl = own("open_instruct", "0.3.0", "open_instruct/model_utils.py", "estimate_kl")
    return lambda policy, reference: kl(policy - reference, (policy - policy.detach()).exp())[index]


@pytest.mark.parametrize(
    ("made", "meant"),
    [
        (lambda: slime("k1", ratio=False), "k1"),
        (lambda: slime("k2", ratio=False), "k2"),
        (lambda: slime("low_var_kl", ratio=False), "k3"),
        (lambda: slime("k1", ratio=True), "rho_k1"),
        (lambda: slime("k3", ratio=True), "k3+"),
        (lambda: nemo_rl("0.6.0", "k1"), "k1"),
        (lambda: nemo_rl("0.6.0", "k2"), "k2"),
        (lambda: nemo_rl("0.6.0", "k3"), "k3"),
        (lambda: nemo_rl("0.7.0", "k1"), "rho_k1"),
        (lambda: nemo_rl("0.7.0", "k2"), "rho_k2"),
        (lambda: nemo_rl("0.7.0", "k3"), "k3+"),
        (lambda: areal("k1"), "k1"),
        (lambda: areal("k2"), "k2"),
        (lambda: areal("k3"), "k3"),
        (lambda: roll("kl"), "k1"),
        (lambda: roll("mse"), "k2"),
        (lambda: roll("k3"), "k3"),
        (lambda: open_instruct(0), "k1"),
        (lambda: open_instruct(1), "k2"),
        (lambda: open_instruct(2), "k3"),
        (lambda: open_instruct(3), "rho_k1"),
    ],
)
def test_an_estimators_name_has_the_value_and_slope_that_the_reader_says(
    made: Callable[[], Estimate], meant: str
) -> None:
    estimate = made()
    import torch

    shift = np.linspace(-1.5, 1.5, 13)
    policy = torch.tensor(-2.0 + shift, dtype=torch.float64, requires_grad=True)
    reference = torch.full_like(policy, -2.0).detach()
    value = estimate(policy, reference)
    (slope,) = torch.autograd.grad(value.sum(), policy)
    base = TABLE[TABLE[meant].base]
    wanted = base.value(shift)
    assert np.allclose(value.detach().numpy(), wanted, atol=1e-5)
    form = TABLE[meant].form
    through = {
        "plain": base.slope(shift),
        "straight_through": TABLE["k2"].slope(shift),
        "ratio_attached": wanted + base.slope(shift),
    }
    assert np.allclose(slope.numpy(), through[form], atol=1e-5), form
