"""0 replicas of a ScalableWorkload become `spec.active: false` of its Workload, and 1 becomes true again."""
