"""THE WORLD: one owner for each outside thing, and no decisions."""
