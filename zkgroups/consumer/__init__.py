"""Members, which share the partitions of their topics, and generations, in which they work on them.

    member.py                Member: the public class
    generation.py            Generation: the partitions to work on until the next rebalance, and the workers bound to it
    rebalance_loop.py        the thread of one member: carries out the actions of the rebalance
    pending_changes.py       the changes that the member has heard of, and when it handles them
    step_failures.py         when failed steps are retried, and which errors the caller gets
    generation_lifecycle.py  begins, stops and commits the current generation
    membership.py            the place of the member in its group: register, look, claim and release in ZooKeeper
    group_plan.py            the plan of the group: reads it, or writes it if this member is the planner
    recreated_topics.py      topics that were deleted or recreated while the member held partitions of them
    group_notes.py           notes on missing topics, unreadable nodes and other clients
    callbacks.py             calls the callbacks of the user, and logs the events
    stuck_alarm.py           reports partitions and plans that the member has waited for too long
    unused_registrations.py  registrations of a resumed session that no member uses
    lone_member.py, lone_membership.py   a member without a group

The rules of a rebalance are a state machine without I/O: `core/rebalance/state_machine.py`.
"""
