"""The shipped experiments declare what they say, and the guide's examples are true."""

import re
from collections import Counter
from pathlib import Path

import pytest

from orchestrator.records import Cell
from orchestrator.spec import load
from orchestrator.spec.expand import expand
from tests.spec.spec_files import ROOT, folder, write

SOURCED = re.compile(r"§|App\.|Fig\.|eq\.|[Nn]ot |assumed|Prime-RL|Dr\. GRPO|verl|\.\.\.")
EXPERIMENTS = ROOT / "experiments"
SPECS = sorted(EXPERIMENTS.glob("*.yaml"))


def cells(name: str, *overrides: str) -> list[Cell]:
    return expand(load(EXPERIMENTS / f"{name}.yaml", overrides))


def test_the_paper_has_62_cells_a_seed() -> None:
    found = cells("comedy_full", "seeds=[0]")
    assert Counter(study for cell in found for study in cell.studies) == {
        "onpolicy": 34,
        "minibatch4": 13,
        "async10": 10,
        "both": 5,
    }
    assert len({cell.id for cell in found}) == 62
    assert len(cells("comedy_full")) == 6 * 62


def test_the_onpolicy_study_is_the_papers() -> None:
    found = [c for c in cells("comedy_full", "seeds=[0]") if "onpolicy" in c.studies]
    assert {c.axes["kl"] for c in found} == {
        "none",
        "k1.reward",
        "k1.loss",
        "k3.reward",
        "k3.loss",
    }
    assert {c.axes["beta"] for c in found} == {"0", "0.05", "0.1", "0.3", "1"}
    for cell in found:
        s = cell.settings
        assert (s.advantage.estimator, s.loss.aggregation) == ("rloo", "token_mean")
        assert (s.batch.num_prompts, s.batch.num_minibatches) == (256, 1)
        assert (s.rollout.group_size, s.rollout.max_response_tokens) == (5, 1024)
        assert (s.optimizer.learning_rate, s.num_train_steps) == (1e-6, 250)
        assert (s.data.num_prompts, s.backend.name) == (7500, "verl")
        assert (cell.resources.num_nodes, cell.resources.gpus_per_node) == (2, 4)


def test_the_other_studies_are_the_papers() -> None:
    found = cells("comedy_full", "seeds=[0]")
    four = [c.settings for c in found if "minibatch4" in c.studies]
    assert {(s.batch.num_prompts, s.batch.num_minibatches) for s in four} == {(1024, 4)}
    assert {s.num_train_steps // s.batch.num_minibatches for s in four} == {250}
    late = [c for c in found if "async10" in c.studies]
    assert {(c.axes["model"], c.axes["data"], c.resources.num_nodes) for c in late} == {
        ("qwen2.5-7b", "math", 2),
        ("qwen3-4b-instruct-2507", "countdown", 1),
    }
    assert {c.axes["async"] for c in late} == {"10"}
    assert {c.settings.rollout.group_size * c.settings.batch.num_prompts for c in late} == {512}
    assert {c.axes["beta"] for c in late} == {"0", "0.005"}
    both = [c for c in found if "both" in c.studies]
    assert {c.axes["kl"] for c in both} == {"none", "k1.both", "k3.both", "k1.reward", "k3.loss"}
    assert {c.settings.num_train_steps for c in both} == {150}


def test_evaluation_is_the_papers() -> None:
    spec = load(EXPERIMENTS / "comedy_full.yaml")
    of_math = [t for t in spec.evaluation.tasks if t.when != ("data=countdown",)]
    assert Counter(t.domain for t in of_math) == {"in": 2, "out": 3}
    assert {t.repeats for t in spec.evaluation.tasks} == {32}
    assert Counter(b.model for b in spec.evaluation.baselines)["qwen2.5-7b"] == 2
    assert spec.evaluation.sampling.min_p == 0.0
    literal = load(EXPERIMENTS / "comedy_full.yaml", ["sampling=paper_literal"])
    assert literal.evaluation.sampling.min_p == 1.0


@pytest.mark.parametrize("path", SPECS, ids=[p.stem for p in SPECS])
def test_every_spec_loads_and_asks_something(path: Path) -> None:
    spec = load(path)
    assert spec.name == path.stem
    assert spec.question.endswith("?")
    assert spec.claims
    assert expand(spec)
    assert all(
        cell.settings.backend.version or cell.settings.backend.name == "micro"
        for cell in expand(spec)
    )


def test_cross_library_asks_the_same_of_five() -> None:
    found = cells("cross_library", "seeds=[0]")
    four = dict.fromkeys(("verl", "openrlhf", "skyrl", "prime_rl"), 9)
    assert Counter(c.axes["backend"] for c in found) == four | {"trl": 3}
    rest = {c.settings.model_copy(update={"backend": found[0].settings.backend}) for c in found}
    assert len(rest) == 9
    assert len(cells("cross_library")) == (4 * 9 + 3) * 3


@pytest.mark.parametrize("group", ["recipe", "model", "data", "evaluation", "sampling"])
def test_every_line_says_where_it_is_from(group: str) -> None:
    """A value's section of the paper, or that it is not the paper's, on its line or above it."""
    for path in sorted((EXPERIMENTS / group).glob("*.yaml")):
        above = ""
        for line in path.read_text(encoding="utf-8").splitlines():
            text, _, comment = line.partition("#")
            if not text.strip():
                above += comment
            elif re.search(r":\s*[^\s{]", text) and "defaults" not in text:
                assert SOURCED.search(comment or above), f"{path.name}: {line}"
                above = comment or above


SHIPPED = (EXPERIMENTS / "README.md").read_text(encoding="utf-8")
GUIDE = (EXPERIMENTS.parent / "docs" / "spec.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```yaml\n# (\d+) cells\n(.*?)```", GUIDE, re.S)


@pytest.mark.parametrize(("count", "body"), EXAMPLES)
def test_the_examples_of_the_guide(tmp_path: Path, count: str, body: str) -> None:
    text = "defaults: [recipe: onpolicy_math, _self_]\nname: x\nmodel: qwen2.5-7b\n"
    text += "backend: verl\nstudies:\n  a:\n" + "".join(f"    {x}\n" for x in body.splitlines())
    assert len(expand(load(write(folder(tmp_path), text)))) == int(count)


def test_the_guide_has_examples_and_names_every_spec() -> None:
    assert len(EXAMPLES) >= 6
    assert all(f"`{path.name}`" in SHIPPED for path in SPECS)
