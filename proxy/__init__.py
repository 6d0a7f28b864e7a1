"""The recording reverse proxy: data plane, control plane, dialects, engines, sessions, recorder, decoder.

Of harnesses it knows wire facts only; it never imports torch, ray or :mod:`forge.adapters`.
"""
