"""What measures OpenRLHF: probes of its functions, and its training without a GPU."""
