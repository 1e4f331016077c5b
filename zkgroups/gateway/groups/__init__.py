"""Requests about groups: the decision who answers, the coordinator in the event loop, and groups in memory."""
