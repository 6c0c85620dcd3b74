"""The exceptions that a command turns into one line and an exit code."""

import signal


class InputError(ValueError):
    """A caller's or an environment's fault: says what, where, value, limit and remedy in one line."""


class Stopped(Exception):
    """Raised by a loop that has saved its state after a signal; carries the exit code."""

    def __init__(self, signum: int):
        super().__init__(
            f"stopped by {signal.Signals(signum).name}, state saved; run the same command again"
        )
        self.code = 128 + signum
