"""The picture: an immutable value with all groups at one moment, and the state from which the next one is made."""
