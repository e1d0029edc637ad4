"""The kernel beside the program that started it: `python -m dsec.engine.host`.

Descriptor 3 is its end of a stream socket, on which it is talked to as by `dsec-kernel serve
--stdio`; 4 a pidfd of the program, whose end ends it; 5 a pipe that takes its exit code when
nothing is left. It detaches itself, so that the program has no child that it doesn't know of.
Never imports numpy, Gymnasium or torch.
"""

from __future__ import annotations

import os
import sys

from dsec.engine.serve import Pair, serve
from dsec.errors import MachineError

STREAM, CALLER, END = 3, 4, 5


def main() -> int:
    """Be the kernel of one program until the end."""
    if os.fork():
        os._exit(0)  # whoever executed us has nothing to wait for
    os.setpgid(0, 0)  # what a terminal sends to the program is the program's
    for fd in (STREAM, CALLER, END):
        os.set_inheritable(fd, False)
    try:
        code = serve(Pair(STREAM, STREAM, CALLER))
    except MachineError as error:
        sys.stderr.write(f"{error}\n")
        code = 3
    sys.stderr.flush()
    os.write(END, b"%d" % code)
    return code


if __name__ == "__main__":
    sys.exit(main())
