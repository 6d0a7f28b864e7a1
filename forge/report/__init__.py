"""What a training run did, as one HTML file that needs nothing else: no script, no network, no folder beside it."""
