"""The host in the id of an instance. Old clients put it there, and nowhere else."""

from __future__ import annotations

import re
from typing import Final

_SCALA: Final = re.compile(r"(.+)-[0-9]{13}-[0-9a-f]{1,8}")
_HOST_AND_UUID: Final = re.compile(r"(.+):[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


def host_of_instance(group: str, id: str) -> str | None:
    """Return the host of an instance. None if its client, or its user, has chosen an id without a host.

    Scala members are named `<group>_<host>-<milliseconds>-<8 hex>`, kazoo-go, pykafka and zkgroups `<host>:<uuid>`.

    >>> host_of_instance("billing", "billing_app-3-1795255170109-ab12cd34")
    'app-3'
    >>> host_of_instance("billing", "app-3:7d4f0d2a-5f6e-4b53-9c53-7f6d2f1c9a10")
    'app-3'
    >>> host_of_instance("billing", "billing_worker") is None
    True
    """
    if found := _HOST_AND_UUID.fullmatch(id):
        return found[1]
    own = id.removeprefix(f"{group}_")
    found = _SCALA.fullmatch(own) if own != id else None
    return found[1] if found else None
