"""Everything that relies on kazoo's private attributes."""
