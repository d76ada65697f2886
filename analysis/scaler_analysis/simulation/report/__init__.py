"""What a simulation says: as JSON, CSV, and a page for browsers."""
