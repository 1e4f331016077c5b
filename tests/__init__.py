"""The tests mirror the code.

A name that begins with `test_rule_N_` or `test_failure_N_` refers to a promise or a failure of docs/guarantees.md.
"""
