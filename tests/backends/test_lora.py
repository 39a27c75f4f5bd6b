"""`lora` in every library: sent and read back, in the id, refused where it would not train."""

import pytest

from orchestrator import plugins
from orchestrator.identity import fingerprint
from orchestrator.library import lora
from tests.backends.test_system import launched

ASKED = {"rank": 8, "alpha": 32, "targets": ["v_proj", "q_proj"]}
NAMED = {
    library: ASKED | ({"targets": "all-linear"} if library == "skyrl" else {})
    for library in ("verl", "trl", "skyrl", "prime_rl")
}
SENT = {
    "verl": (
        "actor_rollout_ref.model.lora_rank=8",
        "actor_rollout_ref.rollout.layered_summon=True",
    ),
    "trl": ("use_peft: true", "lora_target_modules: ["),
    "skyrl": ("trainer.policy.model.lora.rank=8", "lora.lora_sync_path="),
    "prime_rl": ("[trainer.model.lora]", "save_adapter_separately = true"),
}


@pytest.mark.parametrize("library", NAMED)
def test_an_adapter_reaches_the_library(library: str) -> None:
    plan, settings = launched(library, lora=NAMED[library])
    whole, full = launched(library)
    entries = {each.field: each for each in plan.ledger if each.field.startswith("lora")}
    assert set(entries) == {"lora.rank", "lora.alpha", "lora.targets"}
    said = "\n".join((*plan.argv, *plan.files.values()))
    assert all(each in said for each in SENT[library])
    assert plugins.load(library).parse(plan.argv, plan.files).lora == settings.lora
    assert plugins.load(library).parse(whole.argv, whole.files).lora is None
    assert lora.MERGE in plan.files
    assert lora.MERGE not in whole.files
    assert fingerprint(settings) != fingerprint(full)
