"""How many workloads may be suspended, how often and when. Pure."""
