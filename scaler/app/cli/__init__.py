"""The verbs of `idle-gpu-scaler`, each in a module of its own."""
