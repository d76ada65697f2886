"""The hub's part: for which cluster is each Workload nominated?"""
