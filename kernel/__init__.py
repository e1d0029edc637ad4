"""dsec.kernel: the microkernel: lifecycle tables and the thin uvloop shell that runs them."""

if __name__ != "dsec.kernel":
    raise ImportError(f"import dsec.kernel, not {__name__}")
