"""Where the `dsec-kernel` script begins: signals wait, then everything else is imported.

Interrupted in the middle of its imports a program has nothing to say but a traceback. So the first
thing is to hold back what asks for an end, until there is somebody who can answer it.
"""

from __future__ import annotations

import sys

from dsec import signals


def main() -> int:
    """The entry point of the script; returns the exit code."""
    signals.hold()
    from dsec.cli import kernel

    return kernel.main()


if __name__ == "__main__":
    sys.exit(main())
