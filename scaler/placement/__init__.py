"""Which pods fit the nodes, now and once other pods have ended?"""
