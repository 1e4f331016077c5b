"""Details of a commit for which an offset node has no place: a client's text, and the epoch of the partition's leader.

A gateway writes them to a node of its own, in the transaction that writes the offset. Old clients know nothing of that
node, and change only the offset. So the details name the offset and the version of its node. If one of them differs,
the offset was committed again since, and the details are ignored.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from .decoding import is_int


@dataclass(frozen=True, slots=True)
class CommitDetails:
    """The details of one commit.

    - `metadata`: a free text of the client.
    - `leader_epoch`: the epoch of the partition's leader; -1 if it is unknown.
    """

    metadata: str = ""
    leader_epoch: int = -1


def encode_details(details: CommitDetails, *, offset: int, version: int) -> bytes:
    """Encode the details of an offset that is committed with this version of its node.

    >>> encode_details(CommitDetails("half of the file", 3), offset=17, version=2)
    b'{"offset":17,"version":2,"metadata":"half of the file","leader_epoch":3}'
    """
    fields = {
        "offset": offset,
        "version": version,
        "metadata": details.metadata,
        "leader_epoch": details.leader_epoch,
    }
    return json.dumps(fields, separators=(",", ":")).encode()


def decode_details(data: bytes, *, offset: int, version: int) -> CommitDetails:
    """Decode the details of this offset. They are empty if they belong to another commit, or are malformed.

    >>> data = encode_details(CommitDetails("half of the file", 3), offset=17, version=2)
    >>> decode_details(data, offset=17, version=2)
    CommitDetails(metadata='half of the file', leader_epoch=3)
    >>> decode_details(data, offset=17, version=3)
    CommitDetails(metadata='', leader_epoch=-1)
    >>> decode_details(b'{"offset":17,"version":2,"metadata":7,"leader_epoch":"3"}', offset=17, version=2)
    CommitDetails(metadata='', leader_epoch=-1)
    """
    try:
        fields: Any = json.loads(data)
    except (ValueError, RecursionError):
        return CommitDetails()
    if not isinstance(fields, dict) or (fields.get("offset"), fields.get("version")) != (offset, version):
        return CommitDetails()
    metadata, epoch = fields.get("metadata"), fields.get("leader_epoch")
    return CommitDetails(metadata if isinstance(metadata, str) else "", epoch if is_int(epoch) else -1)
