"""One group: its state, its members, and the events that it receives."""
