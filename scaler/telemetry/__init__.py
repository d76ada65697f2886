"""What this program tells about itself: metrics, logs, and pages over HTTP."""
