"""What the laboratory asks of the embedded trainer: predictions of another run's batches."""
