"""How a text looks in which a launch of a library may be.

A text without a hint is not read closely: most commands of a script copy files and load modules.
"""

import re

HINT = re.compile(
    r"main_ppo|train_ppo|verl\.trainer|openrlhf|skyrl|actor_rollout_ref|worker\.actor\."
    r"|trainer\.algorithm|algorithm\."
    r"|prime.?rl|zeroband|--init_kl|--algo\.kl|use_kl|kl_coef|\brl @|main_\w+"
    r"|\buv run (rl|trainer)\b"
)
"""Text in which a launch may be."""
STARTS = re.compile(r"\bpython|torchrun|\buv |\bray |\brl |bash|deepspeed|accelerate|-m |\.sh")
"""Text that starts a program."""
