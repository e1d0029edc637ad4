"""dsec.failover: detection, standbys and fencing (a later issue)."""

if __name__ != "dsec.failover":
    raise ImportError(f"import dsec.failover, not {__name__}")
