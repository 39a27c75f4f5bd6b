"""What lies beside a script: configurations it builds on, and the release its project pins."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from orchestrator.audit.keys import PRIME_RL_TAU
from orchestrator.audit.pins import pins

LARGEST = 400_000
UPWARDS = 6
_VERSION_FILES = (
    ("verl", "verl/version/version"), ("openrlhf", "version.txt"),
    ("skyrl-train", "skyrl-train/pyproject.toml"), ("skyrl-train", "skyrl_train/pyproject.toml"),
)  # fmt: skip
_PIN_FILES = ("requirements.txt", "pyproject.toml", "setup.py", "requirements-train.txt")
_VERL_CONFIG = "verl/trainer/config/ppo_trainer.yaml"
_TAU_FILES = (
    "packages/prime-rl-configs/src/prime_rl/configs/trainer.py", "src/prime_rl/configs/trainer.py",
    "src/prime_rl/trainer/rl/config.py",
)  # fmt: skip
_TAU = re.compile(
    r"\bkl_tau\s*:[^\n]*?(?:\]\s*=\s*|Field\(\s*(?:default\s*=\s*)?)([\d.]+(?:e-?\d+)?)"
)
_PATH = re.compile(r"[\w./ @+=-]{1,300}\.(toml|ya?ml|sh|bash|slurm|sbatch)")
_NUMBER = re.compile(r"^(?:version\s*=\s*[\"'])?v?(\d+\.\d+(?:\.\d+)?(?:\.(?:post|dev)\d+)?)", re.M)


class Beside(Mapping[str, str]):
    """Texts of files by the path a script gives: from its folder, or from a folder above it."""

    def __init__(self, script: Path) -> None:
        self.folders = list(_folders(script))

    def __getitem__(self, path: str) -> str:
        if not re.fullmatch(
            r"[\w./ @+=-]{1,300}\.(toml|ya?ml|sh|bash|slurm|sbatch)", path
        ) or path.startswith("/"):
            raise KeyError(path)
        for folder in self.folders:
            text = _text(folder / path)
            if text is not None:
                return text
        raise KeyError(path)

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


def versions(script: Path) -> dict[str, str]:
    """Library -> the release that the project around a script has or asks for, and where."""
    found: dict[str, str] = {}
    for folder in _folders(script):
        for library, name in _VERSION_FILES:
            if library == "openrlhf" and not (folder / "openrlhf").is_dir():
                continue
            text = _text(folder / name)
            match = _NUMBER.search(text) if text else None
            if match is not None:
                found.setdefault(library, f"{match[1]} {name} beside it says so")
        found.update(_switched(folder, found))
        for name in _TAU_FILES:
            match = _TAU.search(_text(folder / name) or "")
            if match is not None:
                found.setdefault(PRIME_RL_TAU, f"{match[1]} {name} beside it says so")
        for name in _PIN_FILES:
            text = _text(folder / name)
            for library, told in pins(text) if text else ():
                if "==" in (text or "") and not library.startswith("verl before"):
                    found.setdefault(library, f"{told.partition(' ')[0]} {name} asks for it")
        if (folder / ".git").exists():
            break
    return found


def _switched(folder: Path, found: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """What verl's own configuration says of a copy of verl: forks keep an old version file, and
    0.2.0.dev was on it for months in which the KL's switch came."""
    text = _text(folder / _VERL_CONFIG)
    if text is None or "verl" not in found:
        return
    version, _, why = found["verl"].partition(" ")
    before = tuple(int(n) for n in version.split(".")[:2]) < (0, 4)
    if before and "use_kl_in_reward" in text:
        yield "verl", f"0.4.0 {_VERL_CONFIG} beside it has use_kl_in_reward (though {why})"
    elif not before and "algorithm:" in text and "use_kl_in_reward" not in text:
        yield "verl", f"0.3.0 {_VERL_CONFIG} beside it has no use_kl_in_reward (though {why})"


def _folders(script: Path) -> Iterator[Path]:
    """The script's folder and those above it, as far as the repository it is in goes."""
    folder = script.absolute().parent
    for _ in range(UPWARDS):
        yield folder
        if (folder / ".git").exists() or folder.parent == folder:
            return
        folder = folder.parent


def _text(path: Path) -> str | None:
    try:
        if not path.is_file() or path.stat().st_size > LARGEST:
            return None
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
