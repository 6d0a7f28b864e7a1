"""The embedded policy server: a small real model behind vLLM's field names, so that one command runs the whole loop.

It owns the model on disk, the forward pass, sampling and its own HTTP routes; it knows nothing of sessions, of the
proxy or of recording. Importing the package loads no torch: only ``llama``, ``rows``, ``sampler`` and ``scheduler`` do.
"""
