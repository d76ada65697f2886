"""The least costly set of victims for one gang. Pure."""
