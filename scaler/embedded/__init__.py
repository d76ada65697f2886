"""What stands in for a cluster where there is none: a small Kubernetes API, simulated GPUs, Kueue's part and KEDA's part.

The demo and the tests run the real program against it, over real HTTP and real gRPC. Nothing here is imported by the
program proper.
"""
