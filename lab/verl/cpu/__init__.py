"""orch_verl_cpu: the CPU as verl 0.9.1's device, and the sampler; see lab/cpu."""
