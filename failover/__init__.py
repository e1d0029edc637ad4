"""dsec.failover: detection plans, standbys and fencing (built by a later issue; owns nothing yet)."""

if __name__ != "dsec.failover":
    raise ImportError(f"import dsec.failover, not {__name__}")
