"""The tests mirror the code. Their names refer to the rules of the README, and to these failures that must be survived:

1   a session expires under an owner                  10  a watch that is missed, a path made anew
2   the reply to a write is lost                      11  a late commit
3   the request is lost before the server             14  data that is corrupt, huge, or of the wrong type
4   a server restarts, the leader is killed           15  a huge group, thousands of groups, huge child lists
5   the remains of one's own past session             16  no permission on some nodes; authentication that fails
6   a process that stood still, and goes on           17  names with slashes, dots, control characters, non-ASCII
8   a crash in the middle of a rebalance              18  an ensemble that has lost its quorum and only reads
9   many members that join at once                    20  a migration that is killed, at any step
13  a topic that is deleted and made anew, smaller    21  consumers that still live while they are migrated
24  a fork; closing at any moment, and twice          22  an offset before the start of the log, or past its end
"""
