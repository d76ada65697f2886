"""Kueue: its objects as the core sees them, and the patches that are written to them. Pure."""
