"""Analysis of the past: what GPUs did over days, and what policies would have done with them.

It reads samples of the past, and the scaler's own metrics, by the same code that decides in production. Nothing here is
imported by the program proper, which finds its verbs and its page by entry points.
"""
