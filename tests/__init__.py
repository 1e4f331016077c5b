"""The tests mirror the code. Their names refer to the rules of the README, and to these failures that must be survived:

1   a session expires under an owner                      14  data that is corrupt, huge, or of the wrong type
2   the reply to a write is lost                          15  a huge group, thousands of groups, huge child lists
3   the request is lost before the server                 16  no permission on some nodes; authentication that fails
5   the remains of one's own past session                 17  names with slashes, dots, control characters, non-ASCII
10  a watch that is missed, a path made anew              18  an ensemble that has lost its quorum and only reads
11  a late commit
"""
