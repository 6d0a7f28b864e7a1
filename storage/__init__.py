"""Records, columns, journal, dataset, trajectories, samples and the catalog.

Knows nothing of HTTP, harnesses, torch or ray.
"""
