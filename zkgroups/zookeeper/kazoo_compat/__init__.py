"""Everything that relies on kazoo's private attributes, and corrections of kazoo's behavior, client by client.

No other package touches a private attribute of kazoo (`tests/test_architecture.py`). `tests/simulation` runs all of
kazoo, and fails if a new version breaks an assumption. This package imports no other package of zkgroups except the
deadlines.
"""
