"""Everything that relies on kazoo's private attributes, and corrections of kazoo's behavior, client by client.

No other package touches a private attribute of kazoo (`tests/test_architecture.py`). Each assumption about kazoo's
internals is checked by name in `tests/zookeeper/test_kazoo_assumptions.py`. This package imports no other package of
zkgroups except the deadlines.
"""
