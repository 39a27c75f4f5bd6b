"""A cluster as it answers: what it has, what it refuses, and what to change.

cluster    partitions, limits and rights, asked of SLURM's own commands
check      a site file against those answers
probe      a small job that looks at a node from the inside
messages   SLURM's words as sentences with the field to change
"""
