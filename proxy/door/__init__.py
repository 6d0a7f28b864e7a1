"""The data plane's door: connections, routes, keys and bodies, until a request is a call."""
