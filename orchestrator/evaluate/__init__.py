"""Scores of checkpoints, by lm-evaluation-harness.

run           evaluate: the one function of this stage; the processes that make scores
survey        the scores a checkpoint needs, on disk or missing; why some cannot be averaged
checkpoint    the identity of a checkpoint: a hash of its policy
scores        the key of a score, its files on disk, means over the tasks of a domain
baselines     models before training, scored beside the cells
task_files    the identity of a task: its files and their hash
task_data     a task's items, from the hub or from this machine
tasks/        the task files of MATH, MMLU and Countdown
engines       the spec's engine and sampling as lm-eval's arguments
items         metrics of the k responses to an item, and means over items
shards        a long evaluation in slices
worker        a process that scores: imports the harness once, forks one worker per core
harness       one checkpoint through lm-eval
named         a task of lm-eval by name, or of one's own, with its own prompts and metrics
models        the models lm-eval generates with: transformers, vLLM, a server
divergence    KL to the reference policy and entropy, from checkpoints
"""

from orchestrator.evaluate.baselines import ScoredBaseline as ScoredBaseline
from orchestrator.evaluate.run import EvaluationEvent as EvaluationEvent
from orchestrator.evaluate.run import UnscoredError as UnscoredError
from orchestrator.evaluate.run import evaluate as evaluate
from orchestrator.evaluate.scores import aggregate as aggregate
from orchestrator.evaluate.scores import read_scores as read_scores
from orchestrator.evaluate.survey import ScoreIndex as ScoreIndex
from orchestrator.evaluate.survey import score_index as score_index
