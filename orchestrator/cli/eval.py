"""orch eval: scores of checkpoints."""

from typing import TYPE_CHECKING

import click

from orchestrator.cli import common
from orchestrator.cli.common import CellChoice, number, print_json, print_table, say
from orchestrator.evaluate.baselines import scored_baselines
from orchestrator.pipeline import stages
from orchestrator.runs.collect import collect

if TYPE_CHECKING:
    from orchestrator.records import Score

STOPPED = 130


@click.command(short_help="Evaluate checkpoints with lm-evaluation-harness.")
@common.cells
@click.option(
    "--divergence",
    is_flag=True,
    help="Compute also the KL to the reference policy, and the entropy.",
)
@common.as_json
def command(
    choice: CellChoice,
    divergence: bool,
    as_json: bool,
) -> int:
    """Evaluate the checkpoints that have no score yet, and print the scores.

    A score is kept with all responses, under a key of checkpoint, task version, sampling and
    harness. A score that is kept is not computed again. An evaluation that was stopped
    continues with the slice of items that was not finished. `evaluation.checkpoints=all`
    evaluates every checkpoint, not only the last.
    """
    experiment = stages.with_evaluation(choice.chosen(), divergence=divergence)
    try:
        records = collect(experiment.cells, experiment.folder)
        faults = stages.print_faults(records)
        code = max(faults, stages.evaluate_missing(experiment, records))
    except KeyboardInterrupt:
        say("stopped; what is scored stays scored. Go on with the same command.")
        code = STOPPED
    scores = stages.read_results(experiment, ()).index.scores
    baselines = scored_baselines(experiment.spec.evaluation, experiment.cells, experiment.folder)
    slugs = {cell.id: cell.slug for cell in experiment.cells}
    of_baselines = [(baseline.name, score) for baseline in baselines for score in baseline.scores]
    if as_json:
        plain = [score.model_dump(mode="json") for score in scores]
        plain += [s.model_dump(mode="json") | {"baseline": name} for name, s in of_baselines]
        print_json(plain)
        return code
    named = [(slugs[score.cell_id], score) for score in scores]
    _print(named + [(f"baseline {name}", score) for name, score in of_baselines])
    for note in dict.fromkeys(f"baseline {b.name}: {b.note}" for b in baselines if b.note):
        say(note)
    return code


def _print(scores: "list[tuple[str, Score]]") -> None:
    rows = [
        (
            name,
            s.step,
            s.task,
            s.metric,
            number(s.value),
            number(s.stderr, 2),
            f"{s.num_items} x {s.repeats}",
        )
        for name, s in scores
    ]
    print_table(("cell", "step", "task", "metric", "value", "stderr", "items"), rows)
