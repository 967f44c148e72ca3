"""Run where Triton is: what its programs for a group of columns take of an H100.

`python compile_groups.py job.json`, where the job says where quantkit is; the answer lies beside
it.
Its compiler says so without a GPU.
"""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

FRACTIONS = (1.0, 0.8, 0.7, 0.5)
FACTORS = (1.0, 0.94, 1.06)


def compiled(program: Any, grid: Any, size: int, **constants: Any) -> dict[str, int]:
    """Registers of a thread, its bytes of spilled ones, and shared memory of a program."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from quantkit.grid import group_kernel

    known = {"SIZE": size, "ROWS": group_kernel.ROWS, "GRID": group_kernel.constants(grid)}
    known |= constants
    names = program.arg_names
    kinds = dict.fromkeys(names, "*fp32") | dict.fromkeys(known, "constexpr")
    whole = ("n", "d", "weight_expert", "weight_row")
    kinds |= {name: "i32" for name in whole if name in names}
    kinds |= {name: "*u8" for name in ("codes",) if name in names}
    source = ASTSource(
        fn=program,
        signature=kinds,
        constexprs={(names.index(name),): value for name, value in known.items()},
        attrs={(i,): [["tt.divisibility", 16]] for i, n in enumerate(names) if n not in known},
    )
    options = {"num_warps": group_kernel.WARPS, "enable_fp_fusion": False}
    kernel = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        command = [str(tool), "--dump-resource-usage", file.name]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    used = {key: int(number) for key, number in re.findall(r"(REG|STACK|LOCAL):(\d+)", text)}
    return used | {"shared": kernel.metadata.shared, "fused": kernel.asm["ptx"].count("fma.rn")}


def main() -> None:
    """Both programs at the largest group, of both kinds of grid: [[case, {resource: count}]]."""
    path = Path(sys.argv[1])
    sys.path.append(json.loads(path.read_text())["package"])
    from quantkit.grid import group_program
    from quantkit.grid.affine import AffineGrid

    answers = []
    for symmetric in (True, False):
        grid = AffineGrid(4, symmetric, torch.bfloat16)
        search = compiled(group_program.search, grid, 128, FRACTIONS=FRACTIONS, REFITS=2)
        trials = compiled(group_program.trials, grid, 128, FACTORS=FACTORS)
        answers += [[f"search {symmetric}", search], [f"trials {symmetric}", trials]]
    path.with_name("answer.json").write_text(json.dumps(answers))


if __name__ == "__main__":
    main()
