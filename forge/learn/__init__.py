"""``make learn``: a small policy learns a tool task in a real harness, through the whole loop, and a control does not.

What it shows is that the parts hold together and that the gradient points where the reward is. It says nothing about
the skill of agents: the policy has half a million weights and four things that it could do.
"""
