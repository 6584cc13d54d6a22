"""A seccomp filter (a BPF program in the kernel, installed by ctypes): every system call but those listed here fails.

The tables list permissions, because no list of refusals is ever complete. They hold the calls that Python and its
library made in honest code (by strace), and the ones that glibc and musl make in their place.
A refused call fails with EPERM. One numbered 424 or above fails with ENOSYS; those numbers are the same on every
architecture (io_uring, pidfd, the new mount interface, clone3, and whatever a later kernel adds), and libc then falls
back to older calls with arguments that a filter can see.

To permit a call: add it with its numbers to _PERMITTED, or to _CONDITIONAL if its arguments matter; its abuse to
tests/replay_pools/grading/attacks.toml; what needs it to tests/support/honest.py.
Standard library only: this file runs inside the worker.
"""

import ctypes
import errno
import os
import platform
import struct
from collections.abc import Mapping
from typing import Any

_FIRST_UNIFIED = 424  # from here on, a call has the same number on every architecture
_PR_GET_SECCOMP, _PR_SET_SECCOMP, _MODE_FILTER = 21, 22, 2
_LOAD, _MASK, _JUMP_EQUAL, _JUMP_AT_LEAST, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x06  # BPF operations
_OFFSET_NUMBER, _OFFSET_ARCH, _OFFSET_ARGS = 0, 4, 16  # in struct seccomp_data, which the filter reads
_KILL, _ERRNO, _ALLOW = 0x80000000, 0x00050000, 0x7FFF0000
_REFUSE, _ABSENT = _ERRNO | errno.EPERM, _ERRNO | errno.ENOSYS
_ALL_BITS = 0xFFFFFFFF

# name: (x86_64, aarch64); None where the architecture has no such call
_PERMITTED: dict[str, tuple[int | None, int | None]] = {
    # open files: no lock, lease or length by path
    "read": (0, 63), "write": (1, 64), "readv": (19, 65), "writev": (20, 66), "pread64": (17, 67),
    "pwrite64": (18, 68), "preadv": (295, 69), "pwritev": (296, 70), "lseek": (8, 62), "close": (3, 57),
    "dup": (32, 23), "dup2": (33, None), "dup3": (292, 24), "ftruncate": (77, 46), "fstat": (5, 80),
    "getdents64": (217, 61),
    # paths: which files may be opened is up to Landlock
    "open": (2, None), "openat": (257, 56), "stat": (4, None), "lstat": (6, None), "newfstatat": (262, 79),
    "statx": (332, 291), "access": (21, None), "faccessat": (269, 48), "readlink": (89, None),
    "readlinkat": (267, 78), "getcwd": (79, 17),
    # memory
    "mmap": (9, 222), "munmap": (11, 215), "mprotect": (10, 226), "mremap": (25, 216), "brk": (12, 214),
    # threads
    "futex": (202, 98), "set_robust_list": (273, 99), "set_tid_address": (218, 96), "rseq": (334, 293),
    "gettid": (186, 178), "sched_yield": (24, 124), "sched_getaffinity": (204, 123), "exit": (60, 93),
    "exit_group": (231, 94),
    # signals to itself
    "rt_sigaction": (13, 134), "rt_sigprocmask": (14, 135), "rt_sigreturn": (15, 139), "rt_sigpending": (127, 136),
    "rt_sigtimedwait": (128, 137), "sigaltstack": (131, 132), "pause": (34, None), "alarm": (37, None),
    "getitimer": (36, 102), "setitimer": (38, 103), "restart_syscall": (219, 128),
    # clocks
    "clock_gettime": (228, 113), "clock_getres": (229, 114), "clock_nanosleep": (230, 115), "nanosleep": (35, 101),
    "gettimeofday": (96, 169), "time": (201, None), "times": (100, 153),
    # pipes, waiting for descriptors, and the ends of a socketpair
    "pipe": (22, None), "pipe2": (293, 59),
    "poll": (7, None), "ppoll": (271, 73), "select": (23, None), "pselect6": (270, 72), "epoll_create": (213, None),
    "epoll_create1": (291, 20), "epoll_ctl": (233, 21), "epoll_wait": (232, None), "epoll_pwait": (281, 22),
    "eventfd2": (290, 19), "recvfrom": (45, 207), "shutdown": (48, 210), "getsockname": (51, 204),
    "getpeername": (52, 205),
    # what and where it is
    "getpid": (39, 172), "getppid": (110, 173), "getpgid": (121, 155), "getpgrp": (111, None), "getsid": (124, 156),
    "getuid": (102, 174), "geteuid": (107, 175), "getgid": (104, 176), "getegid": (108, 177), "getresuid": (118, 148),
    "getresgid": (120, 150), "getgroups": (115, 158), "getrlimit": (97, 163), "getrusage": (98, 165),
    "uname": (63, 160), "getrandom": (318, 278), "umask": (95, 166),
}  # fmt: skip
_CALLER = -1  # stands for the process id of the caller
# name: ((x86_64, aarch64), {argument: the values that it may have}). All must hold. An argument is its index, or
# (index, the bits that count), or (index, None) for the upper 32 of its 64 bits.
_CONDITIONAL: dict[str, tuple[tuple[int, int], dict[Any, tuple[int, ...]]]] = {
    # The flags of pthread_create in glibc and in musl: no new process, no namespace.
    "clone": ((56, 220), {0: (0x3D0F00, 0x7D0F00)}),
    # F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_DUPFD_CLOEXEC: locks and leases on files of the library stop neighbours.
    "fcntl": ((72, 25), {1: (0, 1, 2, 3, 1030)}),
    # TCGETS and TCGETS2 (isatty), TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX
    "ioctl": ((16, 29), {1: (0x5401, 0x802C542A, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)}),
    "prctl": ((157, 167), {0: (15, 16)}),  # PR_SET_NAME, PR_GET_NAME: of threads
    # MADV_NORMAL to DONTNEED, FREE, HUGEPAGE, NOHUGEPAGE, DONTDUMP, DODUMP: PAGEOUT would slow the library for all.
    "madvise": ((28, 233), {2: (4, 8, 0, 1, 2, 3, 14, 15, 16, 17)}),
    "kill": ((62, 129), {0: (_CALLER,)}),
    "tkill": ((200, 130), {0: (_CALLER,)}),
    "tgkill": ((234, 131), {0: (_CALLER,)}),
    "prlimit64": ((302, 261), {0: (0, _CALLER)}),
    # Unix streams: a pair of datagram sockets reaches named ones.
    "socketpair": ((53, 199), {0: (1,), (1, 0xF): (1,)}),
    "sendto": ((44, 206), {4: (0,), (4, None): (0,)}),  # without an address
}
_MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}  # column of the tables, AUDIT_ARCH

_libc = ctypes.CDLL(None, use_errno=True)


class _Program(ctypes.Structure):  # struct sock_fprog
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def seccomp_available() -> bool:
    """Return True when the tables have a column for this machine, and its kernel has seccomp filters."""
    return platform.machine() in _MACHINES and _libc.prctl(_PR_GET_SECCOMP, 0, 0, 0, 0) >= 0


def _instruction(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    """One BPF instruction; a jump skips `if_true` or `if_false` instructions."""
    return struct.pack("<HBBI", code, if_true, if_false, value)


def _rule(number: int, conditions: Mapping[Any, tuple[int, ...]], pid: int) -> list[bytes]:
    """The instructions that decide on call `number`, permitted if all conditions hold; other calls skip them."""
    tests: list[bytes] = []
    for argument, values in conditions.items():
        place, mask = argument if isinstance(argument, tuple) else (argument, _ALL_BITS)
        tests.append(_instruction(_LOAD, _OFFSET_ARGS + 8 * place + 4 * (mask is None)))
        if mask not in (None, _ALL_BITS):
            tests.append(_instruction(_MASK, mask))
        for i, value in enumerate(values):
            # If it is this value, skip the values that are left, and the refusal after them.
            tests.append(_instruction(_JUMP_EQUAL, pid if value == _CALLER else value, len(values) - i))
        tests.append(_instruction(_RETURN, _REFUSE))
    tests.append(_instruction(_RETURN, _ALLOW))
    return [_instruction(_JUMP_EQUAL, number, 0, len(tests)), *tests]


def build_filter(pid: int, machine: str) -> bytes:
    """The BPF program for process `pid`, in instructions of 8 bytes.

    Args:
        pid: the process that the filter is for; it may signal itself and no other.
        machine: "x86_64" or "aarch64".
    """
    column, arch = _MACHINES[machine]
    program = [
        # First of all: a call by the interface of another architecture would have other numbers.
        _instruction(_LOAD, _OFFSET_ARCH),
        _instruction(_JUMP_EQUAL, arch, 1, 0),
        _instruction(_RETURN, _KILL),
        _instruction(_LOAD, _OFFSET_NUMBER),
        _instruction(_JUMP_AT_LEAST, _FIRST_UNIFIED, 0, 1),  # the x32 calls of x86_64 lie above it too
        _instruction(_RETURN, _ABSENT),
    ]
    for numbers, conditions in (*((numbers, {}) for numbers in _PERMITTED.values()), *_CONDITIONAL.values()):
        if (number := numbers[column]) is not None:
            program += _rule(number, conditions, pid)
    return b"".join([*program, _instruction(_RETURN, _REFUSE)])


def install_filter() -> None:
    """Filter the calls of this thread and its descendants for good. Needs no_new_privs; OSError on failure."""
    code = build_filter(os.getpid(), platform.machine())
    program = _Program(len(code) // 8, code)
    if _libc.prctl(_PR_SET_SECCOMP, _MODE_FILTER, ctypes.byref(program), 0, 0):
        number = ctypes.get_errno()
        raise OSError(number, f"seccomp filter: {os.strerror(number)}")
