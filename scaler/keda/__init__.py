"""KEDA's side of the program: trigger metadata in, and the external scaler's gRPC service out."""
