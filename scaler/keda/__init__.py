"""KEDA's side: trigger metadata in, the external scaler's gRPC service out."""
