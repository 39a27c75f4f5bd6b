"""The policy losses: what bounds the policy's distance to the policy that sampled."""
