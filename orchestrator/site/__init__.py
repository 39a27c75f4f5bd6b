"""Checks of a cluster by its own answers: its resources, its refusals, and the fields to change.

check        a site file against the cluster's answers (launch/slurm/cluster)
probe        a small job that looks at a node; it runs node_facts
forecast     a spec at full scale: refusals, prompts, time limits, the scheduler's answer
findings     the lines of `orch doctor`: this machine, and all of the above
write        a site file from the cluster's answers
"""
