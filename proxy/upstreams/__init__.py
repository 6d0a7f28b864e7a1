"""The policy servers: the pool, what each can do, which weights it serves, and HTTP to them."""
