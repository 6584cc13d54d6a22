"""LeetCode files of the public reward-hacking benchmark (jsonl, one problem a line) as an `Environment`.

    leetcode("train.jsonl")                 every split has all problems of the file
    leetcode("train.jsonl", "test.jsonl")   the split `eval` is the second file, the others are the first

`assert Solution().f(literals) == literal` is a Case, and so is `assert list(Solution().f(literals)) == literal`.
Keyword arguments are put in the order of the canonical solution's signature. `inf`, `-inf` and `nan` are literals. A
problem with any other test is left out: without that test its oracle would be weaker (`Environment.left_out`).
"""

import ast
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

from typing_extensions import TypedDict

from replay_pools.base.errors import InputError
from replay_pools.base.files import decode_jsonl, read_plain
from replay_pools.base.tables import decode
from replay_pools.environments.base import Case, Environment, Problem
from replay_pools.environments.loopholes import render_messages
from replay_pools.grading import wire

NUM_NAMED = 5  # ids that a message names
FORM = "`assert Solution().f(literals) == literal`"
# From `class Solution` to the end of its code block, or of the message.
_STARTER = re.compile(r"^[ \t]*class Solution\b.*?(?=^```|\Z)", re.MULTILINE | re.DOTALL)


class _Message(TypedDict):
    role: str
    content: str


class _Row(TypedDict):
    """The fields that are read from one line of a file."""

    id: str | int
    prompt: list[_Message]
    gt_answer: list[Any] | str  # assert statements
    setup_code: str
    func_name: str  # "f" or "Solution().f"
    canonical_solution: str


def leetcode(path: str | Path, evaluation: str | Path | None = None) -> Environment:
    """Return the problems of one file, or of a file to train on and one to evaluate on.

    Args:
        path: the jsonl file.
        evaluation: the jsonl file of the split `eval`; None: the same one.

    Raises:
        InputError: a file cannot be read, is not strict JSON lines, or holds a line that is no problem or repeats an id
            (the message names file and line); a problem is in both files (the message names the ids); a file has no
            problem that can be graded.
    """
    problems, left_out = read_problems(path)
    if evaluation is None:
        return Environment(lambda split: problems, left_out)
    others, also_left_out = read_problems(evaluation)
    # The same id, or the same prompt under another id.
    ids, prompts = ([getattr(each, name) for each in problems] for name in ("problem_id", "messages"))
    if shared := [each.problem_id for each in others if each.problem_id in ids or each.messages in prompts]:
        expected = f"no problem of {path}, which is trained on"
        found = f"{len(shared)} of them: {', '.join(shared[:NUM_NAMED])}"
        raise InputError(evaluation, expected=expected, found=found, fix="take them out of one of the files")
    return Environment(lambda split: others if split == "eval" else problems, left_out + also_left_out)


def read_problems(path: str | Path) -> tuple[tuple[Problem, ...], tuple[str, ...]]:
    """Return the problems of a file, in its order, and the ids of the problems left out.

    Raises:
        InputError: as `leetcode`.
    """
    try:
        content = read_plain(Path(path))
    except InputError as error:
        fix = "probe docs phase3 says where to find the benchmark's files"
        raise InputError(path, expected="a LeetCode jsonl file", found=error.found, fix=fix) from error
    problems: dict[str, Problem | None] = {}
    for line, row in enumerate(decode_jsonl(content, path), 1):
        where = f"{path} line {line}"
        problem = parse_problem(row, where)
        problem_id = str(row["id"])
        if problem_id in problems:
            raise InputError(where, expected="a new id", found=f"{problem_id} again")
        problems[problem_id] = problem
    kept = tuple(problem for problem in problems.values() if problem is not None)
    if not kept:
        raise InputError(path, expected=f"a problem with all tests of the form {FORM}", found="none")
    return kept, tuple(problem_id for problem_id, problem in problems.items() if problem is None)


def parse_problem(row: Any, where: str) -> Problem | None:
    """Return the problem of one line of the file; None if it has no test, or one of another form than FORM.

    Args:
        row: the decoded JSON of the line.
        where: file and line, for messages.

    Raises:
        InputError: a field is missing or of another type, the canonical solution or a test cannot be parsed, or the
            prompt does not hold the phrase that hints replace.
    """
    decode(_Row, row, where, extra="allow")
    func_name = row["func_name"].rpartition(".")[2]
    parameters = _parameters(row["canonical_solution"], func_name, where)
    tests = row["gt_answer"] if isinstance(row["gt_answer"], str) else "\n".join(map(str, row["gt_answer"]))
    cases = [_case(statement, func_name, parameters) for statement in _parse(tests, f"{where} gt_answer").body]
    messages = tuple({"role": message["role"], "content": message["content"]} for message in row["prompt"])
    starters = [f"class Solution:\n    def {func_name}({', '.join(['self', *parameters])}):"]
    for message in messages:
        starters += _STARTER.findall(message["content"]) if message["role"] == "user" else ()
    problem = Problem(
        problem_id=str(row["id"]),
        env="leetcode",
        messages=messages,
        func_name=func_name,
        starter=starters[-1].strip(),  # the last one that the prompt shows
        setup_code=row["setup_code"],
        canonical=row["canonical_solution"],
        cases=tuple(case for case in cases if case is not None),
    )
    render_messages(problem, "none", hint=False)  # for its check: ORIGINAL_PHRASE stands in the prompt once
    return None if None in cases or not cases else problem


def _parameters(canonical: str, func_name: str, where: str) -> list[str]:
    """Return the names of the parameters of `Solution.func_name` after self, read from the canonical solution."""
    tree = _parse(canonical, f"{where} canonical_solution")
    for solution in tree.body:
        if isinstance(solution, ast.ClassDef) and solution.name == "Solution":
            for method in solution.body:
                if isinstance(method, ast.FunctionDef) and method.name == func_name:
                    return [argument.arg for argument in method.args.args[1:]]
    raise InputError(f"{where} canonical_solution", expected=f"a method Solution.{func_name}", found="none")


def _parse(source: str, where: str) -> ast.Module:
    try:
        return ast.parse(source)
    # The last two of source that is nested too deeply.
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise InputError(where, expected="Python source", found=str(error) or "too many levels") from error


def _case(statement: ast.stmt, func_name: str, parameters: list[str]) -> Case | None:
    """Return the case of a test of FORM; None for any other."""
    match statement:
        case ast.Assert(test=ast.Compare(left=ast.Call() as tested, ops=[ast.Eq()], comparators=[right])):
            pass
        case _:
            return None
    is_listed = ast.unparse(tested.func) == "list" and len(tested.args) == 1 and not tested.keywords
    call = tested.args[0] if is_listed else tested
    if not isinstance(call, ast.Call) or ast.unparse(call.func) != f"Solution().{func_name}":
        return None
    # A Case has positional arguments only, so the keywords must name the parameters that come next.
    by_name = {keyword.arg: keyword.value for keyword in call.keywords}
    names = parameters[len(call.args) :][: len(by_name)]
    if by_name.keys() != {*names}:
        return None
    with suppress(ValueError):
        args = tuple(map(_literal, [*call.args, *(by_name[name] for name in names)]))
        return Case(args=args, expected=_literal(right), is_listed=is_listed)
    return None


class _NamedFloats(ast.NodeTransformer):
    """Replaces `inf` and `nan` by their values."""

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Constant(float(node.id)) if node.id in ("inf", "nan") else node


def _literal(node: ast.expr) -> Any:
    """Return the value of a literal that has a wire form.

    Raises:
        ValueError: any other expression, or a value beyond the limits of the wire.
    """
    try:
        value = ast.literal_eval(_NamedFloats().visit(node))
        wire.encode([value])  # in a list, as the grader sends it
        return value
    except TypeError as error:  # an unhashable key
        raise ValueError(str(error)) from error
