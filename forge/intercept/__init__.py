"""Intercept mode: mitmproxy beside the proxy, the variables that lead one program to it, and that program's session."""
