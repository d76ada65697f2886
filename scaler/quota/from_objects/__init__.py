"""Objects of the API become the quota engine's values."""
