"""What measures verl: probes of its functions, and its training without a GPU."""
