"""Several processes behind one address: workers that serve calls, and the parent that they follow."""
