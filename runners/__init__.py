"""dsec.runners: what runs in the child processes: zygotes, the role loop, the recorder."""

if __name__ != "dsec.runners":
    raise ImportError(f"import dsec.runners, not {__name__}")
