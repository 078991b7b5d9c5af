"""The error of a program that cannot be rehearsed."""


class NotRehearsableError(Exception):
    """The program uses something that cannot run on fake tensors; the message says what and what to do
    instead."""
