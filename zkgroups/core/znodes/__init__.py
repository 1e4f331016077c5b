"""The znodes of groups: their names, paths and formats, and the state of a group worked out from them.

Each client writes its own dialect:

    |              | Scala                     | kazoo-go                 | pykafka                     |
    |--------------|---------------------------|--------------------------|-----------------------------|
    | registration | JSON, timestamp: text, ms | JSON, timestamp: seconds | the bare name of a topic    |
    | owner        | <instance>-<stream>       | <instance>               | <instance>, at b't'/<l>-<p> |
    | offset       | decimal text              | decimal text             | kept in Kafka               |

zkgroups writes as kazoo-go does, so that every old client can read it, and reads all of them. A decoder never raises:
it returns a value, or a `MalformedNode` with the path and the reason.
"""
