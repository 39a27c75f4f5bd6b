"""orch eval: scores of checkpoints."""

from typing import Any

import click

from orchestrator.cli import options, stages


@click.command(short_help="Evaluate checkpoints with lm-evaluation-harness.")
@options.spec
@options.overrides
@options.where
@click.option("--all-checkpoints", is_flag=True, help="Every checkpoint, not only the last.")
@options.as_json
def command(
    spec: str, overrides: tuple[str, ...], where: tuple[str, ...], all_checkpoints: bool,
    as_json: bool,
) -> int:  # fmt: skip
    """Evaluate what is not yet scored, and print the scores.

    A score is kept with every response, keyed by checkpoint, task version and sampling; asking
    again costs nothing.
    """
    from dataclasses import replace

    from orchestrator.cli.output import print_json
    from orchestrator.experiment import open_experiment

    experiment = open_experiment(spec, overrides).chosen(where)
    if all_checkpoints:
        evaluation = experiment.spec.evaluation.model_copy(update={"checkpoints": "all"})
        wider = experiment.spec.model_copy(update={"evaluation": evaluation})
        experiment = replace(experiment, spec=wider)
    records = stages.gather(experiment)
    code = max(
        stages.tell_faults(records),
        stages.score(experiment, records),
    )
    scores = stages.known_scores(experiment)
    if as_json:
        print_json([s.model_dump(mode="json") for s in scores])
    else:
        _print(experiment, scores)
    return code


def _print(experiment: Any, scores: list[Any]) -> None:
    from orchestrator.cli.output import number, print_table

    slugs = {cell.id: cell.slug for cell in experiment.cells}
    rows = [
        (slugs[s.cell_id], s.step, s.task, s.metric, number(s.value), number(s.stderr, 2),
         f"{s.num_items} x {s.repeats}")
        for s in scores
    ]  # fmt: skip
    print_table(("cell", "step", "task", "metric", "value", "stderr", "items"), rows)
