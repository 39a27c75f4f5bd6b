"""orch looks at the GPUs before a trainer starts; a stand-in answers in nvidia-smi's place."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from orchestrator.launch.node.gpus import gpu_fault
from tests.launch.kit import program

WELL = "0, 81153, 81920, 0\n1, 81153, 81920, 0\n"
Install = Callable[[str], object]


@pytest.fixture
def nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Puts a shell script in the place of nvidia-smi."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    return partial(program, tmp_path / "nvidia-smi")


def prints(text: str) -> str:
    return f"cat <<'END'\n{text}END"


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        (WELL, ""),
        (WELL.replace("81153", "[N/A]").replace(" 0\n", " [N/A]\n"), ""),
        (WELL.replace("1, 81153, 81920, 0", "1, 81153, 81920, 3"), "GPU 1 has 3 uncorrectable ECC"),
        (WELL.replace("0, 81153", "0, 60000"), "GPU 0 has 60000 of 81920 MiB free"),
        (WELL.replace("1, 81153", "1, [GPU requires reset]"), "GPU 1: nvidia-smi says '[GPU req"),
        ("0, 81153, 81920, 0\n", "nvidia-smi lists 1 of the 2 GPUs"),
        ("No devices were found\n", "nvidia-smi says 'No devices were found'"),
    ],
)
def test_what_is_wrong_with_a_gpu_is_a_sentence(
    nvidia_smi: Install, answer: str, fault: str
) -> None:
    nvidia_smi(prints(answer))
    told = gpu_fault(2)
    assert told.startswith(fault)
    assert bool(told) == bool(fault)
