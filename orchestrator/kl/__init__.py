"""The KL laboratory: derive the objective whose gradient a KL configuration computes."""
