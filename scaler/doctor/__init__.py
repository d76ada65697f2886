"""What is wrong with a cluster, its permissions and its metrics: `idle-gpu-scaler doctor`."""
