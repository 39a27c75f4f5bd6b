"""Stands for verl where there is no GPU: its entry module, logs and checkpoints, no training."""
