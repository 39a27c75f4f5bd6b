"""Releases that a text asks for by name: pip pins, git tags, images."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from orchestrator.library.releases import PRIME_RL_TAU

_VERSION = r"v?(\d+\.\d+(?:\.\d+)?(?:\.post\d+)?)"
_PATTERNS = (
    ("verl", re.compile(rf"\bverl(?:\[[\w,-]+\])?==\s*{_VERSION}")),
    ("verl", re.compile(rf"/verl(?:\.git)?@{_VERSION}\b")),
    ("verl", re.compile(rf"verlai/verl:app-verl{_VERSION}")),
    ("verl", re.compile(rf"(?:-b|--branch)[ =]{_VERSION}\S*\s+\S*/verl\b")),
    ("openrlhf", re.compile(rf"\bopenrlhf(?:\[[\w,-]+\])?==\s*{_VERSION}", re.IGNORECASE)),
    ("openrlhf", re.compile(rf"/OpenRLHF(?:\.git)?@{_VERSION}\b")),
    ("openrlhf", re.compile(rf"(?:-b|--branch)[ =]{_VERSION}\S*\s+\S*/OpenRLHF\b")),
    ("skyrl", re.compile(rf"\bskyrl(?:\[[\w,-]+\])?==\s*{_VERSION}")),
    ("prime_rl", re.compile(rf"/prime-rl(?:\.git)?@{_VERSION}\b")),
)


_OLD_VERL = re.compile(r"VLLM_ATTENTION_BACKEND[=:]\s*[\"']?XFORMERS")
BEFORE_SWITCH = "verl before 0.4.0"


def pins(text: str) -> Iterator[tuple[str, str]]:
    """Library, and its release with where it is asked for."""
    for library, pattern in _PATTERNS:
        match = pattern.search(text)
        if match is not None:
            line = text.count("\n", 0, match.start()) + 1
            yield library, f"{match[1]} line {line} asks for it"
    match = _OLD_VERL.search(text)
    if match is not None:
        line = text.count("\n", 0, match.start()) + 1
        why = (
            f"line {line} sets VLLM_ATTENTION_BACKEND=XFORMERS, which launches with a kl_coef and "
            "without use_kl_in_reward did before 0.4.0 only"
        )
        yield BEFORE_SWITCH, why


# What lies beside a script: configurations it builds on, and the release its project pins.


LARGEST = 400_000
UPWARDS = 6
_VERSION_FILES = (
    ("verl", "verl/version/version"),
    ("openrlhf", "version.txt"),
    ("skyrl-train", "skyrl-train/pyproject.toml"),
    ("skyrl-train", "skyrl_train/pyproject.toml"),
)
_PIN_FILES = ("requirements.txt", "pyproject.toml", "setup.py", "requirements-train.txt")
_VERL_CONFIG = "verl/trainer/config/ppo_trainer.yaml"
_TAU_FILES = (
    "packages/prime-rl-configs/src/prime_rl/configs/trainer.py",
    "src/prime_rl/configs/trainer.py",
    "src/prime_rl/trainer/rl/config.py",
)
_TAU = re.compile(
    r"\bkl_tau\s*:[^\n]*?(?:\]\s*=\s*|Field\(\s*(?:default\s*=\s*)?)([\d.]+(?:e-?\d+)?)"
)
_PATH = re.compile(r"[\w./ @+=-]{1,300}\.(toml|ya?ml|sh|bash|slurm|sbatch)")
_NUMBER = re.compile(r"^(?:version\s*=\s*[\"'])?v?(\d+\.\d+(?:\.\d+)?(?:\.(?:post|dev)\d+)?)", re.M)


class NeighbourFiles(Mapping[str, str]):
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
