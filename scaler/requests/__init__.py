"""What is asked for over HTTP, and written: a wake-up by token; a keep, an exclusion or a wake-up by a signed link."""
