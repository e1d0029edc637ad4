"""The pool across machines: atoms read and written one-sidedly, in the memory of another host.

Owns the protocol (sans-IO), its transports and the asyncio shell around them.
"""
