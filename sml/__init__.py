"""dsec.sml: state management: Agent State Atoms, their codec and their pool."""

if __name__ != "dsec.sml":
    raise ImportError(f"import dsec.sml, not {__name__}")
