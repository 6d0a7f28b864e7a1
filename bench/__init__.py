"""What Forge costs and what it stores, measured against the limit and against others in one run: ``python -m bench``.

Not part of the distribution. Everything here stands outside of what it measures: the proxy is a process that is reached
over its sockets, its decoder is the one that users have.
"""
