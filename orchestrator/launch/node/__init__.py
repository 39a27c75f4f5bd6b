"""What runs on the node: the trainer's environment, the nodes brought together, argv, the end.

bring_up     one attempt, from the plan to its ending
options      what the site says of its nodes
environment  venv, module and setup lines, or image
secret       secrets by reference
nodes        the job's nodes, and how to start something on one
ray          a Ray cluster of these nodes alone
company      one companion a node, started and ended together
companion    what a node runs: a program, watched, and swept up after
"""

from orchestrator.launch.node.bring_up import run

__all__ = ["run"]
