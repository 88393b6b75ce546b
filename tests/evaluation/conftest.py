"""A recorder for tests without a GPU."""

import pytest


class Tape:
    """A recorder without a GPU: a recording does nothing, a replay calls the function again."""

    def __init__(self):
        self.events = []

    def warm(self, call):
        self.events.append("warm")
        call()

    def record(self, call):
        self.events.append("record")

        def replay():
            self.events.append("replay")
            call()

        return replay


@pytest.fixture
def tape():
    return Tape()
