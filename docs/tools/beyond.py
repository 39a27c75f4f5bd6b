"""The page docs/beyond_the_paper.md: results of the laboratory and of runs beyond the paper.

`python -m docs.tools.beyond` prints it. The exact numbers are derived at each call, and the sampled
check runs from fixed seeds. measured.py writes the sections on runs. A test compares the page with
the output.
"""

import sys
from collections.abc import Iterator, Sequence
from math import sqrt
from statistics import fmean, stdev

import numpy as np

from docs.tools.measured import sections
from orchestrator.exact.derivation import FAR, NEAR, NUM_TOKENS
from orchestrator.exact.laboratory import LabSetting, exact
from orchestrator.exact.montecarlo import monte_carlo
from orchestrator.exact.objectives import gradients
from orchestrator.kl import table
from orchestrator.kl.configuration import KlConfiguration
from orchestrator.settings import Placement

GROUP = 8
FORMS: tuple[tuple[str, Placement], ...] = (
    ("k1", "reward"),
    ("k1_to_go", "reward"),
    ("full", "reward_and_loss"),
    ("rb", "reward_and_loss"),
    ("rb_k1", "reward_and_loss"),
    ("k3", "loss"),
    ("k2", "loss"),
    ("full", "loss"),
    ("full_forward", "loss"),
)
SEEDS, TRIALS, SEQUENCES = range(5), 40, 200
T_95 = 2.776
"""Student's t for a 95 % interval with four degrees of freedom (five seeds)."""

CANNOT = """\
- The laboratory is one small model: names of objectives hold for every policy, sizes do not. Its
  noise is that of the KL term alone: beside a task reward's, a quieter KL may not show. Far from
  the reference, without a baseline, the exact average is no quieter than k1 to go: what is left is
  the noise of the states.
- The maps and the runs of less noise are of one embedded policy of 50,000 parameters on one skill,
  in seven tokens and 80 rollouts an update: they say where an effect lives there, and not where it
  lives in a large model. Few seeds leave wide intervals, runs of different β share their random
  numbers, and the states are one rule among many: an unstable run may end well.
- No library that orch drives has these estimators by a name of its own. Where one charges k1 in
  the reward token by token, as `k1_to_go` does, its baseline is another. orch ships some of them
  for some libraries (`orch plan` says `extension` for those, and refuses the others); its tests
  hold the shipped code's gradient to the enumerated one. A loss that is given the reference
  policy's log-probabilities of sampled tokens, and not the reference policy, cannot carry a KL over
  the vocabulary.
- A GPU's cost was not measured."""

COST = """\
What the KL term costs on a real vocabulary, from 256 hidden states of width 1024 to the gradient
of the output embeddings, in fp32, on one busy CPU core (`python benchmarks/vocabulary.py`). `k3`
is given the reference policy's numbers; `full` is the code that orch ships, which makes its
logits a few positions at a time and anew in the backward pass, and the reference policy's too.
What is kept grows with the tokens of a batch; what the process grew by holds one gradient of the
embeddings, 125 and 594 MiB.

| term | vocabulary | CPU ms a token | MiB kept a token | MiB more |
|---|---|---|---|---|
| k3 | 32,000 | 2.9 | 0.122 | 305 |
| full | 32,000 | 6.4 | 0.000 | 453 |
| full, all at once | 32,000 | 4.0 | 0.366 | 731 |
| k3 | 151,936 | 13.7 | 0.580 | 917 |
| full | 151,936 | 52.4 | 0.000 | 1,139 |
| full, all at once | 151,936 | 22.0 | 1.739 | 1,349 |

`rb` in both places takes the states of the rollout policy once more, without a gradient; `rb_k1`
does not.
"""


def page() -> str:
    """Return the page as Markdown."""
    parts = (_head(), _quiet(), _sampled(), _signs(), sections(), _tail())
    return "\n".join(line for part in parts for line in part) + "\n"


def _head() -> Iterator[str]:
    yield "# Beyond the paper"
    yield ""
    yield "Written by `python -m docs.tools.beyond`; a test holds the two equal."
    yield ""


def _quiet() -> Iterator[str]:
    yield "## A quiet gradient without bias"
    yield ""
    yield (
        f"Exact, T = {NUM_TOKENS}. Bias and noise are in lengths of the gradient of the "
        "sequence-level reverse KL; noise is one sequence's, and beside it the same in groups of "
        f"{GROUP} with a leave-one-out baseline, which for a charge that differs from token to "
        "token is of each position. Near the reference is 0.08 nats from it, far is 18."
    )
    yield ""
    columns = ("term", "bias near", "noise", "with baseline", "bias far", "noise", "with baseline")
    yield from _markdown(columns, [_form(*each) for each in FORMS])


def _form(estimator: str, placement: Placement) -> Sequence[str]:
    plain = KlConfiguration(estimator, placement)
    cells = [plain.label]
    for where in (NEAR, FAR):
        setting = LabSetting(where[0], where[1], NUM_TOKENS)
        true = gradients(setting)["sequence_reverse_kl"]
        length = float(np.linalg.norm(true))
        moments = exact(setting, [plain])
        off = float(np.linalg.norm(moments.mean[0] - true)) / length
        cells += [f"{100 * off:.2g}%" if off > 1e-9 else "0"]
        cells += [f"{sqrt(moments.variance[0].sum()) / length:.3g}"]
        if placement == "loss":
            cells += [""]
            continue
        centred = KlConfiguration(estimator, placement, centring="leave_one_out", group_size=GROUP)
        cells += [f"{sqrt(exact(setting, [centred]).variance[0].sum()) / length:.3g}"]
    return cells


def _sampled() -> Iterator[str]:
    chosen = [KlConfiguration(*each) for each in FORMS]
    setting = LabSetting(NEAR[0], NEAR[1], NUM_TOKENS)
    length = float(np.linalg.norm(gradients(setting)["sequence_reverse_kl"]))
    wanted = np.sqrt(exact(setting, chosen).variance.sum(1)) / length
    runs = [
        monte_carlo(setting, chosen, trials=TRIALS, sequences=SEQUENCES, seed=seed).variance
        for seed in SEEDS
    ]
    rows = []
    for i, configuration in enumerate(chosen):
        noise = [sqrt(each[i].sum() * SEQUENCES) / length for each in runs]
        half = T_95 * stdev(noise) / sqrt(len(noise))
        rows.append((configuration.label, f"{wanted[i]:.3g}", f"{fmean(noise):.3g} ± {half:.1g}"))
    yield ""
    yield (
        f"Sampled near the reference: seeds {SEEDS[0]} to {SEEDS[-1]}, {TRIALS} trials of "
        f"{SEQUENCES} sequences each, mean and 95 % interval over seeds."
    )
    yield ""
    yield from _markdown(("term", "noise, exact", "sampled"), rows)
    yield ""
    yield COST.rstrip()


def _signs() -> Iterator[str]:
    yield ""
    yield "## Which signs are general"
    yield ""
    yield (
        f"Of {table.models():,} random models near the reference policy and as many far from it "
        "(`python -m docs.tools.ensemble`), the share in which a term attracts to the reference "
        "policy, repels from it, or does neither: a pull below a tenth of the true one. Then what "
        "nine of ten models lie between, in pulls of the true KL. Terms that pull as the true KL "
        "does in every model are left out, and so is the geometric mean of ratios."
    )
    yield ""
    rows = []
    for row in table.stored_rows():
        shares = table.signs(row)
        if shares is None or row.is_unbiased or row.is_noise or row.ratio == "sequence_mean":
            continue
        cells = [row.label, "on" if row.on_policy else f"off, {row.ratio}, {row.reward_kl_of}"]
        for at in ("near", "far"):
            of = shares[at]
            signs = "/".join(f"{100 * of[sign]:.0f}" for sign in ("attracts", "repels", "neither"))
            cells += [signs, f"{of['low']:.2g} to {of['high']:.2g}"]
        rows.append(cells)
    columns = ("term", "policy", "near, %", "pulls", "far, %", "pulls")
    yield from _markdown(columns, rows)


def _tail() -> Iterator[str]:
    yield ""
    yield "## What this cannot show"
    yield ""
    yield CANNOT


def _markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(columns)} |"
    yield f"|{'---|' * len(columns)}"
    for row in rows:
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |"


if __name__ == "__main__":
    sys.stdout.write(page())
