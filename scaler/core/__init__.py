"""The pure core: values and `now` in, values out. No clock, log, environment, randomness, async or JSON."""
