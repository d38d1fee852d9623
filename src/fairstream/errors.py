"""The exceptions of fairstream.

```
FairstreamError
├── ConfigurationError   an option that cannot be honoured
├── DataError            invalid events, users or groups
├── ModelError           a model that scores with NaN or has diverged
├── CheckpointError      a checkpoint that cannot be written or read
└── WorkspaceError       a live workspace that cannot serve the request
```

Each message is one sentence for a person: what was expected, what was found, what to do.
"""


class FairstreamError(Exception):
    """The base class of all exceptions of fairstream."""

    def __str__(self) -> str:
        # A quoted name, such as that of a column, may hold line breaks.
        return " ".join(super().__str__().splitlines())


class ConfigurationError(FairstreamError, ValueError):
    """An option, or a combination of options, that cannot be honoured."""


class DataError(FairstreamError, ValueError):
    """Invalid events, users or groups."""


class ModelError(FairstreamError, ArithmeticError):
    """A model that returns NaN or infinity; that is never a score."""


class CheckpointError(FairstreamError, OSError):
    """A checkpoint that cannot be written or read."""


class WorkspaceError(FairstreamError):
    """A live workspace that is missing, is busy, or cannot serve the request."""
