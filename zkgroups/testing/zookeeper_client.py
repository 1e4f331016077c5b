"""The requests to a server that is rehearsed: see `class_archives.py`."""

from __future__ import annotations


def write_and_read(address: str) -> None:
    """Send requests of the usual kinds, so that the server loads the classes that they need."""
    from kazoo.client import KazooClient

    client = KazooClient(address)
    try:
        client.start()
        client.create("/rehearsal/node", b"data", ephemeral=True, makepath=True)
        client.get("/rehearsal/node", watch=lambda _: None)
        transaction = client.transaction()
        transaction.set_data("/rehearsal/node", b"more")
        transaction.commit()
        client.get_children("/rehearsal")
        client.sync("/rehearsal")
        client.delete("/rehearsal", recursive=True)
    finally:
        client.stop()
        client.close()
