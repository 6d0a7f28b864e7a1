"""One file per kind of policy server: the fields it wants, the shape of its answers, what it can do."""
