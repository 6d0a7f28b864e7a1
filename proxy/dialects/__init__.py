"""One file per wire format, pure: bytes in, bytes out, no I/O."""
