"""Scores of checkpoints, by lm-evaluation-harness.

run           evaluate: the one function of this stage
survey        what is asked of a checkpoint, what is on disk, what is missing
exam          what is known of all cells, and what keeps it from being averaged or compared
baselines     models before training, scored beside the cells
base          where a model lies before training
task_files    what a task is: its files and their hash
task_data     a task's items, from the hub or from this machine
tasks/        the task files of MATH, MMLU and Countdown
engines       the spec's engine and sampling as lm-eval's arguments
items         metrics of the k responses to an item, and means over items
shards        a long evaluation in slices
results       what a score depends on, and where it lies on disk
checkpoint    what a checkpoint is: the hash of its files
pool          the processes that make scores, as orch sees them
worker        such a process: imports the harness once, forks one worker per core
harness       one checkpoint through lm-eval
models        what lm-eval generates with: transformers, vLLM, a server
divergence    KL to the reference policy and entropy, from checkpoints
aggregates    means over the tasks of a domain
"""

from orchestrator.evaluate.baselines import ScoredBaseline as ScoredBaseline
from orchestrator.evaluate.run import EvaluationEvent as EvaluationEvent
from orchestrator.evaluate.run import UnscoredError as UnscoredError
from orchestrator.evaluate.run import evaluate as evaluate
from orchestrator.evaluate.scores import aggregate as aggregate
from orchestrator.evaluate.scores import read_scores as read_scores
from orchestrator.evaluate.survey import ScoreIndex as ScoreIndex
from orchestrator.evaluate.survey import score_index as score_index
