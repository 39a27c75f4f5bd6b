"""The page docs/proofs.md, from the proofs that are kept beside the backends.

`python -m docs.tools.proofs` prints it. A test compares the page with the output.
"""

import sys
from collections.abc import Iterator
from typing import Any

from orchestrator import plugins
from orchestrator.files import read_json
from orchestrator.lab.prove.text import FOLDER, PLAIN_NAMES

SHOWN = ("advantages", "kl_reward_per_token", "kl_loss", "policy_loss", "grad_norm", "weights")


HEAD = """# Predicted by orch, done by the library

This page is made by `python -m docs.tools.proofs`; nothing on it was typed in. Each row is a cell
that the released library trained on a CPU from orch's own launch, in its own loop, with its own
loss, optimizer and checkpoints. orch then computed the run again: it started from the same policy,
took from the run only the tokens, rewards and minibatches, and followed the library's dialect
([what equal settings mean in each library](kl_in_libraries.md)) with an AdamW of its own. A number
is the largest difference over all train steps, relative to the largest value in the run (of
weights: to the distance that they moved). `-`: the cell has no such term. Where a library has no
option for passes in fp32, stand-ins turn rounding off; `orch prove --rehearse` lists them.

The cells `tis_token` and `mis_token` have a correction of the engine's mismatch
(`loss.correction`). There the stand-in of the engine samples in its own format, bf16, so that the
policy that sampled is another than the trainer's, by about 1.5 % a token, and the bounds act. Only
verl's stand-in does so. Rejection (`reject_*`, `geometric`) is not replayed: a run records the mask
that is left, not the tokens that it rejected; `tests/losses/test_libraries.py` holds it to the
library's own function.

The largest gradient difference, of SkyRL's `dppo_tv.x4`, is of the run's last train step. Two other
runs of the cell ended 2.7e-6 and, after 32 train steps, 3.2e-5 away, and one of `cispo.x4` 1.9e-4,
at their last steps too, with losses 1e-6 away. So it grows from update to update and differs from
run to run; another formula would show in the first step. How much of it is rounding was not
measured.

`orch prove LIBRARY@VERSION` does it again on this machine; `orch prove CELL_DIRECTORY` does it for
a finished run of yours that was trained with `cadence.dump_rollouts=true`. A wrong dialect fails:
`tests/prove` holds mutants to that.
"""


def stored() -> Iterator[dict[str, Any]]:
    """Yield the stored proofs of every release, by library, the last file name first."""
    for library in plugins.names():
        for path in sorted((plugins.folder(library) / FOLDER).glob("*.json"), reverse=True):
            content = read_json(path)
            if content is not None:
                yield content


def page() -> str:
    """Return the page as Markdown."""
    names = [PLAIN_NAMES[name] for name in SHOWN]
    titles = ("library", "cell", "passes", "train steps", *names)
    lines = [f"| {' | '.join(titles)} |", f"|{' --- |' * len(titles)}"]
    for release in stored():
        for each in release["proofs"]:
            differences = [_difference(each["quantities"].get(name)) for name in SHOWN]
            label = f"**{release['library']}** {release['version']}"
            front = (label, f"`{each['cell']}`", each["precision"], str(each["steps"]))
            lines.append(f"| {' | '.join((*front, *differences))} |")
    return f"{HEAD}\n" + "\n".join(lines) + "\n"


def _difference(quantity: dict[str, float] | None) -> str:
    return "-" if quantity is None else f"{quantity['worst']:.1e}"


if __name__ == "__main__":
    sys.stdout.write(page())
