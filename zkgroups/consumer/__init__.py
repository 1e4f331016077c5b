"""Members that share the partitions of their topics, and the generations in which they work on them.

    Member       what is used: options, generations, close
    Generation   what there is to work on until it ends, and the workers bound to it
    Driver       the thread of one member; it carries out what the rebalance says
    Work         the generation that there is: begun, stopped, committed
    Patience     who waits for too long
    Telling      events, callbacks and the log
    Rebalance    the state machine (`core/rebalance.py`): events in, actions out, no I/O
    Seat         the member's place in its group: register, look, claim, release, in ZooKeeper
    Sight        what it sees of the group (`zookeeper/sight.py`), with a watch on all of it
    Ear          where kazoo calls when a watch fires (`zookeeper/ear.py`)
    Roster       what one look has shown, and a plan is made from (`core/agreement.py`)

A `LoneMember` has a `LoneSeat` instead, and shares with nobody.
"""
