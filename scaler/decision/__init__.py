"""What does KEDA get as an answer? Verdict, policy and annotations become 1, 0 or an error."""
