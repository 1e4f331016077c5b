"""The root of the error tree, and the errors for invalid arguments. Import them from `zkgroups.exceptions`.

They have their own module to avoid an import cycle: `TopicPartition` raises them, and other errors carry it.
"""

from __future__ import annotations


class ZkgroupsException(Exception):
    """The root of every error of this library.

    `retriable` is True if the same call may succeed later, without any change by the caller. The objects that an
    error concerns are attributes, named like the parameters: `error.group`, `error.at`, `error.owner`, ...
    """

    retriable: bool = False

    def __reduce__(self) -> tuple[object, ...]:
        """Restore an unpickled error from its fields: Spark workers and process pools send errors back."""
        return (_restored, (type(self), self.args), self.__dict__)


def _restored(kind: type[ZkgroupsException], args: tuple[object, ...]) -> ZkgroupsException:
    return kind.__new__(kind, *args)


def _shown(value: object) -> str:
    """Format a value for a message, shortened if necessary."""
    try:
        text = repr(value)
    except ValueError:  # Python refuses to format numbers with thousands of digits
        return f"a value of type {type(value).__name__}, too long to show,"
    return text if len(text) <= 200 else f"{text[:196]}..."


class InvalidInputError(ZkgroupsException, ValueError):
    """An argument is invalid. No request was sent."""


class InvalidNameError(InvalidInputError):
    """A group, topic, partition or instance id that cannot be the name of one znode."""

    def __init__(self, kind: str, name: object, reason: str) -> None:
        nouns = {"instance": "an instance id", "partition": "a partition", "chroot": "part of a chroot"}
        super().__init__(f"{_shown(name)} cannot be {nouns.get(kind, f'a {kind} name')}: it {reason}")
        self.kind = kind
        self.name = name


class InvalidOptionError(InvalidInputError):
    """An option is out of bounds. The value ``...`` stands for a secret."""

    def __init__(self, option: str, value: object, reason: str) -> None:
        given = "not given" if value is None else _shown(value)
        super().__init__(f"{option}: {reason}" if value is ... else f"{option} is {given}, but {reason}")
        self.option = option
        self.value = value
