"""dsec.sml: state management: Agent State Atoms and their pool (a later issue)."""

if __name__ != "dsec.sml":
    raise ImportError(f"import dsec.sml, not {__name__}")
