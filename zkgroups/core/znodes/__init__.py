"""The znodes of groups: their names, paths and formats, and the state of a group, computed from them.

Each client writes its own dialect:

    |              | Scala                     | kazoo-go                 | pykafka              |
    |--------------|---------------------------|--------------------------|----------------------|
    | registration | JSON, timestamp: text, ms | JSON, timestamp: seconds | the name of a topic  |
    | owner        | INSTANCE-STREAM           | INSTANCE                 | INSTANCE             |
    | owner's path | TOPIC/PARTITION           | TOPIC/PARTITION          | b'TOPIC'/X-PARTITION |
    | offset       | decimal text              | decimal text             | kept in Kafka        |

zkgroups writes like kazoo-go, because every old client can read that, and reads all dialects. A decoder never raises:
it returns a value, or a `MalformedNode` with the path and the reason.
"""
