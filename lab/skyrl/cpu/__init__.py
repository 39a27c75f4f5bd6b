"""Stand-ins with which SkyRL 0.4.0 trains on a CPU; see lab/cpu.

The entry point, Ray, the trainer, its FSDP workers and its generator are SkyRL's own. vLLM's
servers are orch_cpu_skyrl_server, which gets new weights from a file.
"""
