"""The hub's part: which cluster is each Workload nominated for, and what do the workers say of those that run there?"""
