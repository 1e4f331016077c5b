"""Damaged input of every kind, drawn at random: a few seconds in each run of the tests, and longer in `make soak`."""
