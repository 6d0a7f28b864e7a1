"""Sessions and what a call's place in one is told by: keys' owners, agents, histories, kinds."""
