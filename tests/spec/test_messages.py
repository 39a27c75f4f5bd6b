"""What people write by mistake, and the answer that says what to write."""

from pathlib import Path

import pytest

from orchestrator.audit.pipeline import findings
from orchestrator.errors import SpecError
from orchestrator.library.launches import UnreadableScript
from orchestrator.spec import load
from orchestrator.spec.site_options import SlurmOptions, of_evaluation

SPEC = """
name: mine
seeds: [0]
base:
  model: {name: elder, path: "micro:elder"}
  data: {name: sort, path: "micro:sort", reward: exact}
  advantage: {estimator: rloo}
  loss: {aggregation: token_mean}
  rollout: {group_size: 5, max_response_tokens: 7}
  batch: {num_prompts: 16}
  optimizer: {learning_rate: 1.0e-3}
  num_train_steps: 2
  backend: {name: micro}
studies: {one: {axes: {kl: [{estimator: k3, placement: loss, beta: 0.3}]}}}
"""


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ("  seeds", "", ""),
        ("  backend: {", "  recipe: onpolicy_math\n  backend: {", "write `recipe:` at the top"),
        ("studies:", "resources: {gpus_per_node: 4}\nstudies:", "'resources' is a setting: give"),
        ("  backend: {", " backend: {", "indented by 1 spaces; lines above it by 0"),
        (
            "  backend: {",
            "  kl.beta=0.1:\n  backend: {",
            "in a file write `kl.beta: 0.1`, with a colon",
        ),
        (
            "  backend: {",
            "  beta: 0.1\n  backend: {",
            "unknown field 'beta', did you mean 'kl.beta'",
        ),
    ],
)
def test_a_spec_says_what_to_write(before: str, after: str, told: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(SPEC.replace(before, after))
    if not told:
        assert load(path).name == "mine"
        return
    with pytest.raises(SpecError, match=told):
        load(path)


def test_a_spec_given_as_script_names_the_command() -> None:
    with pytest.raises(UnreadableScript, match=r"a spec of orch.*orch plan mine\.yaml"):
        findings(SPEC, "mine.yaml", {}, {})


def test_an_evaluation_with_one_gpu_asks_for_its_share_of_memory() -> None:
    site = SlurmOptions(gres="gpu:a100:8", memory_gib=800)
    assert of_evaluation(site, 1, small=False).memory_gib == 100
    assert of_evaluation(site, 8, small=False).memory_gib == 800
    own = site.model_copy(
        update={"evaluation": site.evaluation.model_copy(update={"memory_gib": 9.0})}
    )
    assert of_evaluation(own, 1, small=False).memory_gib == 9
