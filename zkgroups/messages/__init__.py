"""`Consumer`: the messages of the partitions of a member, read with confluent-kafka.

    consumer.py           Consumer: the public class, a loop over messages
    stats.py              what a consumer is doing, for health checks and metrics
    handler_loop.py       the body of `Consumer.run`: fetches, and stops fetching where too many messages wait
    handler_options.py    its options
    handler_runner.py     the messages that wait for a handler, and the workers that call it
    runs.py               these messages, shared by all threads: lanes, failures, dead letters, positions
    thread_workers.py, async_workers.py   threads that call a function, tasks that call a coroutine function
    dead_letters.py       writes dead letters
    loop_delivery.py      the messages that the caller's loop has received, and how far each partition is finished
    reading.py            Reading: follows the generations of a member, fetches, and commits what is finished
    deliverer.py          what hands out the messages of a reading: a loop or workers
    held_partitions.py    the partitions that a consumer holds, and where each of them goes on
    fetched_partitions.py keeps the partitions of the client in step with those that are held
    fetch_errors.py       separates errors from messages, and reports them
    followed_member.py    a member that reports each generation on its own thread
    standing_partitions.py  partitions that cannot be read now, and when to try again
    log_ranges.py         asks the brokers in the background where logs begin and end
    fetcher.py            the client of confluent-kafka: assign, pause, fetch
    client_settings.py    the settings of that client
    client_log.py         its log, and errors that it repeats

`Reading` does not know who handles the messages: a `Deliverer` says which of them are finished.
"""
