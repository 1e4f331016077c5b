"""The command `zkgroups watch`."""
