"""The settings of one process: their units, their defaults, and where they come from."""
