"""``forge harness check``: a scripted policy server, one task in a real harness, and the facts found."""
