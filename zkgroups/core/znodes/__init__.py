"""The znodes of consumer groups: paths, formats, the values they decode to, and the state of a group they show."""
