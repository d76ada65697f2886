"""Which jobs are scaled because an IdlePolicy says so: their ScalableWorkloads and ScaledObjects."""
