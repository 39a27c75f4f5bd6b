"""Stand-ins with which OpenRLHF 0.11.2 trains on a CPU; see lab/cpu.

The program, Ray, DeepSpeed's ZeRO-3 and its optimizer, and the trainer are its own. vLLM's engine
is orch_cpu_openrlhf_vllm, which gets new weights by OpenRLHF's own broadcast, over gloo.
"""
