"""orch results: the numbers of an experiment, by SQL."""

import csv
import sys

import click

from orchestrator.analysis.results import ResultsDatabase
from orchestrator.cli import common
from orchestrator.cli.common import CellChoice, print_json


@click.command(short_help="Query the results in SQL.")
@common.cells
@click.option("--query", metavar="SQL", help="A query in DuckDB's SQL. Default: list the tables.")
@click.option("--csv", "as_csv", is_flag=True, help="Print the rows as CSV.")
@common.as_json
def command(
    choice: CellChoice,
    query: str | None,
    as_csv: bool,
    as_json: bool,
) -> int:
    """Query final values, curves and scores with DuckDB. Without a query, list the tables.

    Tables: `runs` (one row for each cell, one column for each axis), `finals`, `curves` and
    `scores` (one row for each value, with the columns of its run). Write a name with a dot in
    double quotes.

    \b
      orch results smoke --query "SELECT kl, beta, avg(value) FROM finals
                                  WHERE metric = 'eval/in_domain/mean' GROUP BY ALL"
      orch results smoke --query "COPY curves TO 'curves.parquet'"
    """
    database = ResultsDatabase(choice.chosen())
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
