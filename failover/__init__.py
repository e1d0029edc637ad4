"""dsec.failover: what happens when a runner dies; plans for the kernel, kept state for runners."""

if __name__ != "dsec.failover":
    raise ImportError(f"import dsec.failover, not {__name__}")
