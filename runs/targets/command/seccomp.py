"""Write filter programs for the kernel's seccomp, against system calls that a command does without.

A namespace does not cover them. A keyring is inherited from process to process, as the worker's by a command, or
belongs to the user, and nobody is every tenant's user. For a command of the worker's own user: a socket without a
file (X, session buses) belongs to the network, and its owner knows its own user by the user alone. One of a pair
reaches it too, if it is for datagrams: they go to any address given. For a command without a network: a socket of a
family that has no network to be without, such as AF_VSOCK, which leads to the host machine. A ring does any call
unseen.
"""

import errno
import platform
import struct
from typing import NamedTuple


class Processor(NamedTuple):
    """The kernel's number of a processor, and of the calls on it that a filter looks for."""

    number: int
    socket: int
    socketpair: int
    keyrings: tuple[int, int, int]
    # The same for programs of 32 bits that it runs besides.
    number_of_32_bits: int
    keyrings_of_32_bits: tuple[int, int, int]


# By what the kernel calls them; the calls of keyrings are add_key, request_key and keyctl.
PROCESSORS = {
    "x86_64": Processor(0xC000003E, 41, 53, (248, 249, 250), 0x40000003, (286, 287, 288)),
    "aarch64": Processor(0xC00000B7, 198, 199, (217, 218, 219), 0x40000028, (309, 310, 311)),
    "riscv64": Processor(0xC00000F3, 198, 199, (217, 218, 219), 0x400000F3, (217, 218, 219)),
}
# The same on all of them.
RINGS = (425, 426, 427)
# From here on stand the second numbers that calls have on x86-64 (x32); elsewhere there is nothing.
SECOND_NUMBERS = 0x40000000
AF_UNIX, AF_INET, AF_INET6, AF_NETLINK = 1, 2, 10, 16
# Those that end where the network of a namespace does, and that programs want.
WITHOUT_NETWORK = (AF_UNIX, AF_INET, AF_INET6, AF_NETLINK)
# The kernel takes a raw one for one of datagrams. Flags stand beside the kind.
DATAGRAMS, RAW, KINDS = 2, 3, 0xF
CALL, PROCESSOR, FIRST_ARGUMENT, SECOND_ARGUMENT = 0, 4, 16, 24
LOAD, MASK, IF_EQUAL, IF_AT_LEAST, RETURN = 0x20, 0x54, 0x15, 0x35, 0x06
ALLOW, KILL, REFUSE = 0x7FFF0000, 0x80000000, 0x00050000


def why_not() -> str:
    """Return why there is no program for this machine; empty if there is one."""
    if platform.machine() in PROCESSORS:
        return ""
    known = " or ".join(PROCESSORS)
    return f"its filter of system calls does not know {platform.machine()}. Right would be: a machine with {known}"


def program(of_worker_s_user: bool, network: bool) -> bytes:
    processor = PROCESSORS[platform.machine()]
    steps = [
        _step(LOAD, PROCESSOR),
        _step(IF_EQUAL, processor.number, 1, 0),
        _step(RETURN, KILL),
        _step(LOAD, CALL),
        *_refused(IF_AT_LEAST, errno.ENOSYS, SECOND_NUMBERS),
        *_refused(IF_EQUAL, errno.EPERM, *RINGS, *processor.keyrings),
    ]
    if not network:
        steps += _only_without_network(processor)
    elif of_worker_s_user:
        steps += _no_unix_sockets(processor)
    return b"".join([*steps, _step(RETURN, ALLOW)])


def without_keyrings() -> bytes:
    """Return a program that refuses keyrings and leaves all else as it was, for 32-bit programs too."""
    processor = PROCESSORS[platform.machine()]
    of_32_bits = (processor.number_of_32_bits, processor.keyrings_of_32_bits)
    steps = [_step(LOAD, PROCESSOR)]
    for number, calls in ((processor.number, processor.keyrings), of_32_bits):
        of_processor = [_step(LOAD, CALL), *_refused(IF_AT_LEAST, errno.ENOSYS, SECOND_NUMBERS)]
        of_processor += [*_refused(IF_EQUAL, errno.EPERM, *calls), _step(RETURN, ALLOW)]
        steps += [_step(IF_EQUAL, number, 0, len(of_processor)), *of_processor]
    return b"".join([*steps, _step(RETURN, KILL)])


def _only_without_network(processor: Processor) -> list[bytes]:
    of_family = [_step(LOAD, FIRST_ARGUMENT)]
    for family in WITHOUT_NETWORK:
        of_family += [_step(IF_EQUAL, family, 0, 1), _step(RETURN, ALLOW)]
    # As a kernel says that was built without it.
    of_family.append(_step(RETURN, REFUSE | errno.EAFNOSUPPORT))
    return [
        _step(IF_EQUAL, processor.socket, 1, 0),
        _step(IF_EQUAL, processor.socketpair, 0, len(of_family)),
        *of_family,
    ]


def _no_unix_sockets(processor: Processor) -> list[bytes]:
    # A pair that is connected for good leads nowhere.
    unconnected = [
        _step(LOAD, SECOND_ARGUMENT),
        _step(MASK, KINDS),
        *_refused(IF_EQUAL, errno.EACCES, DATAGRAMS, RAW),
        _step(RETURN, ALLOW),
    ]
    return [
        _step(IF_EQUAL, processor.socketpair, 0, len(unconnected)),
        *unconnected,
        _step(IF_EQUAL, processor.socket, 0, 3),
        _step(LOAD, FIRST_ARGUMENT),
        *_refused(IF_EQUAL, errno.EACCES, AF_UNIX),
    ]


def _refused(test: int, error: int, *values: int) -> list[bytes]:
    return [step for value in values for step in (_step(test, value, 0, 1), _step(RETURN, REFUSE | error))]


def _step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("HBBI", code, if_true, if_false, value)
