"""Prime-RL itself, where a checkout is pointed to: its keys, and its loss around ours."""

import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch

from backends.prime_rl import BACKEND, hooks, parse
from tests.backends.prime_rl.conftest import asking
from tests.backends.prime_rl.test_hooks import Anything, inputs

KEYS = Path(parse.__file__).parent / "keys"


@pytest.mark.parametrize("version", BACKEND.versions)
def test_its_keys_are_those_of_the_checkout(
    version: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Save those of verifiers' and renderers' own classes, which are other packages'."""
    theirs, ours = (
        asking(version, tmp_path_factory)(),
        json.loads((KEYS / f"{version}.json").read_text()),
    )
    for each in ("rl", "inference"):
        own = {
            key: told
            for key, told in theirs[each].items()
            if ".source.env." not in key and ("renderer." not in key or key.endswith(".name"))
        }
        assert ours[each] == own


def test_its_own_code_runs_our_loss(current_source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its compute_loss, with the loss it sets up from our configuration; types are not checked."""

    class Custom(SimpleNamespace):
        pass

    anything = Anything()
    stand_ins = {
        "beartype": {"beartype": anything},
        "jaxtyping": {"Bool": anything, "Float": anything, "Int": anything, "jaxtyped": anything},
        "prime_rl": {},
        "prime_rl.configs": {},
        "prime_rl.utils": {},
        "prime_rl.configs.trainer": {
            "CustomLossConfig": Custom,
            "DefaultLossConfig": int,
            "LossConfig": int,
            "IPOLossConfig": float,
        },
        "prime_rl.utils.utils": {
            "import_object": lambda path: getattr(hooks, path.rpartition(".")[2])
        },
    }
    for name, members in stand_ins.items():
        monkeypatch.setitem(sys.modules, name, SimpleNamespace(**members))
    path = current_source / "prime_rl" / "trainer" / "rl" / "loss.py"
    theirs = ModuleType("theirs")
    monkeypatch.setitem(sys.modules, "theirs", theirs)
    exec(compile(path.read_text(), path, "exec"), theirs.__dict__)  # noqa: S102  (the library's own file)
    kwargs = {"clip_low": 0.2, "clip_high": 0.2, "advantage_scale": 16 / 15}
    function = theirs.setup_rl_loss_fn(Custom(import_path="hooks.loss", kwargs=kwargs))
    both = [inputs(7), inputs(8)]
    fields = ("trainer_logprobs", "inference_logprobs", "advantages", "loss_mask")
    weights = [torch.tensor([1.0, 1, 1, 0, 2, 1], dtype=torch.float64)] * 2
    value, _ = theirs.compute_loss(
        **{name: [getattr(given, name) for given in both] for name in fields},
        ref_logprobs=None,
        rl_weights=weights,
        ce_weights=None,
        ref_kl_weights=None,
        rl_loss_fn=function,
        rl_scale=8,
        ce_scale=1,
        ref_kl_scale=1,
    )
    ours = torch.zeros((), dtype=torch.float64)
    for one, weight in zip(both, weights, strict=True):
        kept = one.loss_mask & (weight != 0)
        ratio = (one.trainer_logprobs - one.inference_logprobs)[kept].exp()
        advantage = one.advantages[kept] * 16 / 15
        gain = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
        ours = ours - (gain * weight[kept]).sum() / 8
    torch.testing.assert_close(value, ours)
