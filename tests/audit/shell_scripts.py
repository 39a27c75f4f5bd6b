"""Scripts that set X in a way drawn at random, and what bash itself makes of them."""

import os
import random
import subprocess
from collections.abc import Sequence
from pathlib import Path

KEY = "algorithm.kl_ctrl.kl_coef"
LAUNCH = f'\npython3 -m verl.trainer.main_ppo {KEY}="$X" trainer.last=1\n'
PROGRAM = (
    '#!/bin/bash\nfor word in "$@"; do\n'
    f'  case "$word" in {KEY}=*) printf "%s\\0" "${{word#*=}}";; esac\ndone\n'
)
"""A `python3` that prints what it is given for the key, each with a zero byte behind."""

SETTERS = Path(__file__).with_name("setters.txt")
"""Ways to set X: `§` is a number such as 0.137, `¤` a digit. A heredoc goes on to its end."""
WRAPPERS = (
    "%s",
    "%s",
    "%s",
    "if true; then\n%s\nfi",
    "{\n%s\n}",
    "g() {\n%s\n}\ng",
    "for turn in 1; do\n%s\ndone",
    "case yes in yes)\n%s\n;; esac",
    "[ 1 = 1 ] && {\n%s\n}",
    "X=0.7\n(\n%s\n)",
    "X=0.7\n{\n%s\n} | cat",
    "X=0.7\n{\n%s\n} &\nwait",
    "X=0.7\nif false; then\n%s\nfi",
    "while true; do\n%s\nbreak\ndone",
)
"""Constructs around a way to set X. Some are processes of their own, which set nothing outside."""


def setters() -> list[str]:
    """Return the ways to set X. A heredoc's lines belong to the line that begins it."""
    joined: list[str] = []
    is_inside = False
    for line in SETTERS.read_text(encoding="utf-8").splitlines():
        if is_inside:
            joined[-1] += f"\n{line}"
            is_inside = line != (")" if "$(cat" in joined[-1] else "EOF")
            continue
        joined.append(line)
        is_inside = "<<EOF" in line
    return joined


def script(rng: random.Random, ways: Sequence[str]) -> str:
    """Return a script that sets X in one or two of the ways, at times within another construct."""
    parts = []
    for way in rng.sample(list(ways), rng.choice([1, 1, 2])):
        filled = way.replace("¤", str(rng.randint(1, 5))).replace("§", f"0.{rng.randint(101, 989)}")
        parts.append(rng.choice(WRAPPERS) % filled)
    return "\n".join(parts)


def by_bash(text: str, folder: Path) -> list[str]:
    """Return the values that launches of the script get for the key, as bash starts them.

    The script is one of ours, so it may run. Its `python3` prints its words.
    """
    program = folder / "python3"
    if not program.exists():
        program.write_text(PROGRAM, encoding="utf-8")
        program.chmod(0o755)
    done = subprocess.run(
        ["/bin/bash", "-c", text + LAUNCH],
        cwd=folder,
        env={"PATH": f"{folder}:{os.defpath}", "LC_ALL": "C.UTF-8"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    return done.stdout.split("\0")[:-1]
