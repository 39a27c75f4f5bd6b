"""Stand-ins with which verl 0.9.1 trains on a CPU; see lab/verl/cpu_launch.py.

device        the CPU as verl's device, and a sampler in the place of vLLM
one_process   Ray and TransferQueue within one process
"""
