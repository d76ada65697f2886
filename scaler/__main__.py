"""`python -m scaler`: the same as `idle-gpu-scaler`."""

from scaler.cli.main import main

main()
