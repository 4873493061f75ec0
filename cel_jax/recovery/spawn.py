"""Started as a script with `PARENT_PID COMMAND...`: ties the command's life to its parent's, then becomes it.

The kernel kills the command when the parent dies, even by SIGKILL, so that nothing is orphaned. A script and not a
`preexec_fn`, which is unsafe in a process with threads. Linux only (PR_SET_PDEATHSIG); elsewhere the workers' own
watch on their agent must do.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main(argv: list) -> None:
    parent = int(argv[0])
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it died before the line above
        sys.exit(f"parent {parent} is gone")
    os.execvp(argv[1], argv[1:])


if __name__ == "__main__":
    main(sys.argv[1:])
