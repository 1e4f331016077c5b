"""The umask of the command: no file that it writes can be changed by all users of the machine.

Plans, reports, snapshots and audits follow the umask of the user otherwise, because colleagues and Spark's workers may
have to read them.
"""

from __future__ import annotations

import os
import stat

_users = -1


def protect_new_files() -> None:
    """Let no new file be writable by all users. Spark inherits this."""
    global _users
    _users = os.umask(stat.S_IWOTH)
    os.umask(_users | stat.S_IWOTH)


def users_umask() -> int:
    """Return the umask with which the user has started the command, or -1 if it was not changed."""
    return _users
