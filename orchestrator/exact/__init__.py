"""The exact laboratory: the objective whose gradient a KL configuration computes, derived."""
