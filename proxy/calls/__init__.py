"""The path of one call: accepted, asked of an engine, delivered, ended."""
