"""GPUs that pods hold and what they do, as fleet metrics."""
