"""ORDER OF STEPS, one file a command: read the world, decide, act, return the result."""
