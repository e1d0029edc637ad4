"""dsec.ipc: rings, segments, layouts and the control channel shared by every process."""

if __name__ != "dsec.ipc":
    raise ImportError(f"import dsec.ipc, not {__name__}")
