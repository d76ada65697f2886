"""What is KEDA answered? Verdict, policy and annotations become 1, 0 or an error."""
