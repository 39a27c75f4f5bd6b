"""What went wrong in a training run, by its log: what moved first, why, how sure, what to change.

    log --open_source--> LoggedRun --trace_of--> Trace
    script, settings or cell --facts--> TrainingFacts
    Trace, TrainingFacts --diagnose--> Diagnosis

The rules (rules.py) rest on the mathematics of the loss, not on one trainer's numbers: each names
the quantity that it compares and the bound that it compares it with.
"""

from orchestrator.audit.diagnose.facts import TrainingFacts, facts_of, facts_of_finding
from orchestrator.audit.diagnose.rules import diagnose
from orchestrator.audit.diagnose.run import Diagnosis
from orchestrator.audit.diagnose.trace import Trace, trace_of

__all__ = [
    "Diagnosis",
    "Trace",
    "TrainingFacts",
    "diagnose",
    "facts_of",
    "facts_of_finding",
    "trace_of",
]
