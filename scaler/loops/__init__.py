"""The loops: each is `tick` (read → core → act → observe, one screen) and `run`, which repeats it."""
