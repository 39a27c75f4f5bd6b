"""`system`, `backend.extra` and the layout of GPUs, as a spec and a site write them."""

from pathlib import Path

import pytest

from orchestrator.errors import SpecError
from orchestrator.launch.slurm.flags import site_flags
from orchestrator.runs.cost import price
from orchestrator.settings import Resources
from orchestrator.spec import load
from orchestrator.spec.expand import expand
from orchestrator.spec.node_gpus import gpus_of_node, laid_out, requested_gres
from orchestrator.spec.site_options import of_evaluation, slurm_options
from tests.spec.spec_files import folder, write

SPEC = """\
defaults: [recipe: onpolicy_math, _self_]
name: x
model: qwen2.5-7b
backend: {backend}
{more}
studies:
  a:
    base: {{kl: k1.reward, kl.beta: 0.1{base}}}
{study}
"""


@pytest.fixture
def here(tmp_path: Path) -> Path:
    return folder(tmp_path)


def spec(
    here: Path, more: str = "", study: str = "", backend: str = "verl@0.9.1", base: str = ""
) -> Path:
    return write(here, SPEC.format(more=more, study=study, backend=backend, base=base))


def test_the_study_is_over_the_spec_and_the_spec_over_the_site(here: Path) -> None:
    site = (
        "site: {kind: slurm, options: {gres: 'gpu:a100:8'}, "
        "system: {micro_batch: 1, engine_memory: 0.3, offload: true}}"
    )
    path = spec(
        here,
        f"{site}\nsystem: {{micro_batch: 2, engine_memory: 0.4}}",
        "    system: {micro_batch: 4}",
    )
    (cell,) = expand(load(path))
    assert (cell.system.micro_batch, cell.system.engine_memory) == (4, 0.4)
    assert cell.system.offload is True
    (plain,) = expand(load(spec(here)))
    assert plain.id == cell.id
    (other,) = expand(load(path, ["system.offload=false", "studies.a.system.micro_batch=8"]))
    assert (other.system.micro_batch, other.system.offload, other.id) == (8, False, cell.id)


@pytest.mark.parametrize(
    ("more", "study", "base", "words"),
    [
        ("", "    axes: {system.micro_batch: [1, 2]}", "", "system.micro_batch is no axis"),
        ("system: {micro_batchs: 2}", "", "", "did you mean 'micro_batch'"),
        ("system: {micro_batch: 2, tokens_per_gpu: 9000}", "", "", "give one"),
        ("system: {engine_memory: 60}", "", "", "must be <= 1"),
        ("", "", ", system: {micro_batch: 2}", "write it beside `base`"),
    ],
)
def test_what_is_wrong_is_told(here: Path, more: str, study: str, base: str, words: str) -> None:
    with pytest.raises(SpecError, match="fault") as caught:
        load(spec(here, more, study, base=base))
    assert words in str(caught.value)


def test_keys_of_the_library_are_an_axis_and_part_of_the_id(here: Path) -> None:
    key = "actor_rollout_ref.rollout.max_num_seqs"
    name = f"{{name: verl@0.9.1, extra: {{{key}: 512}}}}"
    (cell,) = expand(load(spec(here, backend=name)))
    assert cell.settings.backend.version == "0.9.1"
    assert cell.settings.backend.passed == {key: 512}
    axis = "".join(f"{{name: verl, extra: {{{key}: {n}}}}}, " for n in (256, 512))
    cells = expand(load(spec(here, study=f"    axes: {{backend: [verl, {axis}]}}")))
    assert len({each.id for each in cells}) == len({each.slug for each in cells}) == 3
    assert {each.axes["backend.extra"] for each in cells} == {"none", f"{key}256", f"{key}512"}


@pytest.mark.parametrize(
    ("gres", "asked", "given"),
    [
        ("gpu:a100:8", (2, 4), (1, 8)),
        ("gpu:a100:4", (1, 8), (2, 4)),
        ("gpu:a100:8", (1, 4), (1, 4)),
        ("gpu:a100:8", (4, 4), (2, 8)),
        ("gpu:8", (3, 2), (1, 6)),
        (None, (2, 4), (2, 4)),
        ("gpu:a100:8", (1, 0), (1, 0)),
    ],
)
def test_gpus_are_laid_out_on_what_a_node_has(
    gres: str | None, asked: tuple[int, int], given: tuple[int, int]
) -> None:
    resources = Resources(num_nodes=asked[0], gpus_per_node=asked[1])
    laid = laid_out(resources, {"gres": gres})
    assert (laid.num_nodes, laid.gpus_per_node) == given


def test_a_layout_changes_no_id_and_a_mismatch_is_refused(here: Path) -> None:
    site = "site: {{kind: slurm, options: {{gres: 'gpu:a100:{}'}}}}"
    base = ", resources: {num_nodes: 1, gpus_per_node: 8}"
    (eight,) = expand(load(spec(here, site.format(8), base=base)))
    (four,) = expand(load(spec(here, site.format(4), base=base)))
    assert eight.id == four.id
    assert (four.resources.num_nodes, four.resources.gpus_per_node) == (2, 4)
    assert price(eight) == price(four)
    with pytest.raises(SpecError) as caught:
        load(spec(here, site.format(3), base=base))
    assert "a node of this site has 3 (site.options.gres)" in str(caught.value)


def test_a_job_asks_for_what_its_cell_uses() -> None:
    options = slurm_options({"gres": "gpu:a100:8,nvme:1"})
    assert site_flags(options, 4)["gres"] == "gpu:a100:4,nvme:1"
    assert "gres" not in site_flags(options, 0)
    assert requested_gres(None, 2) == "gpu:2"
    assert requested_gres("gpu:8", 2) == "gpu:2"
    assert gpus_of_node({"gres": "gpu:a100:8(S:0-1)"}) == 8


def test_an_evaluation_with_one_gpu_asks_for_its_share_of_memory() -> None:
    site = slurm_options({"gres": "gpu:a100:8", "memory_gib": 800})
    assert of_evaluation(site, 1, small=False).memory_gib == 100
    assert of_evaluation(site, 8, small=False).memory_gib == 800
    own = slurm_options(
        {"gres": "gpu:a100:8", "memory_gib": 800, "evaluation": {"memory_gib": 9.0}}
    )
    assert of_evaluation(own, 1, small=False).memory_gib == 9
