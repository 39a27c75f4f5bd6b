"""What measures SkyRL: probes of its functions, and its training without a GPU."""
