"""verl 0.9.1 and 0.8.0: PPO-family training on Ray, FSDP and vLLM."""

from orchestrator.library.protocol import of_modules

BACKEND = of_modules(__name__, estimator_names={"kl": "k1", "mse": "k2", "low_var_kl": "k3"})
