"""The worker's part: what has it, how does a Workload of the hub fit, and how idle is what was dispatched to it?"""
