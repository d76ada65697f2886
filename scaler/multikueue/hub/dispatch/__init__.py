"""Of the hub: for which cluster is each Workload nominated?"""
