"""dsec.sml: state management: Agent State Atoms and their pool (built by a later issue; owns nothing yet)."""

if __name__ != "dsec.sml":
    raise ImportError(f"import dsec.sml, not {__name__}")
