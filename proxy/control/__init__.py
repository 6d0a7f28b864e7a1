"""The control plane: what a trainer or a runner asks of the proxy, on a port of its own."""
