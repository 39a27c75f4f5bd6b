"""Releases that a text asks for by name: pip pins, git tags, images."""

import re
from collections.abc import Iterator

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
