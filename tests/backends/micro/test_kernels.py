"""The compiled kernels: their numbers at the edges, and where their file comes from."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from backends.micro import batched, fused, huggingface, kernels
from backends.micro.batched import Folded
from backends.micro.policy import one_quiet_core
from backends.micro.shape import NUM_TOKENS
from backends.micro.shipped import POLICIES
from orchestrator.errors import EnvironmentFault
from orchestrator.settings import EngineFormat


@pytest.fixture(scope="module")
def policy() -> Tensor:
    """A policy near `elder`, in float64."""
    one_quiet_core()
    base = huggingface.read(POLICIES / "elder").double()
    return base + 0.01 * torch.randn(len(base), generator=torch.Generator().manual_seed(1))


SHAPES = {
    "usual": (4, 5, 7),
    "groups of one": (5, 1, 7),
    "one prompt": (1, 6, 7),
    "one token": (3, 4, 1),
    "the longest": (2, 2, 56),
}
CLOSE = {torch.float64: 1e-9, torch.float32: 2e-5}


@pytest.mark.parametrize("real", [torch.float64, torch.float32])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize(("temperature", "top_p"), [(1.0, 1.0), (1.5, 0.8)])
def test_tokens_log_probabilities_and_gradients_are_those_of_torch(
    temperature: float,
    top_p: float,
    shape: tuple[int, int, int],
    real: torch.dtype,
    policy: Tensor,
) -> None:
    """With a slope in the whole vocabulary of every position too, and with equal prompts."""
    flat, draw = policy.to(real), torch.Generator().manual_seed(3)
    prompts = torch.randint(3, NUM_TOKENS, (shape[0], 8), generator=draw)
    prompts[-1] = prompts[0]
    uniforms = torch.rand(*shape, generator=draw)
    own, peer = fused.packed(flat), batched.folded(flat)
    assert own is not None
    sampled = own.sample(prompts, uniforms, temperature, top_p)
    wanted = peer.sample(prompts, uniforms, temperature, top_p)
    tokens, mask = sampled.rollouts.tokens, sampled.rollouts.mask
    assert torch.equal(tokens, wanted.rollouts.tokens)
    assert torch.equal(mask, wanted.rollouts.mask)
    scored = own.score(prompts, tokens, mask, temperature, keep=True)
    for one in (sampled.scored, scored):
        torch.testing.assert_close(one.logp, wanted.scored.logp, atol=CLOSE[real], rtol=0)
        entropy = wanted.scored.entropy() * mask
        torch.testing.assert_close(one.entropy(), entropy, atol=CLOSE[real], rtol=0)
        torch.testing.assert_close(one.logps, sampled.scored.logps, atol=0, rtol=0)
    slope = torch.randn(logp_shape := sampled.scored.logp.shape, dtype=real) * mask
    assert logp_shape == uniforms.shape
    seen = (sampled.scored.logps != 0).any(-1, keepdim=True)
    further = torch.randn(sampled.scored.logps.shape, dtype=real) * seen
    expected = peer.gradient(wanted.scored, tokens, slope, temperature, further)
    for one in (sampled.scored, scored):
        gradient = own.gradient(one, tokens, slope, temperature, further)
        assert (gradient - expected).abs().max() <= CLOSE[real] * expected.abs().max()


@pytest.mark.parametrize("rounded", ["bf16", "fp16", "fp8", "int8"])
def test_an_engines_logits_are_rounded_as_torch_rounds_them(
    rounded: EngineFormat, policy: Tensor
) -> None:
    """The kernels and torch give logits that differ in their last bits; few are beside a tie."""
    flat = policy.float()
    draw = torch.Generator().manual_seed(5)
    prompts = torch.randint(3, NUM_TOKENS, (8, 8), generator=draw)
    uniforms = torch.rand(8, 3, 7, generator=draw)
    own = fused.prepared(flat).sample(prompts, uniforms, rounded=rounded)
    peer = batched.folded(flat).sample(prompts, uniforms, rounded=rounded)
    same = own.scored.logps[:, 0] - peer.scored.logps[:, 0]
    assert (same.abs() < 1e-5).float().mean() > 0.9
    exact = batched.folded(flat).sample(prompts, uniforms)
    assert (own.scored.logps - exact.scored.logps)[:, 0].abs().max() > 1e-4


TINY = "\n".join(
    f"unsigned long {name}(void) {{ return 0; }}"
    for name in ("policy_bytes", "tree_bytes", "slope_bytes")
)


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder in which the kernels are kept; a source that compiles at once."""
    source = tmp_path / "tiny.c"
    source.write_text(TINY)
    monkeypatch.setattr(kernels, "SOURCE", source)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "kept 'a' é"))
    kernels._attempt.cache_clear()
    yield tmp_path / "kept 'a' é" / "orch"
    monkeypatch.undo()
    kernels._attempt.cache_clear()


def loaded() -> tuple[kernels.Kernels, list[str]]:
    """The kernels, looked for anew, and the compilers' commands that this took."""
    kernels._attempt.cache_clear()
    commands = []
    finished = kernels._finished

    def counted(command: list[str]) -> "subprocess.CompletedProcess[str]":
        commands.append(command)
        return finished(command)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "_finished", counted)
        result = kernels.loaded("float")
    return result, [command[-1] for command in commands if "-o" in command]


def test_they_are_compiled_once_into_a_folder_of_the_user(tiny: Path) -> None:
    first, compiles = loaded()
    assert len(compiles) == 1
    (file,) = tiny.iterdir()
    assert tiny.stat().st_mode & 0o777 == 0o700
    again, compiles = loaded()
    assert (again.name, compiles) == (first.name, [])
    assert again.library._name == str(file)


def test_a_file_that_was_cut_or_changed_is_not_loaded(tiny: Path) -> None:
    loaded()
    (file,) = tiny.iterdir()
    raw = file.read_bytes()
    for content in (raw[: len(raw) // 2], b"", raw + b"!"):
        file.unlink()
        file.write_bytes(content)
        _, compiles = loaded()
        assert len(compiles) == 1
        assert [one.read_bytes() for one in tiny.iterdir()] == [raw]
    whole = tiny / "elsewhere"
    file.rename(whole)
    file.symlink_to(whole)
    assert len(loaded()[1]) == 1
    assert not file.is_symlink()


@pytest.mark.parametrize(
    ("compiler", "sentence"),
    [
        ("/nowhere/cc", "torch (no C compiler: CC=/nowhere/cc not found)"),
        ("false", "torch ({false} cannot compile the kernels: no message)"),
        ("cc 'x", "torch (CC cannot be read as a command: No closing quotation)"),
    ],
)
@pytest.mark.usefixtures("tiny")
def test_without_a_compiler_torch_computes_and_says_so(
    compiler: str, sentence: str, policy: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    import shutil

    monkeypatch.setenv("CC", compiler)
    assert kernels.described() == sentence.format(false=shutil.which("false"))
    assert isinstance(fused.prepared(policy.float()), Folded)


def test_the_environment_chooses_torch(policy: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    flat = policy.float()
    assert isinstance(fused.prepared(flat), fused.Packed)
    assert kernels.described().startswith("C kernels ")
    monkeypatch.setenv(kernels.ENGINE, "torch")
    assert isinstance(fused.prepared(flat), Folded)
    assert kernels.described() == "torch (ORCH_MICRO_ENGINE=torch)"
    monkeypatch.setenv(kernels.ENGINE, "numba")
    with pytest.raises(EnvironmentFault, match="must be c or torch, got 'numba'"):
        fused.prepared(flat)
