"""Do KEDA's calls get through to this scaler? Its credentials, calls as it makes them, and what they find."""
