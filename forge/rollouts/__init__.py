"""Sessions for a trainer: which to draw and which to learn from, where they run, how old they may be."""
