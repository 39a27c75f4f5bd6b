"""What measures Prime-RL: probes of its functions, and its training without a GPU."""
