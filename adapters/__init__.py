"""Everything that knows someone else's program: harness adapters and trainer adapters."""
