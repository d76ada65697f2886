"""Objects of the Kubernetes API as far as they are read."""
