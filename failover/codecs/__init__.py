"""dsec.failover.codecs: one file for each way to turn a living object into bytes and back."""
