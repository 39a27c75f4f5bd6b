"""Stand-ins with which verl 0.9.1 trains on a CPU; see lab/cpu.

orch_verl_cpu          the CPU as verl's device, and the sampler
orch_verl_one_process  Ray and TransferQueue within one process
"""
