"""dsec.cli: the command line, which speaks only the public API."""

if __name__ != "dsec.cli":
    raise ImportError(f"import dsec.cli, not {__name__}")
