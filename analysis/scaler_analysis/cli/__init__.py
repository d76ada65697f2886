"""The command line: `report` and `simulate`."""
