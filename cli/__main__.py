"""The program `zkgroups`, also as `python -m zkgroups_cli`. It handles Ctrl-C before it imports anything."""

import os
import signal
import sys

from . import end_quietly

if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, end_quietly)


def main() -> int:
    """Run the command line of this process, or answer a shell. Return the exit code."""
    if os.environ.get("_ZKGROUPS_COMPLETE") == "bash_complete":
        from .shared.fast_completion import fast_answer

        if (answer := fast_answer(os.environ)) is not None:
            sys.stdout.write(answer)
            return 0
    from .main import main as run

    return run()


if __name__ == "__main__":
    sys.exit(main())
