"""Stand-ins with which Prime-RL 0.5.0 trains on a CPU; see lab/cpu.

Its programs `rl`, `orchestrator`, the environment's server and the trainer under `torchrun` are its
own. `inference`, which is vLLM behind HTTP, is orch_cpu_prime_rl_server.
"""
