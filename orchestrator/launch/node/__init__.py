"""Running a launch on its nodes: the trainer's environment, the nodes together, the program.

bring_up        one attempt, from the plan to its ending
environment     the trainer's environment, and secrets by reference
process_group   the job's nodes; one agent per node, started and ended together
gpus            the health of a node's GPUs, checked first
agent           the program on each node that runs a command and ends all it started
ray             a Ray cluster of only these nodes (ray_wait runs in the trainer's environment)
ray_workers     the Python of Ray's workers, where a program joins a running Ray
"""

from orchestrator.launch.node.bring_up import run

__all__ = ["run"]
