"""The functions that handle events in each state of a group: the table of transitions, and one file for each topic."""
