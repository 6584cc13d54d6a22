"""Landlock, called by ctypes: the kernel enforces which files, TCP ports and signals a process may reach.

A ruleset forbids everything that the running kernel can forbid (ABI 1 to 7 and later), except what its rules grant. An
older kernel confines less and never fails: below ABI 4 the seccomp filter has to refuse TCP, below ABI 6 signals and
abstract sockets. Landlock covers no stat, chmod, chown, xattr, lock or lease at any ABI; of these, the seccomp filter
permits stat alone.

    ruleset = create_ruleset(listable=sys.path, readable=["/usr/lib/python3.11"], writable=[scratch])
    restrict_self(ruleset)  # after prctl(PR_SET_NO_NEW_PRIVS, 1)

Source: linux/Documentation/userspace-api/landlock.rst, include/uapi/linux/landlock.h.
Standard library only: this file runs inside the worker.
"""

import ctypes
import os
import stat
from collections.abc import Iterable

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # the same numbers on every architecture
_CREATE_VERSION = 1  # flag of landlock_create_ruleset: return the ABI instead
_RULE_PATH_BENEATH = 1
_NUM_FS_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15}  # ABI -> how many rights on files it knows; 16 from ABI 5 on
_WRITE_FILE, _READ_FILE, _READ_DIR, _TRUNCATE = 1 << 1, 1 << 2, 1 << 3, 1 << 14
_TCP_RIGHTS = 0b11  # bind, connect
_SCOPES = 0b11  # abstract unix sockets, signals

_libc = ctypes.CDLL(None, use_errno=True)


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed_access", ctypes.c_uint64), ("parent_fd", ctypes.c_int32))


def _call(number: int, *arguments: object) -> int:
    """A raw system call; OSError on failure."""
    result = _libc.syscall(ctypes.c_long(number), *arguments)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"landlock call {number}: {os.strerror(code)}")
    return result


def landlock_abi() -> int:
    """The kernel's Landlock ABI; 0 when it has none or it is disabled."""
    try:
        return _call(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(_CREATE_VERSION))
    except OSError:
        return 0


def create_ruleset(*, listable: Iterable[str], readable: Iterable[str], writable: Iterable[str]) -> int:
    """A ruleset for `restrict_self`, which allows nothing to be created, removed, renamed, linked or executed.

    Args:
        listable: folders beneath which folders may be listed.
        readable: paths beneath which files may be read and folders listed.
        writable: paths beneath which existing files may be read, rewritten and truncated.

    A path that does not exist grants nothing.

    Returns:
        The descriptor of the ruleset.
    """
    abi = landlock_abi()
    handled = (1 << _NUM_FS_RIGHTS.get(abi, 16)) - 1
    # struct landlock_ruleset_attr has grown by ABI, and a kernel refuses fields that it does not know.
    words = [handled]
    if abi >= 4:
        words.append(_TCP_RIGHTS)
    if abi >= 6:
        words.append(_SCOPES)
    attributes = (ctypes.c_uint64 * len(words))(*words)
    ruleset = _call(
        _CREATE_RULESET, ctypes.byref(attributes), ctypes.c_size_t(ctypes.sizeof(attributes)), ctypes.c_uint32(0)
    )
    for path in listable:
        _allow(ruleset, path, _READ_DIR)
    for path in readable:
        _allow(ruleset, path, _READ_FILE | _READ_DIR)
    for path in writable:
        _allow(ruleset, path, (_READ_FILE | _WRITE_FILE | _TRUNCATE) & handled)
    return ruleset


def _allow(ruleset: int, path: str, rights: int) -> None:
    """Grant `rights` beneath `path`; a path that does not exist grants nothing."""
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        # The kernel refuses a rule that grants the right to list on anything but a folder.
        if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            rights &= ~_READ_DIR
        rule = _PathBeneath(rights, descriptor)
        _call(
            _ADD_RULE, ctypes.c_int(ruleset), ctypes.c_int(_RULE_PATH_BENEATH), ctypes.byref(rule), ctypes.c_uint32(0)
        )
    finally:
        os.close(descriptor)


def restrict_self(ruleset: int) -> None:
    """Enforce the ruleset on this thread and its descendants for good, and close it. Needs no_new_privs."""
    _call(_RESTRICT_SELF, ctypes.c_int(ruleset), ctypes.c_uint32(0))
    os.close(ruleset)
