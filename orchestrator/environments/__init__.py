"""Environments of the trainers' libraries. They are made from locks, and are separate from orch's.

lock    locks, in the backends' folders; the environments that exist
make    making one from a lock, checking one against it, resolving a new lock
extras  the extras that this installation of orch lacks
"""
