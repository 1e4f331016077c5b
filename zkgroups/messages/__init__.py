"""`Consumer`: the messages of the partitions of a member, read with confluent-kafka.

    consumer.py            Consumer: the public class, a loop over messages
    handlers.py            the body of `Consumer.run`: threads and tasks that call a handler
    runs.py                the messages that wait for a handler, shared by all threads
    dead_letters.py        writes dead letters
    loop_delivery.py       the messages that the caller's loop has received, and how far each partition is finished
    deliverer.py           what hands out the messages of a reading: a loop or workers
    reading.py             Reading: follows the generations of a member, fetches, and commits what is finished
    fetched_partitions.py  the partitions that are held, fetched, or cannot be read now
    fetcher.py             the client of confluent-kafka, its settings and its log
    followed_member.py     a member that reports each generation on its own thread, and errors
    native_membership.py   the membership of a consumer whose group was moved to the brokers
    broker_offsets.py, offsets_on_brokers.py   offsets that are committed on the brokers, or also there

`Reading` does not know who handles the messages: a `Deliverer` says which of them are finished.
"""
