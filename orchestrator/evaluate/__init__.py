"""Scores of checkpoints, by lm-evaluation-harness.

run           evaluate: the one function of this stage
survey        what is asked of a checkpoint, what is on disk, what is missing
task_files    what a task is: its files and their hash
results       what a score depends on, and where it lies on disk
checkpoint    what a checkpoint is: the hash of its files
pool          the processes that make scores, as orch sees them
worker        such a process: imports the harness once, forks one worker per core
harness       one checkpoint through lm-eval (the only module that imports it)
aggregates    means over the tasks of a domain
"""

from orchestrator.evaluate.aggregates import aggregate as aggregate
from orchestrator.evaluate.results import read_scores as read_scores
from orchestrator.evaluate.run import Event as Event
from orchestrator.evaluate.run import UnscoredError as UnscoredError
from orchestrator.evaluate.run import evaluate as evaluate
