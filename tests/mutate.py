"""Plant the faults of mutations.yaml in a copy of the tree, one at a time: which tests fail?

    python -m tests.mutate [WORDS OF A FILE'S NAME...]

A fault that no test sees has *survived*: a test is missing, or one was deleted too many. *stale*:
the product no longer has the text.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
QUICK = "not slow and not real and not slurm and not ray and not browser and not thorough"


def faults() -> list[dict[str, str]]:
    """Return the table: file, old text, new text, tests."""
    read: Any = yaml.safe_load((ROOT / "tests/mutations.yaml").read_text(encoding="utf-8"))
    return [{key: str(value).replace("\\n", "\n") for key, value in row.items()} for row in read]


def copied(target: Path) -> None:
    """Copy what git knows of the tree."""
    listed = subprocess.run(
        [str(shutil.which("git")), "ls-files", "-co", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, target / name)


def seen(tree: Path, row: dict[str, str]) -> tuple[str, str]:
    """Plant one fault, run its tests, and remove it again: `caught` and by which test, `survived`
    or `stale`."""
    file = tree / row["file"]
    text = file.read_text(encoding="utf-8") if file.is_file() else ""
    if text.count(row["old"]) != 1:
        return "stale", ""
    file.write_text(text.replace(row["old"], row["new"]), encoding="utf-8")
    tests = [e for e in row["tests"].split() if (tree / e.partition("::")[0]).exists()]
    mark = "not real" if "/slurm/" in row["tests"] else QUICK
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m", mark]
    env = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [*command, *tests], cwd=tree, env=env, capture_output=True, text=True, check=False
    )
    file.write_text(text, encoding="utf-8")
    failed = re.search(r"^(?:FAILED|ERROR) .*?([\w.]+(?:::\S+)?)(?: - |$)", done.stdout, re.M)
    result = {0: "survived", 1: "caught", 2: "caught"}.get(done.returncode, "no test runs")
    return result, failed[1] if failed else ""


def main() -> None:
    """Print one line a fault, and the sum."""
    counted: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder)
        copied(tree)
        for row in faults():
            if sys.argv[1:] and not any(word in row["file"] for word in sys.argv[1:]):
                continue
            begun = time.monotonic()
            result, by = seen(tree, row)
            counted[result] = counted.get(result, 0) + 1
            line = row["old"].strip().splitlines()[0][:60]
            spent = time.monotonic() - begun
            print(f"{result:10} {spent:4.0f} s  {row['file']}: {line}  {by}", flush=True)
    print(", ".join(f"{number} {result}" for result, number in sorted(counted.items())))


if __name__ == "__main__":
    main()
