"""One process: settings, wiring, controllers, and the command line."""
