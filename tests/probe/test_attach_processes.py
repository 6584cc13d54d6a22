"""Two processes of gloo: the rows of the guide's table, DistributedDataParallel and FSDP2 against dL/dW in full."""

from pathlib import Path

import processes

BENCH = Path(__file__).parents[1] / "bench"
CODE = f"import sys; sys.path.insert(0, {str(BENCH)!r}); import attach_setups; attach_setups."


def test_every_row_comes_out_as_the_table_says(tmp_path: Path) -> None:
    logs = [tmp_path / f"rank{rank}" for rank in (0, 1)]
    store = str(tmp_path / "store")
    started = [processes.start(f"{CODE}in_process({rank}, {store!r})", log=log) for rank, log in enumerate(logs)]
    assert [processes.finish(process) for process in started] == [0, 0]
    rows = [line for line in logs[0].read_text().splitlines() if line.startswith("|")]
    assert len(rows) > 10
    assert not [row for row in rows if row.endswith("UNEXPECTED")]
