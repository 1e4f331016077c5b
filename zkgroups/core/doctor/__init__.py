"""The doctor's checks: problems in the znodes of a group, their severity, and their repair."""
