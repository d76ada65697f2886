"""Settings of the operator: one YAML file, environment variables and flags, validated all at once."""
