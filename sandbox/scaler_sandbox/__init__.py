"""What stands in for a cluster where there is none: a Kubernetes API, simulated GPUs, and the parts of Kueue and KEDA.

The demo and the tests run the real program against it, over real HTTP and real gRPC. Nothing here is imported by the
program proper.
"""
