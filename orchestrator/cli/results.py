"""orch results: the numbers of an experiment, by SQL."""

import csv
import sys

import click

from orchestrator.analysis.query import ResultsDatabase
from orchestrator.cli import common
from orchestrator.cli.common import print_json
from orchestrator.runs.experiment import open_experiment


@click.command(short_help="Ask the results in SQL.")
@common.spec
@common.overrides
@common.where
@click.option("--query", metavar="SQL", help="A query of DuckDB's SQL. Without it: the tables.")
@click.option("--csv", "as_csv", is_flag=True, help="Rows as CSV.")
@common.as_json
def command(
    spec: str,
    overrides: tuple[str, ...],
    where: tuple[str, ...],
    query: str | None,
    as_csv: bool,
    as_json: bool,
) -> int:
    """Ask DuckDB for final values, curves and scores. Without a query: what there is to ask.

    Tables: `runs` (a row a cell, every axis a column), `finals`, `curves` and `scores` (a row a
    value, with the columns of its run). A name with a dot stands in double quotes.

    \b
      orch results smoke --query "SELECT kl, beta, avg(value) FROM finals
                                  WHERE metric = 'eval/in_domain/mean' GROUP BY ALL"
      orch results smoke --query "COPY curves TO 'curves.parquet'"
    """
    database = ResultsDatabase(open_experiment(spec, overrides).chosen(where))
    if query is None:
        if as_json:
            print_json(database.tables())
        else:
            rows = [(name, column) for name, named in database.tables().items() for column in named]
            common.print_table(("table", "column"), rows)
        return 0
    answer = database.query(query)
    if as_json:
        print_json([dict(zip(answer.columns, row, strict=True)) for row in answer.rows])
    elif as_csv:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerows([answer.columns, *answer.rows])
    else:
        common.print_table(answer.columns, answer.rows)
    return 0
