"""A seccomp filter (a BPF program in the kernel, installed by ctypes): forbidden system calls fail with an errno.

The tables list refusals, not permissions: what Python needs differs by version and libc, while what leads out of a
sandbox is a short list. Calls numbered 424 and above fail with ENOSYS. Their numbers are the same on all architectures:
io_uring, pidfd, the new mount interface, clone3, and whatever a later kernel adds. libc then falls back to the older
calls, whose arguments a filter can see. New processes are refused and new threads are not, so that a submission is one
process: no fork bomb, no daemon.

To refuse another call: add a row with its numbers to _REFUSED, or to one of the two tables below it if that depends on
an argument, and an attempt to make it to tests/replay_pools/attacks.toml.
Standard library only: this file runs inside the worker.
"""

import ctypes
import errno
import functools
import os
import platform
import struct

_FIRST_UNIFIED = 424  # from here on, a call has the same number on every architecture
_PR_GET_SECCOMP, _PR_SET_SECCOMP, _MODE_FILTER = 21, 22, 2
_LOAD, _JUMP_EQUAL, _JUMP_AT_LEAST, _JUMP_SET, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06  # BPF operations
_OFFSET_NUMBER, _OFFSET_ARCH, _OFFSET_ARGS = 0, 4, 16  # in struct seccomp_data, which the filter reads
_KILL, _ERRNO, _ALLOW = 0x80000000, 0x00050000, 0x7FFF0000
_REFUSE, _ABSENT = _ERRNO | errno.EPERM, _ERRNO | errno.ENOSYS
_CLONE_THREAD = 0x00010000

# name: (x86_64, aarch64); None where the architecture has no such call
_REFUSED: dict[str, tuple[int | None, int | None]] = {
    # network and other channels out
    "socket": (41, 198), "connect": (42, 203), "accept": (43, 202), "bind": (49, 200), "listen": (50, 201),
    "accept4": (288, 242), "mq_open": (240, 180), "mq_unlink": (241, 181),
    "shmget": (29, 194), "shmat": (30, 196), "shmctl": (31, 195), "semget": (64, 190), "semop": (65, 193),
    "semctl": (66, 191), "semtimedop": (220, 192), "msgget": (68, 186), "msgsnd": (69, 189), "msgrcv": (70, 188),
    "msgctl": (71, 187), "inotify_init": (253, None), "inotify_init1": (294, 26),
    # descriptors in flight outlive their process
    "sendmsg": (46, 211), "sendmmsg": (307, 269),
    # other processes
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272),
    "execve": (59, 221), "execveat": (322, 281), "fork": (57, None), "vfork": (58, None),
    "setpriority": (141, 140), "ioprio_set": (251, 30), "sched_setaffinity": (203, 122),
    "sched_setscheduler": (144, 119), "sched_setparam": (142, 118), "sched_setattr": (314, 274),
    "move_pages": (279, 239), "migrate_pages": (256, 238),
    # namespaces, mounts, handles
    "unshare": (272, 97), "setns": (308, 268), "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41),
    "chroot": (161, 51), "mknod": (133, None), "mknodat": (259, 33), "swapon": (167, 224), "swapoff": (168, 225),
    "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265), "fanotify_init": (300, 262),
    "quotactl": (179, 60),
    # file attributes, which Landlock does not cover, and memory that RLIMIT_AS does not count
    "chmod": (90, None), "fchmod": (91, 52), "fchmodat": (268, 53), "chown": (92, None), "fchown": (93, 55),
    "lchown": (94, None), "fchownat": (260, 54), "utime": (132, None), "utimes": (235, None),
    "futimesat": (261, None), "utimensat": (280, 88), "setxattr": (188, 5), "lsetxattr": (189, 6),
    "fsetxattr": (190, 7), "removexattr": (197, 14), "lremovexattr": (198, 15), "fremovexattr": (199, 16),
    "truncate": (76, 45), "memfd_create": (319, 279),
    # kernel surface
    "bpf": (321, 280), "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219),
    "perf_event_open": (298, 241), "userfaultfd": (323, 282), "personality": (135, 92), "io_setup": (206, 0),
    "init_module": (175, 105), "delete_module": (176, 106), "finit_module": (313, 273), "kexec_load": (246, 104),
    "kexec_file_load": (320, 294), "reboot": (169, 142), "acct": (163, 89), "syslog": (103, 116), "iopl": (172, None),
    "ioperm": (173, None), "sethostname": (170, 161), "setdomainname": (171, 162), "settimeofday": (164, 170),
    "clock_settime": (227, 112), "adjtimex": (159, 171), "clock_adjtime": (305, 266),
}  # fmt: skip
_SELF_ONLY: dict[str, tuple[int, int]] = {  # first argument must be the caller's own process (prlimit64: or 0)
    "kill": (62, 129), "tkill": (200, 130), "tgkill": (234, 131), "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240), "prlimit64": (302, 261),
}  # fmt: skip
_CLONE = (56, 220)
_REFUSED_ARGUMENTS = {  # call: index of the argument, values
    (72, 25): (1, (8, 10, 15)),  # fcntl F_SETOWN, F_SETSIG, F_SETOWN_EX: signals to a process of one's choice
    (16, 29): (1, (0x8901, 0x8902)),  # ioctl FIOSETOWN, SIOCSPGRP: likewise
    (157, 167): (0, (1, 4)),  # prctl PR_SET_PDEATHSIG, PR_SET_DUMPABLE: set before the filter, for good
}
_MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}  # column of the tables, AUDIT_ARCH

_libc = ctypes.CDLL(None, use_errno=True)


class _Program(ctypes.Structure):  # struct sock_fprog
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def seccomp_available() -> bool:
    """Whether the tables have a column for this machine, and its kernel has seccomp filters."""
    return platform.machine() in _MACHINES and _libc.prctl(_PR_GET_SECCOMP, 0, 0, 0, 0) >= 0


def _instruction(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    """One BPF instruction; a jump skips `if_true` or `if_false` instructions."""
    return struct.pack("<HBBI", code, if_true, if_false, value)


def _argument_rule(
    number: int, index: int, test: int, values: tuple[int, ...], *, match: int, otherwise: int
) -> list[bytes]:
    """The instructions that decide on call `number` by one of its arguments; they let other calls through.

    Args:
        number: the call.
        index: which argument; its low 32 bits are compared (process ids, commands and flags have no more).
        test: _JUMP_EQUAL or _JUMP_SET (any of the bits of the value is set).
        values: what the argument is tested against.
        match: the verdict when the test holds for one of `values`.
        otherwise: the verdict when it holds for none.
    """
    rule = [
        _instruction(_JUMP_EQUAL, number, 0, len(values) + 3),
        _instruction(_LOAD, _OFFSET_ARGS + 8 * index),
    ]
    last = len(values) - 1
    for i, value in enumerate(values):
        # If the test holds, skip the tests that are left. If the last one fails too, skip `return match`.
        rule.append(_instruction(test, value, last - i, 1 if i == last else 0))
    return [*rule, _instruction(_RETURN, match), _instruction(_RETURN, otherwise)]


@functools.cache
def _constant_rules(machine: str) -> tuple[bytes, bytes]:
    """The instructions before and after the rules that depend on the process id, which is different in every fork."""
    column, arch = _MACHINES[machine]
    head = [
        # First of all: a call by the interface of another architecture would have other numbers.
        _instruction(_LOAD, _OFFSET_ARCH),
        _instruction(_JUMP_EQUAL, arch, 1, 0),
        _instruction(_RETURN, _KILL),
        _instruction(_LOAD, _OFFSET_NUMBER),
        _instruction(_JUMP_AT_LEAST, _FIRST_UNIFIED, 0, 1),  # the x32 calls of x86_64 lie above it too
        _instruction(_RETURN, _ABSENT),
    ]
    for numbers in _REFUSED.values():
        number = numbers[column]
        if number is not None:
            head += [_instruction(_JUMP_EQUAL, number, 0, 1), _instruction(_RETURN, _REFUSE)]
    tail = _argument_rule(_CLONE[column], 0, _JUMP_SET, (_CLONE_THREAD,), match=_ALLOW, otherwise=_REFUSE)
    for numbers, (index, values) in _REFUSED_ARGUMENTS.items():
        tail += _argument_rule(numbers[column], index, _JUMP_EQUAL, values, match=_REFUSE, otherwise=_ALLOW)
    return b"".join(head), b"".join([*tail, _instruction(_RETURN, _ALLOW)])


def build_filter(pid: int, machine: str) -> bytes:
    """The BPF program for process `pid`, in instructions of 8 bytes.

    Args:
        pid: the process that the filter is for; it may signal itself and no other.
        machine: "x86_64" or "aarch64".
    """
    column, _ = _MACHINES[machine]
    head, tail = _constant_rules(machine)
    rules = []
    for name, numbers in _SELF_ONLY.items():
        allowed_pids = (pid, 0) if name == "prlimit64" else (pid,)
        rules += _argument_rule(numbers[column], 0, _JUMP_EQUAL, allowed_pids, match=_ALLOW, otherwise=_REFUSE)
    return b"".join([head, *rules, tail])


def install_filter() -> None:
    """Filter the calls of this thread and its descendants for good. Needs no_new_privs; OSError on failure."""
    code = build_filter(os.getpid(), platform.machine())
    program = _Program(len(code) // 8, code)
    if _libc.prctl(_PR_SET_SECCOMP, _MODE_FILTER, ctypes.byref(program), 0, 0):
        number = ctypes.get_errno()
        raise OSError(number, f"seccomp filter: {os.strerror(number)}")
