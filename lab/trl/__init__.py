"""What measures TRL: probes of its functions, and its training without a GPU."""
