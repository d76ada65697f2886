"""`python -m scaler`: the same as `idle-gpu-scaler`."""

from scaler.app.cli.main import main

main()
