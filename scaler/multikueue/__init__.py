"""Which cluster of MultiKueue does a gang go to, and for whom does a worker cluster suspend idle workloads?"""
