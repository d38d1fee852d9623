"""Everything that fairstream raises on purpose.

```
FairstreamError
├── ConfigurationError   an option that cannot be honoured
├── DataError            events, users or groups that cannot be used as given
├── ModelError           a model that scores with NaN or has diverged
├── CheckpointError      a checkpoint that cannot be written or read
└── WorkspaceError       a live workspace that cannot be used as asked
```

Each message is one sentence for a person: what was expected, what was found, what to do.
"""


class FairstreamError(Exception):
    """The root of the tree: catch this to catch all of them."""

    def __str__(self) -> str:
        # A quoted name, such as that of a column, may hold line breaks.
        return " ".join(super().__str__().splitlines())


class ConfigurationError(FairstreamError, ValueError):
    """An option, or a combination of options, that cannot be honoured."""


class DataError(FairstreamError, ValueError):
    """Events, users or groups that cannot be used as given."""


class ModelError(FairstreamError, ArithmeticError):
    """A model that returns NaN or infinity; that is never a score."""


class CheckpointError(FairstreamError, OSError):
    """A checkpoint that cannot be written or read."""


class WorkspaceError(FairstreamError):
    """A live workspace that is not there, is busy, or cannot do what was asked of it."""
