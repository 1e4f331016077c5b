"""The rules of a migration: what to plan, write, copy back and compare."""
